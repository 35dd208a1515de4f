"""Sentences that announce a decision or what is to come."""

import pytest

from nexus.services.text.digest import DECISION, NEXT_STEP, sentences_with_cue

DECISIONS = [
    "I'll search PubMed first.",
    "I will use the second list.",
    "We’ll drop the narrative ones.",
    "I'm going to load both because one may be behind a paywall.",
    "Let me count them before they are read.",
    "I decided to keep 15 of them.",
    "I chose the larger sample instead of the newer one.",
    "我决定采用系统综述。",
    "我将先搜索 PubMed。",
    "改用第二个数据库。",
    "Ich habe mich entschieden, nur abgeschlossene Buchungen zu zählen, weil stornierte z. B. doppelt vorkamen.",
    "Ich werde die zweite Liste nehmen, weil sie neuer ist.",
    "J'ai décidé de garder les 15 premiers.",
    "He elegido la segunda lista porque es más reciente.",
    "Decidí usar PubMed.",
]
NEXT_STEPS = [
    "Next, the full texts have to be read.",
    "The next step is to read them.",
    "A follow-up is due in 2027.",
    "The quality still has to be judged.",
    "下一步需要提取数据。",
    "后续应进行质量评估。",
    "Als Nächstes sollten wir die Ursachen in Süd untersuchen.",
    "La prochaine étape est de lire les textes.",
    "El siguiente paso es leerlos.",
]
NEITHER = [
    "There are 156 articles.",
    "Let me know if you need more.",
    "I will look that up.",
    "Let's see.",
    "We will be in touch.",
    "Let me count them.",
    "I'm going to load both.",
    "我会查一下。",
    "Ich werde nachsehen.",
    "Je vais regarder.",
    "The sales of cars fell because of the weather.",
    "Shall I decide for you?",
    "The willing buyer chases a follower.",
    "共找到156篇文献。",
    "接下来要做什么？",
    "",
]


@pytest.mark.parametrize("sentence", DECISIONS)
def test_decisions(sentence: str) -> None:
    """Are found among other sentences."""
    assert sentences_with_cue([f"It is so. {sentence}\nSo it is."], DECISION, most=5, room=200) == [sentence]


@pytest.mark.parametrize("sentence", NEXT_STEPS)
def test_next_steps(sentence: str) -> None:
    """Are found among other sentences."""
    assert sentences_with_cue([f"It is so.\n- {sentence}"], NEXT_STEP, most=5, room=200) == [sentence]


@pytest.mark.parametrize("sentence", NEITHER)
def test_what_is_neither(sentence: str) -> None:
    """Is not: questions, pleasantries, words that only look like it."""
    assert sentences_with_cue([sentence], DECISION, most=5, room=200) == []
    assert sentences_with_cue([sentence], NEXT_STEP, most=5, room=200) == []


def test_bounds() -> None:
    """So many, each once, each of so much weight, in the order in which they were said."""
    texts = ["I will use it.", "I will use it. I will drop it. I will skip it."]
    assert sentences_with_cue(texts, DECISION, most=2, room=200) == ["I will use it.", "I will drop it."]
    assert sentences_with_cue(["I chose to go on " + "and on " * 90], DECISION, most=2, room=30) == [
        "I chose to go on and on and..."
    ]


def test_reasons() -> None:
    """Come first where there is no room for all, which stay in their order."""
    texts = ["I chose one. I chose two because it is newer.", "我选择了C。我选择了D，因为更全面。"]
    assert sentences_with_cue(texts, DECISION, most=1, room=200) == ["I chose two because it is newer."]
    assert sentences_with_cue(texts, DECISION, most=3, room=200) == [
        "I chose one.",
        "I chose two because it is newer.",
        "我选择了D，因为更全面。",
    ]
