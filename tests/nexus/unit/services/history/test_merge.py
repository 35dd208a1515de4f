"""Stored rows, read leniently and merged by run (contract §2, §4.3)."""

import copy
import random
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.services.context.dialogue import MemoryFormatter
from nexus.services.history.merge import Utterance, merge, read_dialogue

merge_by_run_id = MemoryFormatter._merge_messages_by_run_id

CALL: Final = {"id": "c", "type": "function", "function": {"name": "web_search", "arguments": '{"query": "AI"}'}}


def row(role: Any, content: Any, minute: Any, run_id: Any = "r1", **other: Any) -> dict[str, Any]:
    """A stored row; `minute` past 15:00, or its timestamp."""
    timestamp = f"2025-12-10T15:{minute:02}:00Z" if isinstance(minute, int) else minute
    return {
        "id": f"{role}_{content}",
        "run_id": run_id,
        "role": role,
        "content": content,
        "timestamp": timestamp,
    } | other


def merged(*rows: Any) -> list[Utterance]:
    """The rows as utterances, newest first."""
    return merge(read_dialogue(rows)[0])


def told(*rows: Any) -> list[str]:
    """What is said, oldest first, the texts of one utterance joined by `+`."""
    return ["+".join(entry.text for entry in utterance.entries) for utterance in merged(*rows)[::-1]]


def repaired(*rows: Any) -> int:
    """How many rows had to be repaired or left out."""
    return read_dialogue(rows)[1]


def test_merge_messages_by_run_id_simple() -> None:
    """The AI rows of a run become one, newest first, with the latest of their times; the human stays as it is."""
    human, first, second = (
        row("HUMAN", "Search for AI", 30),
        row("AI", "I'll search...", 31, metadata={"tool_calls": [CALL]}),
        row("AI", "Based on search results...", 32, metadata={"tool_calls": None}),
    )
    assert merge_by_run_id([human, first, second]) == [
        {
            "id": "merged_ai_r1",
            "run_id": "r1",
            "role": "ai",
            "content": "I'll search...\n[tool_use:web_search, query:AI]\nBased on search results...",
            "timestamp": "2025-12-10T15:32:00Z",
            "metadata": {"source": "merged", "original_count": 2, "has_tool_calls": True},
        },
        human,
    ]


def test_merge_messages_by_run_id_multiple_human() -> None:
    """All humans of a run are kept, unchanged."""
    one, two = row("human", "one", 30), row("human", "two", 31)
    newest, *humans = merge_by_run_id([one, row("ai", "a", 32), two, row("ai", "b", 33)])
    assert (newest["id"], newest["content"]) == ("merged_ai_r1", "a\nb")
    assert newest["metadata"] == {"source": "merged", "original_count": 2, "has_tool_calls": False}
    assert humans == [two, one]


@pytest.mark.parametrize("run_id", [None, "", 7])
def test_merge_messages_by_run_id_no_run_id(run_id: Any) -> None:
    """Rows without a run id stay as they are, and are never merged with each other."""
    rows = [row("HUMAN", "q", 30, run_id), row("AI", "a", 31, run_id), row("AI", "b", 32, run_id)]
    assert merge_by_run_id(rows) == rows[::-1]


def test_a_merged_answer_without_text_or_calls_has_a_placeholder() -> None:
    """Also when its texts are blank."""
    assert merge_by_run_id([row("AI", "", 31), row("AI", " \n", 32)])[0]["content"] == "[工具调用结果]"


@pytest.mark.parametrize("role", ["TOOL", "tool", "SYSTEM", "COMMAND"])
def test_other_roles_are_left_out_without_being_faults(role: str) -> None:
    """Tool results and the like are no part of the memory."""
    rows = [row("Human", "q", 30), row(role, {"x": 1}, 31), row("Ai", "a", 32)]
    assert told(*rows) == ["q", "a"]
    assert repaired(*rows) == 0


def test_the_current_run_is_left_out() -> None:
    """Its own input and answers are not the past; no current run leaves out nothing."""
    rows = [row("HUMAN", "q", 30), row("HUMAN", "now", 31, "r2"), row("HUMAN", "old", 29, "")]
    entries, _ = read_dialogue(rows, current_run_id="r2")
    assert [entry.text for entry in entries] == ["old", "q"]
    assert [entry.text for entry in read_dialogue(rows, current_run_id="")[0]] == ["old", "now", "q"]


