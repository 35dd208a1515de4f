"""Sentences that announce a decision or what is to come."""

import pytest

from nexus.services.turns.cues import DECISION, NEXT_STEP, announced

DECISIONS = [
    "I'll search PubMed first.",
    "I will use the second list.",
    "We’ll drop the narrative ones.",
    "I decided to keep 15 of them.",
    "I chose the larger sample instead of the newer one.",
    "Let me count them.",
    "I'm going to load both.",
    "我决定采用系统综述。",
    "我将先搜索 PubMed。",
    "改用第二个数据库。",
]
NEXT_STEPS = [
    "Next, the full texts have to be read.",
    "The next step is to read them.",
    "A follow-up is due in 2027.",
    "The quality still has to be judged.",
    "下一步需要提取数据。",
    "后续应进行质量评估。",
]
NEITHER = [
    "There are 156 articles.",
    "Let me know if you need more.",
    "Shall I decide for you?",
    "The willing buyer chases a follower.",
    "共找到156篇文献。",
    "接下来要做什么？",
    "",
]


@pytest.mark.parametrize("sentence", DECISIONS)
def test_decisions(sentence: str) -> None:
    """Are found among other sentences."""
    assert announced([f"It is so. {sentence}\nSo it is."], DECISION, most=5, room=200) == [sentence]


@pytest.mark.parametrize("sentence", NEXT_STEPS)
def test_next_steps(sentence: str) -> None:
    """Are found among other sentences."""
    assert announced([f"It is so.\n- {sentence}"], NEXT_STEP, most=5, room=200) == [sentence]


@pytest.mark.parametrize("sentence", NEITHER)
def test_what_is_neither(sentence: str) -> None:
    """Is not: questions, pleasantries, words that only look like it."""
    assert announced([sentence], DECISION, most=5, room=200) == []
    assert announced([sentence], NEXT_STEP, most=5, room=200) == []


def test_bounds() -> None:
    """So many, each once, each of so much weight, in the order in which they were said."""
    texts = ["I will count.", "I will count. I will weigh. I will stop."]
    assert announced(texts, DECISION, most=2, room=200) == ["I will count.", "I will weigh."]
    assert announced(["I will go on " + "and on " * 90], DECISION, most=2, room=30) == ["I will go on and on and on..."]
