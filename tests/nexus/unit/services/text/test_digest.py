"""The gist of a text, of any JSON and of calls of tools as one line within a weight."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.core.turns import ToolOutcome
from nexus.services.text.content import is_error, opened
from nexus.services.text.digest import (
    DECISION,
    NEXT_STEP,
    call_and_result,
    call_with_arguments,
    describe_calls,
    digest,
    excerpt,
    figures,
    has_figure,
    outline,
    read_result,
    result_of_call,
    sentences_with_cue,
    tools_used,
)
from nexus.services.text.sentences import printable_line, weight
from tests.nexus.unit.services.text.test_sentences import hard

REPORT = """## What was found

I looked into the matter. Searching took a while. The search found 156 articles. They are of many kinds.
Of these, 15 are systematic reviews. Some were hard to get. The pooled HR is 0.86 (95% CI 0.80-0.93).
Nobody was surprised. I hope this helps."""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("HR 0.86, 95% CI 0.80-0.93.", ["0.86", "95%", "0.80-0.93"]),
        ("45,678 of 1 234, at 12:30 on 3/4.", ["45,678", "1", "234", "12:30", "3/4"]),
        ("一百五十六篇，其中十五篇；一些", ["一百五十六", "十五"]),
        ("1,,,, and v2.", ["1", "2"]),
        ("none", []),
    ],
)
def test_figures(text: str, found: list[str]) -> None:
    """Numbers as they are written, Chinese ones too; a Chinese numeral alone is part of a word."""
    assert figures(text) == found
    assert has_figure(text) == bool(found)


class TestDigest:
    """What is kept of a text, and what shows that it is not all."""

    def test_all_of_it_where_it_fits(self) -> None:
        """On one line."""
        assert digest("It is so.\n\nReally: yes\n- no", 100) == "It is so. Really: yes; no"

    def test_the_sentences_that_count(self) -> None:
        """First, last and those with figures, in their order, with gaps marked."""
        assert digest(REPORT, 240) == (
            "... I looked into the matter. ... The search found 156 articles. ... Of these, 15 are systematic reviews. "
            "... The pooled HR is 0.86 (95% CI 0.80-0.93). ... I hope this helps."
        )

    def test_little_room(self) -> None:
        """The first sentence counts most, then the last."""
        assert digest(REPORT, 80) == "... I looked into the matter. ... I hope this helps."
        assert digest(REPORT, 30) == "... I looked..."

    def test_a_number_that_has_no_room(self) -> None:
        """Is left out rather than cut, whatever its digits are."""
        assert digest("١٥٦HR 0.86, ", 8) == "..."
        assert digest("12345678", 8) == "12345678"
        assert digest("123456789", 8) == "..."

    @given(hard | st.lists(st.sampled_from(REPORT.split(". ")), max_size=40).map(". ".join), st.integers(8, 400))
    def test_any_text(self, text: str, room: int) -> None:
        """It fits on one line, and it has no number that the text does not have."""
        shown = digest(text, room)
        assert weight(shown) <= room
        assert shown == printable_line(shown)
        shown.encode()
        if not re.search(r"[^\s]{40}", text):
            assert set(re.findall(r"\d+", shown)) <= set(re.findall(r"\d+", printable_line(text)))


class TestExcerpt:
    """A sentence that is too long."""

    def test_numbers_with_the_words_around_them(self) -> None:
        """What is counted is told with how many there are."""
        words = "and so it goes on with many more words about nothing in particular "
        text = f"The work began {words * 3}until 156 articles were found {words * 3}with an HR of 0.86 in the end."
        assert excerpt(text, 220) == (
            "The work began and so it goes on with many more words about nothing in ... about nothing in particular "
            "until 156 articles were found and ... nothing in particular with an HR of 0.86 in the end."
        )

    @given(hard.map(printable_line), st.integers(8, 300))
    def test_any_sentence(self, text: str, room: int) -> None:
        """It fits; a short one stays."""
        assert weight(excerpt(text, room)) <= room
        assert excerpt(text, weight(text)) == text


SEARCH = {
    "status": "ok",
    "query_translation": "SGLT2 inhibitors[mh] AND cardiovascular outcomes AND type 2 diabetes",
    "total": 156,
    "pmids": [str(number) for number in range(30_000_000, 30_000_040)],
    "articles": [{"title": "Outcomes with gliflozins", "year": 2018 + n} for n in range(6)],
}

_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
documents = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=8), inner, max_size=6)
)
_names = st.sampled_from(["total", "hr", "ci", "year 2018", "stats", "名称"])
_numbers = st.integers(-(10**9), 10**9) | st.floats(-1_000, 1_000).map(lambda number: round(number, 2))
short_documents = st.recursive(
    _numbers | st.sampled_from(["156 articles", "共15篇", "none"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_names, inner, max_size=4),
    max_leaves=8,
).filter(lambda document: len(json.dumps(document)) <= 120)


def numbers(text: str) -> set[str]:
    """The digits in it, without what may be a sign or a separator."""
    return set(re.findall(r"\d+", text))


class TestWhole:
    """What is short is told as it is."""

    @pytest.mark.parametrize(
        ("value", "line"),
        [
            ({"total": 156, "ok": True, "error": None}, "total: 156; ok: true; error: none"),
            ({"hr": 0.86, "ci": [0.8, 0.93]}, "hr: 0.86; ci: 0.8, 0.93"),
            ({"a": {"b": 1, "c": {"d": 2, "e": 3}}, "f": 4}, "a.b: 1; a.c.d: 2; e: 3; f: 4"),
            ([{"id": 1, "x": 2}, {"id": 3}], "id: 1; x: 2; id: 3"),
            ({"ids": [1, 2, 3, 4]}, "ids: 4 in all, 1, 2, 3, 4"),
            ([[1, 2], [3, 4]], "1, 2; 3, 4"),
            ({"found": [], "more": {}, "text": ""}, "found: none; more: none; text: none"),
            ([], "none"),
            ({}, "none"),
            (42, "42"),
            (0.86, "0.86"),
            (False, "false"),
            ({"text": "on\ntwo lines"}, "text: on two lines"),
            ({"": 1, 2: 3}, ": 1; 2: 3"),
        ],
        ids=repr,
    )
    def test_documents(self, value: Any, line: str) -> None:
        """Keys with their values; the keys around them where they change; how many there are in a longer list."""
        assert outline(value, 300) == line

    def test_numbers_stay_as_they_are_written(self) -> None:
        """In a text that is JSON."""
        text = '{"hr": 0.86, "ci": [0.80, 0.930], "n": 1e5, "big": 1234567890123456789012345678901234567890}'
        assert outline(text, 300) == "hr: 0.86; ci: 0.80, 0.930; n: 1e5; big: 1234567890123456789012345678901234567890"

    @pytest.mark.parametrize("text", ["Found 156 articles.", "[not JSON", "{", '{"a": 1} and more', "", "  "])
    def test_texts(self, text: str) -> None:
        """Are texts, unless they are JSON."""
        assert outline(text, 100) == printable_line(text)

    @given(short_documents, st.booleans())
    def test_every_number_of_a_short_document(self, document: Any, as_text: bool) -> None:
        """Is there, whether it comes as JSON or as text."""
        text = json.dumps(document, ensure_ascii=False)
        assert numbers(text) <= numbers(outline(text if as_text else document, 400))


class TestKeyFigures:
    """What is told of a long document."""

    def test_a_search(self) -> None:
        """Figures first, then what is nearest, the first entries of lists, and a mark that there is more."""
        assert outline(SEARCH, 260) == (
            "status: ok; query_translation: SGLT2 inhibitors[mh] AND cardiovascular outcomes AND type 2 diabetes; "
            "total: 156; pmids: 40 in all, 30000000, 30000001, 30000002, 30000003; articles: 6 in all; "
            "articles.year: 2018; articles.year: 2019; articles.year: 2020; ..."
        )
        assert outline(SEARCH, 60) == "total: 156; pmids: 40 in all, 30000000, 30000001; ..."

    def test_long_texts_in_it(self) -> None:
        """Leave room to others, and keep their own figures."""
        value = {"content": "Nothing to see here. " * 50 + "156 articles. " + "Bye. " * 50, "score": 0.93}
        assert outline(value, 120) == "content: Nothing to see here. ... 156 articles. ... Bye.; score: 0.93"


class TestOpened:
    """What is in a result."""

    @pytest.mark.parametrize(
        ("value", "found"),
        [
            ('{"a": 0.80}', {"a": "0.80"}),
            ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
            ({"content": [{"type": "text", "text": '{"total": 156}'}], "isError": False}, {"total": "156"}),
            ({"content": [{"type": "text", "text": "no"}], "isError": True, "_meta": {}}, "no"),
            ('{"content": [{"type": "text", "text": "[0.80]"}], "structuredContent": {"hr": 0.8}}', ["0.80"]),
            ({"content": [{"type": "text", "text": "no"}], "page": 2}, None),
            ({"content": [{"type": "image", "data": "x"}], "isError": False}, None),
            ({"content": "x", "isError": False}, None),
            ({"content": None}, None),
            ({}, None),
            ([], None),
            (["a", "b"], None),
            ("[" * 100_000, None),
            (7, None),
        ],
        ids=lambda value: repr(value)[:40],
    )
    def test_results(self, value: Any, found: Any) -> None:
        """The text of parts, as servers of tools give it, and the document in a text; anything else is itself."""
        assert opened(value) == (value if found is None else found)

    @pytest.mark.parametrize(
        ("value", "is_one"),
        [
            ({"content": [{"type": "text", "text": "no"}], "isError": True}, True),
            ('{"content": [], "isError": true}', True),
            ({"content": [{"type": "text", "text": "no"}], "isError": False}, False),
            ({"content": [{"type": "text", "text": "no"}], "isError": "true"}, False),
            ({"isError": True}, False),
            ({"content": [], "isError": True, "page": 2}, False),
            ("isError: true", False),
            (None, False),
        ],
        ids=repr,
    )
    def test_errors(self, value: Any, is_one: bool) -> None:
        """Are those that say so in the form in which servers of tools do, which says so nowhere once it is opened."""
        assert is_error(value) is is_one


class TestHostile:
    """Documents of any shape and size."""

    @given(documents, st.integers(16, 400))
    def test_any_document(self, document: Any, room: int) -> None:
        """It fits on one line that UTF-8 can carry."""
        line = outline(document, room)
        assert weight(line) <= room
        assert line == printable_line(line)
        line.encode()

    @pytest.mark.parametrize("depth", [70, 5_000, 200_000])
    def test_depth(self, depth: int) -> None:
        """Is not followed for ever."""
        document: Any = 156
        for _ in range(depth):
            document = [document]
        assert outline(document, 100) == "..."
        assert weight(outline('{"a":' * depth + "1" + "}" * depth, 100)) <= 100

    @pytest.mark.parametrize("number", [10**5_000, float("nan"), float("inf"), -0.0, 1e300], ids=list("abcde"))
    def test_numbers(self, number: float) -> None:
        """Of any size, and what is none."""
        assert 0 < weight(outline({"n": number}, 60)) <= 60

    def test_keys_of_any_length(self) -> None:
        """Are cut."""
        assert weight(outline({"k" * 100_000: 5}, 200)) <= 200
        assert outline({"k" * 100_000: 5}, 50) == "..."


DECISIONS = [
    *("I'll search PubMed first.", "I will use the second list.", "We’ll drop the narrative ones."),
    *("I'm going to load both because one may be behind a paywall.", "Let me count them before they are read."),
    *("I decided to keep 15 of them.", "I chose the larger sample instead of the newer one.", "我决定采用系统综述。"),
    *("我将先搜索 PubMed。", "改用第二个数据库。"),
    "Ich habe mich entschieden, nur abgeschlossene Buchungen zu zählen, weil stornierte z. B. doppelt vorkamen.",
    *("Ich werde die zweite Liste nehmen, weil sie neuer ist.", "J'ai décidé de garder les 15 premiers."),
    *("He elegido la segunda lista porque es más reciente.", "Decidí usar PubMed."),
]
NEXT_STEPS = [
    *("Next, the full texts have to be read.", "The next step is to read them.", "A follow-up is due in 2027."),
    *("The quality still has to be judged.", "下一步需要提取数据。", "后续应进行质量评估。"),
    *("Als Nächstes sollten wir die Ursachen in Süd untersuchen.", "La prochaine étape est de lire les textes."),
    "El siguiente paso es leerlos.",
]
NEITHER = [
    *("There are 156 articles.", "Let me know if you need more.", "I will look that up.", "Let's see."),
    *("We will be in touch.", "Let me count them.", "I'm going to load both.", "我会查一下。", "Ich werde nachsehen."),
    *("Je vais regarder.", "The sales of cars fell because of the weather.", "Shall I decide for you?"),
    *("The willing buyer chases a follower.", "共找到156篇文献。", "接下来要做什么？", ""),
]


@pytest.mark.parametrize(
    ("cue", "sentence"), [*((DECISION, text) for text in DECISIONS), *((NEXT_STEP, text) for text in NEXT_STEPS)]
)
def test_decisions_and_next_steps(cue: re.Pattern[str], sentence: str) -> None:
    """They are found among other sentences."""
    assert sentences_with_cue([f"It is so. {sentence}\nSo it is."], cue, most=5, room=200) == [sentence]


@pytest.mark.parametrize("sentence", NEITHER)
def test_other_sentences(sentence: str) -> None:
    """Questions, pleasantries, and words that only look like a cue are left out."""
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


def outcome(name: str = "f", arguments: Any = None, result: Any = None, success: bool | None = None) -> ToolOutcome:
    """A call and what came of it."""
    return ToolOutcome(name=name, arguments=arguments, success=success, result=result)


class TestOneCall:
    """Its arguments, and what came of it."""

    @pytest.mark.parametrize(
        ("call", "sentence"),
        [
            (
                outcome("find", {"q": "SGLT2", "limit": 5}, {"total": 156}, True),
                "find (q: SGLT2; limit: 5) gave total: 156",
            ),
            (outcome("find", {}, "15 reviews are left.", None), "find gave 15 reviews are left."),
            (outcome("find", "look for beans", 0, True), "find (look for beans) gave 0"),
            (outcome("find", {"q": ""}, "", True), "find (q: none) gave an empty result"),
            (outcome("find", None, [], True), "find gave none"),
            (outcome("load", {"pmid": 5}, "time-out after 30 s", False), "load (pmid: 5) failed: time-out after 30 s"),
            (outcome("load", {}, {"code": 404, "error": "not found"}, False), "load failed: not found"),
            (outcome("load", {}, {"code": 404}, False), "load failed: code: 404"),
            (outcome("load", {}, "", False), "load failed"),
            (outcome("load", {"pmid": 5}), "load (pmid: 5) has no result"),
            (outcome("\u200b\n", {}, 1), "unknown gave 1"),
            (outcome("a\nb", {"x\ny": "1\n2"}, "3\n4"), "a b (x y: 1 2) gave 3; 4"),
        ],
        ids=repr,
    )
    def test_what_is_told(self, call: ToolOutcome, sentence: str) -> None:
        """Success with what it gave, failure with its reason, loss as such."""
        assert call_and_result(call, 300) == sentence

    def test_errors_of_servers_of_tools(self) -> None:
        """They are failures with their text as the reason, whether or not the call itself succeeded."""
        result = {"content": [{"type": "text", "text": "Error from server: no index"}], "isError": True}
        for success in (True, False, None):
            found = read_result(outcome("f", {}, result, success))
            assert call_and_result(found, 300) == "f failed: Error from server: no index"
        fine = read_result(outcome("f", {}, {**result, "isError": False}, True))
        assert call_and_result(fine, 300) == "f gave Error from server: no index"

    def test_little_room(self) -> None:
        """It is shared by arguments and results."""
        call = outcome("fetch", {"url": "https://a.example/" + "x" * 200}, "A long story. " * 30 + "156 articles.")
        assert call_and_result(call, 100) == (
            "fetch (url: https://a.example/xxxxxxxxxxxxxxxxx...) gave A long story. ... 156 articles."
        )
        assert call_and_result(call, 20) == "fetch gave A long..."
        assert call_and_result(call, 12) == "fetch gave a result"


class TestSeveralCalls:
    """As many as there is room for."""

    def test_all(self) -> None:
        """Are told in their order where they fit."""
        calls = [outcome("find", {"q": f"topic {n}"}, {"hits": n}, True) for n in range(12)]
        assert describe_calls(calls, call_and_result, 600) == (
            [f"find (q: topic {n}) gave hits: {n}" for n in range(12)],
            [],
        )
        assert describe_calls([], call_and_result, 600) == ([], [])

    def test_those_with_figures(self) -> None:
        """Are told before others, but for the last; a failure has none that counts, whatever its reason says."""
        calls = [outcome("find", {}, "nothing of any use to anybody", True) for _ in range(40)]
        calls[5] = outcome("find", {}, "HR 0.86, 95% CI 0.74-0.99", True)
        calls[6] = outcome("find", {}, "time-out after 30 s", False)
        sentences, others = describe_calls(calls, call_and_result, 250)
        assert sentences == ["find gave HR 0.86, 95% CI 0.74-0.99", *["find gave nothing of any use to anybody"] * 2]
        assert others == [*calls[:5], *calls[6:38]]

    def test_little_room(self) -> None:
        """Is enough for one."""
        calls = [*[outcome("find", {"q": "x" * 90}, "y" * 90, True)] * 2, outcome("load", {}, 7, True)]
        assert describe_calls(calls, call_and_result, 200) == (["load gave 7"], calls[:2])

    @given(
        st.lists(st.builds(outcome, st.sampled_from("abc"), st.none() | documents, documents), max_size=12),
        st.integers(280, 1_500),
    )
    def test_no_call_is_lost(self, calls: list[ToolOutcome], room: int) -> None:
        """Each is told or among the others, and all that is told has room."""
        sentences, others = describe_calls(calls, call_and_result, room)
        assert len(sentences) + len(others) == len(calls)
        assert bool(sentences) == bool(calls)
        assert sum(weight(sentence) + 2 for sentence in sentences) <= room + 40


def test_tools_used() -> None:
    """How often each was called, and how many calls failed; with little room one is named, the others are counted."""
    good, bad, lost = outcome("find", {}, 1, True), outcome("load", {}, 1, False), outcome("find", {})
    assert tools_used([], 100) == ""
    assert tools_used([good], 100, also=True) == "Also used find."
    assert tools_used([good, bad, good, lost], 100) == (
        "Used find 3 times, load (of 4 calls 1 failed, 1 without a result)."
    )
    calls = [outcome(f"tool_{number}", {}, 1) for number in range(2_000)]
    assert tools_used(calls, 60) == "Used tool_0, tool_1, tool_2, tool_3 and 1,996 more."
    assert tools_used(calls, 0) == "Used tool_0 and 1,999 more."


@given(st.builds(outcome, st.text(max_size=9), documents, documents, st.none() | st.booleans()), st.integers(60, 400))
def test_any_call(call: ToolOutcome, room: int) -> None:
    """What is told of it is one line that UTF-8 can carry, not much heavier than allowed."""
    for teller in (call_and_result, call_with_arguments, result_of_call):
        line = teller(read_result(call), room)
        assert line == printable_line(line)
        assert weight(line) <= room + 40
        line.encode()