class TestOrder:
    """Moments decide, then humans before the AI of their run, then stored order."""

    def test_equal_times_are_in_stored_order_however_the_rows_come(self) -> None:
        """`_id` tells the order, rows that are none of them notwithstanding."""
        ids = [f"{n:024x}" for n in range(6)]
        roles = ["HUMAN", "AI", "AI", "HUMAN", "AI", "HUMAN"]
        runs = ["r1", "r1", "r1", "r2", "r2", ""]
        rows: list[Any] = [
            row(role, f"t{n}", 30, run, _id=ids[n]) for n, (role, run) in enumerate(zip(roles, runs, strict=True))
        ]
        for seed in range(20):
            shuffled = [*rows, None]
            random.Random(seed).shuffle(shuffled)  # noqa: S311 - makes test data
            assert told(*shuffled) == ["t0", "t1+t2", "t3", "t4", "t5"]

    def test_equal_times_without_ids_as_a_store_answers(self) -> None:
        """Newest first, so the last row is the oldest."""
        rows = [row("AI", "b", 30), row("AI", "a", 30), row("HUMAN", "q", 30), row("HUMAN", "old", 29, "r0")]
        assert told(*rows) == ["old", "q", "a+b"]
        assert told(*rows[:3]) == ["q", "a+b"]

    def test_a_human_comes_before_the_answer_of_its_run_at_the_same_time(self) -> None:
        """Even if it was stored later."""
        assert told(row("HUMAN", "q", 30), row("AI", "a", 30)) == ["q", "a"]
        assert told(row("AI", "a", 30), row("HUMAN", "q", 30)) == ["q", "a"]

    @pytest.mark.parametrize(
        ("earlier", "later"),
        [
            ("2025-12-10T23:00:00+08:00", "2025-12-10T15:00:01Z"),
            ("2025-12-10T15:00:00Z", "2025-12-10T15:00:00.001+00:00"),
            (datetime(2025, 12, 10, 15), "2025-12-10T10:00:01-05:00"),  # noqa: DTZ001 - as MongoDB gives it
            ("2025-12-10T15:00:00", datetime(2025, 12, 10, 15, 0, 1, tzinfo=UTC)),
            ("9999-12-31T23:59:58Z", "9999-12-31T23:59:59Z"),
            ("0001-01-01T00:00:00Z", "0001-01-01T00:00:01Z"),
        ],
    )
    def test_times_are_compared_as_moments(self, earlier: Any, later: Any) -> None:
        """Never as text, whatever their form."""
        rows = [row("HUMAN", "earlier", earlier, "r1"), row("HUMAN", "later", later, "r2")]
        assert told(*rows) == told(*rows[::-1]) == ["earlier", "later"]

    def test_rows_without_time_come_first(self) -> None:
        """Where their run has no time either."""
        rows = [row("HUMAN", "q", 30), row("HUMAN", "x", None, ""), row("AI", "y", "garbage", "r9")]
        assert told(*rows) == ["y", "x", "q"]

    def test_a_row_without_time_stands_where_it_was_stored(self) -> None:
        """After the row of its run before it; the first of a run with the run's first."""
        rows = [
            row("HUMAN", "q", 30),
            row("AI", "a", 31),
            row("AI", "b", None),
            row("AI", "c", 33),
            row("HUMAN", "z", 40, "r2"),
        ]
        assert told(*rows) == ["q", "a+b+c", "z"]
        assert told(row("HUMAN", "old", 1, "r0"), row("HUMAN", "q", None), row("AI", "a", 31)) == ["old", "q", "a"]
        assert told(row("HUMAN", "q", 30), row("AI", "a", None), row("HUMAN", "z", 40, "r2")) == ["q", "a", "z"]


