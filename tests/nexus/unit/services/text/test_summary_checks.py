"""Checks of a summary: refusals, the language of the user, numbers, missing parts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.services.text.summary_checks import (
    failure_in,
    folded,
    numbers_in,
    refusal_in,
    spelling,
    spellings,
)
from nexus.services.turns.model_summary import evidence_of
from tests.nexus.unit.services.turns.literature import session
from tests.nexus.unit.services.turns.runs import Run

CHINESE = "请帮我搜索关于抑制剂对糖尿病患者心血管结局影响的文献"
ENGLISH = "Please find what there is about the inhibitors and their effect on the heart."


@pytest.mark.parametrize(
    ("known", "detailed", "invents"),
    [
        ("156 15 86", "156 found, 15 kept, 86 read, and 2018 of them, or 77 or 99, are new.", False),
        ("156 15", "156 found, 15 kept; 2018, 77 and 99 are new.", True),
        ("", "20 results and 30 more, 50 in all", True),
        ("", "20 results and 30 more", False),
        ("156", "10, 20, 30, 40, 50 and 60 of 156", True),
        ("156", "no number at all", False),
        ("1234567.891 456789.01 0.5234", "1.23 million, 0.46 million and 52%", False),
        ("1234567.891 456789.01 0.5234", "1.33 million, 0.56 million and 62%", True),
        ("ninety days and twenty percent off, for the first fifty", "90 days, 20% off, the first 50", False),
        ("总价款壹佰万元的百分之三十，三十日内", "1,000,000 元，首付 30%，60 日，15%", False),
        ("zwei Drittel", "20, 30 and 50", True),
    ],
)
def test_invented_figures(known: str, detailed: str, *, invents: bool) -> None:
    """Three or more numbers that are in the turn in no spelling, and more than half of all: counts and sums may be."""
    fault = evidence_of(Run(known).facts).fault_of(["", detailed], "")
    assert (fault is not None) is invents
    assert not invents or "are not in the turn" in str(fault)


@pytest.mark.parametrize(
    ("asked", "said", "fault"),
    [
        (CHINESE, ENGLISH, "it is in English, and the user writes in Chinese"),
        (ENGLISH, CHINESE, "it is in Chinese, and the user writes in English"),
        (CHINESE, CHINESE, None),
        ("继续", ENGLISH, "it is in English, and the user writes in Chinese"),
        ("что дальше", ENGLISH, "it is in English, and the user writes in a language in Cyrillic letters"),
        ("Deploy v2.3.1 to staging", CHINESE, "it is in Chinese, and the user writes in a language in Latin letters"),
        ("Deploy v2.3.1 to staging", ENGLISH, None),
        ("Translate this into English: " + CHINESE, ENGLISH, None),
        ("What does 'Die Katze ist auf dem Tisch und der Hund ist nicht da' mean?", ENGLISH, None),
        (
            "心不全治療薬 臨床試験 論文検索",
            "ユーザーは論文の検索を求めた。",
            "it is in Japanese, and the user writes in Chinese",
        ),
        (CHINESE, "SGLT2, PubMed, HR 0.86", None),
        (f"Summarise this:\n{CHINESE}", ENGLISH, None),
    ],
)
def test_the_language(asked: str, said: str, fault: str | None) -> None:
    """Wrong only where that of the user, or its letters, and that of a text are both clear."""
    assert evidence_of(Run(asked).facts).fault_of(["short", said], "") == fault


@pytest.mark.parametrize(
    ("asked", "answer", "goal", "language"),
    [
        ("What do they say?", "They say that the risk was lower.", "", "en"),
        ("结果如何？", "风险降低。", "", "zh"),
        ("继续", "", ENGLISH, None),
        ("北京", "It is the capital and it has 22 million people.", "", None),
        ("Go on", "", ENGLISH, "en"),
        ("Deploy v2.3.1", "", CHINESE, "zh"),
        ("What now?", "", CHINESE, None),
        ("Übersetze das ins Englische", "This is what they wrote to us, and that was all.", "", "LATIN"),
        ("心不全治療薬 臨床試験 論文検索", "156件の論文が見つかりました。", "", "ja"),
        ("続行", "156件の論文が見つかりました。", "", "ja"),
        ("", "", "", None),
    ],
)
def test_a_short_question(asked: str, answer: str, goal: str, language: str | None) -> None:
    """What it leaves open is told by the answer, then by the goal, unless its own letters or words speak against it."""
    facts = replace(Run(asked).answer(answer).facts, goal=goal)
    assert evidence_of(facts).language == language


@given(st.text(), st.text())
def test_any_text(asked: str, said: str) -> None:
    """What a turn says is never an invention."""
    fault = evidence_of(Run(asked).answer(said).facts).fault_of([], said)
    assert fault is None or fault.startswith("it is in ")


def test_what_a_summary_has_at_least() -> None:
    """Half of the weight of a brief one by rules, figures where there are some, and deeds where there were calls."""
    run = session("English")[2]
    evidence = evidence_of(run.facts)
    assert evidence.least > 40
    told = "The risk is lower, the reviews say, in all of the patients that they have."
    assert evidence.lack_of([told], told[: evidence.least - 1], has_outcomes=True) == "it leaves out nearly everything"
    told = told.ljust(evidence.least)
    assert evidence.lack_of([told, "in none"], told, has_outcomes=True) == "it names no number, and the turn holds some"
    assert evidence.lack_of([told, "14%"], told, has_outcomes=False)
    assert evidence.lack_of([told, "14%"], told, has_outcomes=True) is None


NOTHING_SAID = ""
REFUSING = [
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
NO_REFUSALS = [
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


@pytest.mark.parametrize("text", REFUSING)
def test_refusals(text: str) -> None:
    """They are told by what a text begins with, unless the turn itself has the words."""
    assert refusal_in(text, NOTHING_SAID) == "it is a refusal"
    assert refusal_in(text, folded(f"He wrote: {text.upper()}")) is None


@pytest.mark.parametrize("text", NO_REFUSALS)
def test_what_is_none(text: str) -> None:
    """Failures of what the turn was about."""
    assert refusal_in(text, NOTHING_SAID) is None


def test_words_of_failure() -> None:
    """They are nowhere, unless in the turn."""
    text = "It was noted that the summary generation failed."
    assert failure_in(text, NOTHING_SAID) == refusal_in(text, NOTHING_SAID) == "it says that it failed"
    assert failure_in(text, folded("Why 'Summary generation failed'?")) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("156 articles, 15 reviews", {"156", "15"}),
        ("HR 0.86, 0,86 or 86 %", {"86"}),
        ("45,678 is 45678 and 45.678 and 45'678", {"45678"}),
        ("95% CI 0.80-0.93", {"95", "80", "93"}),
        ("１５６ 篇，共 4.5 万", {"156", "45"}),
        ("2026-11-22T08:05:00Z", {"2026", "11", "22", "8", "5", "0"} - {"8", "5", "0"}),
        ("in 3 of 7 cases, 0.05, 1.", set()),
        ("abc123def", {"123"}),
        ("", set()),
        ("١٥٦", {"156"}),
    ],
)
def test_figures(text: str, found: set[str]) -> None:
    """Numbers of two digits or more, however they are written."""
    assert numbers_in(text) == found


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ("1234567.891", "1.23 million"),
        ("1234567.891", "1,234,568"),
        ("0.52263", "52%"),
        ("456789.01", "460,000"),
        ("456789.01", "0.45 million"),
        ("0.8", "80%"),
        ("7 million", "7,000,000"),
        ("99.96", "100"),
        ("[12345678,23456789]", "23456789"),
        ("45,678", "45678"),
    ],
)
def test_what_stands_for_a_number(there: str, here: str) -> None:
    """The same, rounded or cut off, at any power of ten."""
    assert {*map(spelling, numbers_in(here))} <= spellings(there)


@given(st.integers(10, 10**17), st.integers(2, 6), st.integers(0, 8))
def test_any_rounding(number: int, digits: int, zeros: int) -> None:
    """A number that is rounded to two to six digits stands for it."""
    length = len(str(number))
    rounded = round(number, digits - length) if length > digits else number
    assert spelling(str(rounded) + "0" * zeros) in spellings(f"about {number} of them")
