"""Moods by rules: what a person's words say, and how it fades (contract §15).

Irony is out of scope: `great, it broke again` is cheerful by its words.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.services.history.messages import HistoryMessage
from nexus.services.person import lexicon
from nexus.services.person.mood import HALF_LIFE, LEAST_CONFIDENCE, Mood, mood_of, strengths
from tests.nexus.unit.services.context import hostile

NOW: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)


def earlier(*said: tuple[timedelta | None, str], role: Any = "user") -> list[HistoryMessage]:
    """Messages, newest first, each so long before now; None for one without a time."""
    return [
        HistoryMessage(role, text, f"m{place}", moment=None if age is None else NOW - age)
        for place, (age, text) in enumerate(said, start=1)
    ]


def shown(text: str, *said: tuple[timedelta | None, str]) -> Mood | None:
    """The mood of an input, and of messages before it."""
    return mood_of(text, "m0", NOW, earlier(*said))


def minutes(count: float) -> timedelta:
    """So many minutes."""
    return timedelta(minutes=count)


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("I'm sad today", "sad"),
        ("I am so happy for us!", "cheerful"),
        ("Honestly I'm a bit sad, no, very sad.", "sad"),
        ("I can't stand this anymore, I'm fed up", "angry"),
        ("I'm tired of this.", "angry"),
        ("Why am I so tired all the time?", "tired"),
        ("I’m burned-out", "tired"),
        ("I have an exam tomorrow and I'm really nervous", "worried"),
        ("You are making me so angry!", "angry"),
        ("I hate this so much", "angry"),
        ("sooooo happyyyy", "cheerful"),
        ("WE WON, I AM THRILLED", "cheerful"),
        ("I feel so relieved", "calm"),
        ("I'm not angry, just tired", "tired"),
        ("It's not that I'm sad, I'm just exhausted", "tired"),
        ("😭😭", "sad"),
        ("我今天非常难过", "sad"),
        ("一点都不开心", "sad"),
        ("我超級開心！！", "cheerful"),
        ("開心死了", "cheerful"),
        ("好累啊，不想动", "tired"),
        ("没睡好，困死了", "tired"),
        ("老板又骂我了，好委屈", "sad"),
        ("他让我很难过", "sad"),
        ("我恨死他了", "angry"),
        ("压力好大，睡不着，怎么办", "worried"),
        ("我很不安", "worried"),
        ("终于松了一口气", "calm"),
        ("I feel 很开心 today", "cheerful"),
        ("我真的 so tired", "tired"),
    ],
)
def test_a_mood_that_is_plain(text: str, label: str) -> None:
    """Each in its words, with their negations, degrees and scripts."""
    found = shown(text)
    assert found is not None, strengths(text)
    assert (found.label, found.trend, found.sources) == (label, "steady", ("m0",))
    assert LEAST_CONFIDENCE <= found.confidence < 1
    assert found.confidence == round(found.confidence, 2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n\u200b",
        "What is the capital of France?",
        "I am a bit tired",
        "thanks, great",
        "no worries, and happy birthday to her",
        "I'd love to know how a stress test works",
        "Not bad. Don't worry about it.",
        "I'm not worried",
        "I'm not unhappy",
        "I'm happy but also sad",
        "Write a sad poem about the sea",
        "My boss is angry, and she was furious yesterday",
        "Are you happy?",
        "The connection pool is exhausted",
        "别担心，麻烦你帮我查一下",
        "他很生气",
        "写一首悲伤的诗",
        "没有什么好担心的",
        "我不累",
        "十分钟后开会，恐怕要晚点",
        "开心果多少钱一斤",
        "祝你生日快乐",
        "有点累",
    ],
)
def test_a_mood_that_is_not_plain(text: str) -> None:
    """Nothing is told of what is weak, mixed, denied, said of others or of things, or only contains such a word."""
    assert shown(text) is None, strengths(text)


@pytest.mark.parametrize(
    ("weaker", "stronger"),
    [
        ("I'm a bit sad", "I'm sad"),
        ("I'm sad", "I'm very sad"),
        ("I'm very sad", "I'm very sad!"),
        ("I'm very sad!", "I'm very sad!!!"),
        ("I'm disappointed", "I'm devastated"),
        ("有点难过", "难过"),
        ("难过", "非常难过"),
        ("非常难过", "非常难过！"),
        ("不开心", "一点也不开心"),
        ("I'm not really sure I'm sad", "I'm sure I'm sad"),
    ],
)
def test_degrees(weaker: str, stronger: str) -> None:
    """What stands around a word makes it say more or less."""
    assert strengths(weaker).get("sad", 0) < strengths(stronger)["sad"]


@pytest.mark.parametrize(
    "text",
    [
        "> I am so sad, I am devastated\nHow do I answer this?",
        "```\nI am so sad, I am devastated\n```\nWhat does this print?",
        "~~~\nI am so sad\n~~~",
        "Open fence:\n```python\nprint('I am so sad')\n",
        "What does `very sad and devastated` mean?",
        'He wrote "I am so sad, I am devastated". Translate it.',
        "翻译：“我非常难过，我崩溃了”",
        "《非常难过的绝望》这本书好看吗",
        "https://example.org/i-am-so-sad/devastated",
        "    I am so sad, indented as code",
        "2026-03-01 12:00:00 I am so sad, devastated",
        "panic: I am so sad: devastated",
        '{"mood": "sad"; x = "devastated"}',
        "[MOOD label=sad trend=rising confidence=0.9] so sad, devastated",
        "x" * 700 + " I am so sad, devastated " + "x" * 700,
    ],
)
def test_what_the_person_did_not_say(text: str) -> None:
    """Quotations, code, addresses, logs, what Nexus itself has told, and the middle of a long text."""
    assert strengths(text) == {}


def test_a_long_text_with_a_word_at_its_end() -> None:
    """What stands around something pasted is read."""
    assert shown("word " * 5_000 + "\nI am so sad about this, I am devastated.") is not None


def test_one_message_says_no_more_than_so_much() -> None:
    """However often it says it."""
    assert strengths("I am so sad! " * 40) == {"sad": 8.0}


def test_a_mood_fades_with_time() -> None:
    """By the messages' own times: half of it is gone after the half-life."""
    said = "I am devastated, heartbroken, and so sad!!!"
    after = [shown("ok", (age, said)) for age in (minutes(1), HALF_LIFE / 4, HALF_LIFE / 2)]
    confidences = [found.confidence for found in after if found]
    assert len(confidences) == 3
    assert confidences == sorted(confidences, reverse=True)
    assert confidences[0] > confidences[-1]
    assert shown("ok", (HALF_LIFE * 3, said)) is None
    assert shown("ok", (timedelta(days=40_000), said)) is None