class TestMalformedRows:
    """One of them never spoils the rest: it is repaired or left out, and counted."""

    @pytest.mark.parametrize(
        "bad",
        [
            *(None, 7, "text", [], [row("HUMAN", "x", 1)], {}, {"role": None}, {"role": 7}, {"role": "critic"}),
            *(row(None, "x", 31), row("HUMAN", None, 31), {"role": "HUMAN"}),
        ],
    )
    def test_what_cannot_be_shown_is_left_out_and_counted(self, bad: Any) -> None:
        """No row, no role, or a human that said nothing."""
        good = [row("HUMAN", "q", 30), row("AI", "a", 32)]
        assert told(good[0], bad, good[1]) == ["q", "a"]
        assert repaired(good[0], bad, good[1]) == 1
        assert merge_by_run_id([good[0], bad]) == [good[0]]

    @pytest.mark.parametrize(
        ("content", "text"),
        [
            ({"a": 1}, '{"a":1}'),
            (["x", 1], '["x",1]'),
            (7, "7"),
            (False, "false"),
        ],
    )
    @pytest.mark.parametrize("role", ["HUMAN", "AI"])
    def test_content_that_is_not_understood_is_told_as_json(self, role: str, content: Any, text: str) -> None:
        """And counted."""
        assert told(row(role, content, 30)) == [text]
        assert repaired(row(role, content, 30)) == 1

    @pytest.mark.parametrize(
        ("content", "text"),
        [
            ([], ""),
            ([{"type": "text", "text": "a"}, "b"], "a\nb"),
            ([{"type": "text", "text": ""}], ""),
            ([{"type": "image"}], "[image]"),
        ],
    )
    @pytest.mark.parametrize("role", ["HUMAN", "AI"])
    def test_parts_are_told_as_text(self, role: str, content: Any, text: str) -> None:
        """The texts, and words for media; nothing has to be repaired."""
        assert told(row(role, content, 30)) == [text]
        assert repaired(row(role, content, 30)) == 0

    def test_an_answer_without_content_is_empty(self) -> None:
        """As it should have been stored; which is a fault unless it made calls."""
        assert told(row("AI", None, 30)) == [""]
        assert repaired(row("AI", None, 30)) == 1
        assert repaired(row("AI", None, 30, metadata={"tool_calls": [CALL]})) == 0

    def test_tool_calls_of_a_human_do_not_count(self) -> None:
        """Only a model makes calls."""
        assert read_dialogue([row("HUMAN", "q", 30, metadata={"tool_calls": [CALL]})])[0][0].calls == ()

    @pytest.mark.parametrize("timestamp", [None, "", "yesterday", "7.5", {}, float("nan")])
    def test_an_unreadable_time_is_counted(self, timestamp: Any) -> None:
        """The row is shown without one."""
        rows = [row("HUMAN", "q", timestamp)]
        assert [entry.moment for entry in read_dialogue(rows)[0]] == [None]
        assert repaired(*rows) == 1

    @given(
        st.lists(
            st.none()
            | st.integers()
            | st.fixed_dictionaries(
                {},
                optional={
                    "_id": st.sampled_from(["0" * 24, "1" * 24, "x", None]),
                    "id": st.text(max_size=3) | st.none(),
                    "run_id": st.sampled_from(["r1", "r2", "", None, 7]),
                    "role": st.sampled_from(["HUMAN", "ai", "TOOL", "", None, 7]),
                    "content": st.text(max_size=5)
                    | st.none()
                    | st.integers()
                    | st.lists(st.text(max_size=2), max_size=2),
                    "timestamp": st.datetimes(timezones=st.none() | st.timezones()) | st.text(max_size=3) | st.none(),
                    "metadata": st.none() | st.fixed_dictionaries({"tool_calls": st.none() | st.just([CALL, None])}),
                },
            ),
            max_size=12,
        )
    )
    def test_any_rows_at_all(self, rows: list[Any]) -> None:
        """Nothing raises, nothing is changed, every row shown is in exactly one message, and newest come first."""
        before = copy.deepcopy(rows)
        entries, faults = read_dialogue(rows)
        utterances = merge(entries)
        assert rows == before
        assert 0 <= faults <= len(rows)
        assert sorted(id(entry) for utterance in utterances for entry in utterance.entries) == sorted(map(id, entries))
        assert [u[:4] for u in utterances] == sorted((u[:4] for u in utterances), reverse=True)
        assert sum(utterance.is_merged for utterance in utterances) == len(
            {e.run_id for e in entries if e.role == "assistant" and e.run_id}
        )
        assert len(merge_by_run_id(rows)) == len(utterances)


def test_an_answer_never_stands_before_its_question() -> None:
    """With the model's clock behind the person's, each answer still follows its own question."""
    start = datetime(2025, 12, 10, 15, 30, tzinfo=UTC)
    rows = []
    for number in range(3):
        asked = start + timedelta(minutes=number)
        common = {"run_id": f"r{number}", "metadata": {}}
        rows.append({**common, "id": f"h{number}", "role": "HUMAN", "content": "q", "timestamp": asked})
        answered = asked - timedelta(seconds=90)
        rows.append({**common, "id": f"a{number}", "role": "AI", "content": "a", "timestamp": answered})
    shown = merge(read_dialogue(rows)[0])[::-1]
    assert [(utterance.run_id, utterance.is_answer) for utterance in shown] == [
        (f"r{number}", is_answer) for number in range(3) for is_answer in (False, True)
    ]
