"""What models say in place of a summary."""

import pytest

from nexus.services.text.language import NAMES
from nexus.services.text.summary_checks import REFUSALS, failure_in, folded, refusal_in

NOBODY = ""
EXCUSES = [
    "I'm sorry, but I can't help with that.",
    "I’m sorry.",
    "Unfortunately, I cannot summarise this conversation.",
    "Failed to generate summary.",
    "**Unable to comply.**",
    "As an AI language model, I have no access.",
    "对不起，我无法帮助您完成这个请求。",
    "很抱歉，内容涉及敏感信息。",
    "我无法总结这些内容。",
    "摘要生成失败",
    "申し訳ありませんが、要約できません。",
    "要約の生成に失敗しました。",
    "죄송합니다. 도와드릴 수 없습니다.",
    "Es tut mir leid, aber dabei kann ich nicht helfen.",
    "Ich kann den Inhalt leider nicht zusammenfassen.",
    "Je suis désolé, mais c'est impossible.",
    "Lo siento, no puedo ayudar con eso.",
    "Mi dispiace, non posso riassumere il testo.",
    "Desculpe, não posso resumir isso.",
    "Het spijt me, dat gaat niet.",
]
NONE = [
    "Unfortunately no flight was found.",
    "I can't find fault: an apology was written.",
    "The user is sorry.",
    "Unable to open the file, the tool gave up.",
    "The assistant said: I'm sorry.",
    "无法打开文件，工具报错。",
    "无法生成报告：权限不足。",
    "Leider wurde kein Flug gefunden.",
    "No se pudo abrir el archivo.",
    "",
]


@pytest.mark.parametrize("text", EXCUSES)
def test_excuses(text: str) -> None:
    """They are told by what a text begins with, unless the turn itself has the words."""
    assert refusal_in(text, NOBODY) == "it is a refusal"
    assert refusal_in(text, folded(f"He wrote: {text.upper()}")) is None


@pytest.mark.parametrize("text", NONE)
def test_what_is_none(text: str) -> None:
    """Failures of what the turn was about."""
    assert refusal_in(text, NOBODY) is None


def test_every_language() -> None:
    """Each that has a name has some."""
    assert REFUSALS.keys() == NAMES.keys()


def test_words_of_failure() -> None:
    """They are nowhere, unless in the turn."""
    text = "It was noted that the summary generation failed."
    assert failure_in(text, NOBODY) == refusal_in(text, NOBODY) == "it says that it failed"
    assert failure_in(text, folded("Why 'Summary generation failed'?")) is None


def test_hostile_texts() -> None:
    """Whatever is said, it is read in linear time."""
    for text in ("ich kann das " * 50_000, "_" * 500_000, "对不起" * 100_000):
        refusal_in(text, NOBODY)