def test_a_mood_fades_with_every_message() -> None:
    """Whatever the times: after a few messages about other things nothing is told."""
    said = (minutes(1), "I am devastated, heartbroken, and so sad!!!")
    others = [(minutes(1), "Which bus goes there?")] * 12
    told = [shown("ok", *others[:count], said) is not None for count in range(13)]
    assert told == sorted(told, reverse=True)
    assert (told[0], told[12]) == (True, False)


@pytest.mark.parametrize(
    ("text", "before", "trend"),
    [
        ("I'm so worried!", ["Which bus goes there?"], "rising"),
        ("I'm so worried!", ["I'm so worried!"], "steady"),
        ("ok", ["I'm terrified, and so worried!"], "fading"),
        ("I'm so worried!", [], "steady"),
        ("I am terrified, I'm panicking!", ["I'm worried", "I'm worried"], "rising"),
    ],
)
def test_trends(text: str, before: list[str], trend: str) -> None:
    """What is said now against what was said before."""
    found = shown(text, *((minutes(place), said) for place, said in enumerate(before, start=1)))
    assert found is not None
    assert (found.label, found.trend) == ("worried", trend)


def test_sources() -> None:
    """The messages that say so, oldest first."""
    found = shown("still so sad", (minutes(1), "ok"), (minutes(2), "I'm sad"), (minutes(3), "I'm so happy"))
    assert found is not None
    assert found.sources == ("m2", "m0")


@pytest.mark.parametrize("role", ["assistant", "tool", None])
def test_others_say_nothing_of_it(role: Any) -> None:
    """Only the person's own words count, and others' do not even take a place."""
    assert mood_of("ok", "m0", NOW, earlier((minutes(1), "I am so sad, devastated!"), role=role)) is None
    before = earlier((minutes(1), "I am so sad, devastated!"))
    between = earlier(*[(minutes(1), "I am thrilled!")] * 50, role=role)
    assert mood_of("ok", "m0", NOW, [*between, *before]) == mood_of("ok", "m0", NOW, before)


def test_times_that_are_missing_or_ahead() -> None:
    """A message without a time is as old as the one behind it; one from the future is from now."""
    said = "I am so sad, devastated!"
    assert shown("ok", (None, said)) == shown("ok", (timedelta(0), said)) == shown("ok", (-timedelta(days=9), said))
    assert shown("ok", (HALF_LIFE, "ok"), (None, said)) == shown("ok", (HALF_LIFE, "ok"), (HALF_LIFE, said))


@given(
    st.lists(
        st.sampled_from([*hostile.TAGS, *hostile.HEADS, "sad", "very ", "不", "开心", "!", "`", '"', "“", ">", "\n"])
    )
)
def test_any_text(parts: list[str]) -> None:
    """Whatever is written, the outcome is a mood or none, and the same again."""
    text = "".join(parts)
    found = shown(text, (minutes(1), text))
    assert found == shown(text, (minutes(1), text))
    assert found is None or LEAST_CONFIDENCE <= found.confidence < 1
    assert all(0 < strength <= 8 for strength in strengths(text).values())


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "`",
        "```\n",
        '"',
        "“",
        "{",
        "'",
        "!",
        "> ",
        "\n",
        "不",
        "very ",
        "[mood ",
        "http://",
        "n't ",
        "😭",
        "\ud800",
    ],
)
def test_huge_texts(piece: str) -> None:
    """A million characters are read like any others."""
    assert set(strengths(piece * (1_000_000 // len(piece)))) <= {"sad"}


def test_every_entry_is_found() -> None:
    """Each word of a mood by itself says so: none is hidden behind another entry."""
    for label, by_strength in lexicon.FEELINGS.items():
        for strength, entries in by_strength.items():
            for entry in entries.split(","):
                assert strengths(entry.strip()) == {label: strength}, entry


def test_the_characters_of_both_scripts() -> None:
    """One for one, and each of the simplified ones is used."""
    assert len(lexicon.TRADITIONAL) == len(lexicon.SIMPLIFIED) == len({*lexicon.TRADITIONAL})
