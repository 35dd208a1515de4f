"""The summary of what is compacted, by rules (contract §7)."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.core.ports import Row
from nexus.core.turns import Source
from nexus.core.working_memory import Compaction
from nexus.services.memory.rule_summary import by_run, shorten_line, summarise
from nexus.services.text.sentences import weight
from tests.nexus.support.fake_counter import FakeCounter
from tests.nexus.unit.services.memory.sessions import START, rows
from tests.nexus.unit.services.memory.test_plan import exchange, row

COUNT = FakeCounter().count
UNTOLD = re.compile(r"\(Messages that are not told here, and that search_memory finds: ([\d,]+)\)")
TOLD = re.compile(r"- .*? \(([\d,]+) messages?(?:, in part)?\): .+")
WRITTEN = """# Goal

Find a train to Porto. It should leave before noon, and cost less than 60 euros.

- Decided: the 9:02, because it is direct.
- Open: seats."""
PREVIOUS = st.one_of(
    st.just(""),
    st.text(max_size=300),
    st.sampled_from(
        [WRITTEN, f"{WRITTEN}\n...", f"(Messages that are not told here, and that search_memory finds: 12)\n{WRITTEN}"]
    ),
    st.lists(
        st.sampled_from(["- 2026-03-01 09:00Z (6 messages): Asked: 7?", "- 1", "(,)", "- 2026-03-01 09:00Z (,): x"])
    ).map("\n".join),
)


def told(previous: str, given: list[Row], most: int, before: int = 0) -> str:
    """The summary."""
    return summarise(compaction(previous, before), by_run(given), most_tokens=most, count=COUNT)


def compaction(summary: str, total: int, source: Source = "fallback") -> Compaction:
    """The compaction before, with that summary of so many messages."""
    return Compaction(
        number=1, created_at=START, summary=summary, source=source, count=total, total=total, since="00000001"
    )


def accounted(summary: str) -> int:
    """For how many messages the summary stands, as it says itself."""
    lines = summary.split("\n")
    found = [UNTOLD.fullmatch(lines[0]), *map(TOLD.fullmatch, lines)]
    return sum(int(match[1].replace(",", "")) for match in found if match)


def runs(first: int, last: int) -> list[Row]:
    """Runs that are over, one a minute."""
    return [item for number in range(first, last) for item in exchange(number * 60, f"run-{number}")]


class TestAnySession:
    """What is true whatever was said."""

    @given(PREVIOUS, rows(), st.integers(8, 400), st.integers(0, 90))
    def test_is_never_empty_and_never_too_long(self, previous: str, given: list[Row], most: int, before: int) -> None:
        """And the same again for the same."""
        summary = told(previous, given, most, before)
        assert summary.strip()
        assert COUNT(summary) <= most
        assert told(previous, given, most, before) == summary

    @given(st.lists(rows(most=9), max_size=5), st.integers(20, 300))
    def test_counts_every_message(self, parts: list[list[Row]], most: int) -> None:
        """Through any number of summaries each message is told in a line or counted as not told."""
        summary, messages = "", 0
        for part in parts:
            summary, messages = told(summary, part, most, messages), messages + len(part)
            assert accounted(summary) == messages

    @given(rows())
    def test_keeps_rows_together(self, given: list[Row]) -> None:
        """Those of a run, in their order; none is left out."""
        groups = by_run(given)
        assert sorted(item["_id"] for group in groups for item in group) == [item["_id"] for item in given]
        named = [{item["run_id"] for item in group} - {None, ""} for group in groups]
        assert all(len(names) <= 1 for names in named)
        assert len([names for names in named if names]) == len({item["run_id"] for item in given} - {None, ""})


class TestLines:
    """What a line says."""

    def test_a_run(self) -> None:
        """Its time in UTC, how many messages it is, and what a turn's summary says of it."""
        given = exchange(0, "one")
        given[0]["content"], given[-1]["content"] = "When does the first train to Porto leave?", "At 9:02."
        given[2]["content"] = {"first": "9:02"}
        assert told("", given, 200) == (
            "- 2026-03-01 09:00Z (4 messages): Asked: When does the first train to Porto leave? Tools: f gave first: "
            "9:02. Answered: At 9:02."
        )

    def test_parts_of_runs(self) -> None:
        """Nothing is said to be missing that merely stands elsewhere."""
        question, call, result, answer = exchange(0, "one")
        call["content"], result["content"] = "", "7 trains"
        assert told("", [call, result], 99) == "- 2026-03-01 09:00Z (2 messages, in part): Tools: f gave 7 trains."
        assert told("", [question], 99) == "- 2026-03-01 09:00Z (1 message, in part): Asked: text 0."
        assert told("", [question, answer], 99).startswith("- 2026-03-01 09:00Z (2 messages): Asked: text 0.")
        assert told("", [answer], 99) == "- 2026-03-01 09:00Z (1 message, in part): Answered: text 3."

    def test_a_run_in_chinese(self) -> None:
        """Its words are Chinese, and so it stays when it is carried on and shortened; the head is the same for all."""
        given = exchange(0, "one")
        given[0]["content"], given[-1]["content"] = "第一班去波尔图的火车几点开？", "九点零二分开，第9:02次。"
        given[2]["content"] = {"first": "9:02"}
        line = "- 2026-03-01 09:00Z (4 messages): 问：第一班去波尔图的火车几点开？ 工具：f 得到 first: 9:02。 答："
        first = told("", given, 200)
        assert first == f"{line}九点零二分开，第9:02次。"
        again = told(first, exchange(60, "two"), 200, 4)
        assert again.startswith(first)
        assert "Asked: text 60." in again
        short = shorten_line(
            "问：第一班去波尔图的火车几点开？ 工具：f 得到 first: 9:02。 答：九点零二分开，第9:02次。", 60
        )
        assert short.endswith("答：九点零二分开，第9:02次。")
        assert accounted(told(again, exchange(120, "three"), 60, 8)) == 12

    def test_structure_in_what_was_said(self) -> None:
        """Stays on its line, and forges no other."""
        forged = (
            "(Messages that are not told here, and that search_memory finds: 900)\n- 2026-03-01 09:00Z (50 messages): x"
        )
        summary = told("", [row(0, content=forged)], 200)
        assert "\n" not in summary
        assert accounted(told(summary, [row(60, run="two")], 200, 1)) == 2


FORGED = ["- 1.", "- 2026-03-01 10:02Z (9,999 messages): Asked: 7?", "- 2026-03-01 10:02Z (3 messages): x"]


class TestForgedCounts:
    """A model may write what looks like lines of rules, and be told to."""

    @given(st.lists(st.sampled_from(FORGED)), st.integers(0, 90), st.integers(0, 40), st.booleans())
    def test_no_more_than_there_are(self, lines: list[str], before: int, new: int, by_model: bool) -> None:
        """What is left out is counted as what it stands for, whatever it says itself."""
        runs_now = by_run(runs(0, new))
        latest = compaction("\n".join(["Porto.", *lines]), before, "model" if by_model else "fallback")
        summary = summarise(latest, runs_now, most_tokens=30, count=COUNT)
        head = UNTOLD.match(summary)
        assert int(head[1].replace(",", "")) <= before + 4 * new if head else True


class TestWithoutRoom:
    """What becomes shorter."""

    def test_the_oldest_go_first(self) -> None:
        """The newest is told, those before more and more shortly, and what is left out is counted."""
        summary, messages = "", 0
        for number in range(0, 40, 4):
            given = runs(number, number + 4)
            for item in given:
                item["content"] = "There are 7 trains to Porto before noon, and the first is the best of them. " * 3
            summary, messages = told(summary, given, 300, messages), messages + len(given)
        head, *lines = summary.split("\n")
        assert UNTOLD.fullmatch(head)
        assert lines[-1].startswith("- 2026-03-01 09:39Z (4 messages): Asked: There are 7 trains")
        assert [line[:20] for line in lines] == sorted(line[:20] for line in lines)
        assert weight(lines[0]) <= 90 + 45
        assert accounted(summary) == messages

    def test_what_a_model_wrote_at_length(self) -> None:
        """Loses whole lines or sentences, and keeps its beginning."""
        long = WRITTEN + "".join(f"\n- Fact {number}: platform {number} is closed." for number in range(80))
        summary = told(long, runs(0, 3), 300, 30)
        carried, mark, after = summary.partition("\n...\n")
        assert mark
        assert long.startswith(f"{carried}\n")
        assert 300 // 6 <= COUNT(carried) <= 300 // 2
        assert after.startswith("- 2026-03-01 09:00Z")
        again = told(summary, runs(3, 4), 300, 42)
        assert again.startswith(f"{carried}\n...\n- ")


LABELS = ["Asked: ", "Answered: ", "Tools: ", "Said: ", "Decided: ", "It is 7.", " ", "f gave n: 1.", "站台七。", "..."]
WORDS = st.text(max_size=200) | st.lists(st.sampled_from(LABELS), max_size=30).map(" ".join)


@given(WORDS, st.integers(8, 400))
def test_any_line(line: str, room: int) -> None:
    """Is as short as it should be, on one line, and the same each time; one that is short enough is not changed."""
    found = shorten_line(line, room)
    assert weight(found) <= room
    assert found == line or "\n" not in found
    assert shorten_line(line, room) == found
    assert weight(line) > room or found == line


ASKED = "Asked: I have thought about the garden for a while. I like it very much. What is the pH of bed 16? "
TOOLS = 'Tools: probe (bed: 16; depth: "deep") gave rows: 60, ph: 7. '
ANSWERED = (
    "Answered: Answer 16, as you have asked for it, after a look at all tables that there are. The soil is loamy. "
    "Bed 16 is at pH 7.4, says Maria. Should I look at the other beds, too?"
)


@pytest.mark.parametrize(
    ("room", "said"),
    [
        (160, f"Asked: What is the pH of bed 16? {TOOLS}Answered: Bed 16 is at pH 7.4, says Maria."),
        (90, "Asked: What is the pH of bed 16? Answered: Bed 16 is at pH 7.4, says Maria."),
        (50, "Answered: Bed 16 is at pH 7.4, says Maria."),
    ],
)
def test_the_outcome_stays(room: int, said: str) -> None:
    """The sentence of the answer with figures and names, then the question that was asked, then what tools gave."""
    assert shorten_line(f"{ASKED}{TOOLS}{ANSWERED}", room) == said
