"""Moments and offsets as they come from outside, and what a result says of its cost (contract §2, §4.5, §6)."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.core.models import Message, Role, parse_moment
from nexus.services.history.rows import at_offset, llm_row, parse_offset, tool_row
from nexus.services.history.tool_calls import read_tool_calls
from nexus.services.text.content import as_text
from tests.nexus.support.rows import START

HALF_PAST_THREE = datetime(2025, 12, 10, 15, 30, tzinfo=UTC)
EAST_8 = timezone(timedelta(hours=8))
DAY = timedelta(days=1)
USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
PLAIN = {"source": "llm_result", "tool_calls": None, "has_tool_calls": False}


def recorded(content: Any, **metadata: Any) -> dict[str, Any]:
    """The metadata of the row of a result."""
    fields = {"id": "a", "run_id": "r", "owner_key": "o", "timestamp": START}
    row = llm_row(Message(**fields, role=Role.AI, content=content, metadata=metadata))
    assert row is not None
    found: dict[str, Any] = row["metadata"]
    return found


@pytest.mark.parametrize(
    ("content", "metadata"),
    [
        ({"content": "x", "usage": USAGE}, {}),
        ({"content": "x"}, {"usage": USAGE}),
        ("x", {"usage": USAGE}),
        ({"content": "x", "usage": USAGE}, {"usage": {"total_tokens": 1}}),
        ({"content": "x", "usage": None}, {"usage": USAGE}),
        ({"content": "x", "usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": 5}, "cost": 1.5}}, {}),
    ],
    ids=str,
)
def test_usage(content: Any, metadata: dict[str, Any]) -> None:
    """Of the content, else of the metadata; the three counts, without what a provider has besides."""
    assert recorded(content, **metadata) == {**PLAIN, "usage": USAGE}


@pytest.mark.parametrize(
    "usage", [None, 5, "many", [], {}, [USAGE], {"tokens": 5}, {"total_tokens": 1.5}, {"total_tokens": True}], ids=str
)
def test_usage_of_no_use(usage: Any) -> None:
    """Leaves a row as it was before anybody reported any."""
    assert recorded({"content": "x", "usage": usage}) == PLAIN


@pytest.mark.parametrize(("phase", "kept"), [("thinking", {"phase": "thinking"}), ("action", {}), (["thinking"], {})])
def test_the_phase(phase: Any, kept: dict[str, Any]) -> None:
    """Thought before acting is marked; anything else is a result like all others."""
    assert recorded("x", phase=phase) == {**PLAIN, **kept}


class TestMoments:
    """Aware and naive datetimes, ISO texts, and seconds or milliseconds since 1970."""

    @pytest.mark.parametrize(
        "given_as",
        [
            HALF_PAST_THREE,
            HALF_PAST_THREE.replace(tzinfo=None),
            datetime(2025, 12, 10, 23, 30, tzinfo=EAST_8),
            "2025-12-10T15:30:00Z",
            "2025-12-10T15:30:00+00:00",
            "2025-12-10T23:30:00+08:00",
            "2025-12-10T10:00:00-05:30",
            "2025-12-10T15:30:00",
            "2025-12-10 15:30:00",
            "2025-12-10T15:30Z",
            "2025-12-10t15:30:00z",
            " 2025-12-10T15:30:00.000Z\n",
            "2025-12-10T15:30:00.000000000Z",
            "20251210T153000Z",
            1765380600,
            1765380600.0,
            1765380600000,
            "1765380600",
            "1765380600000",
            " 1765380600.0 ",
        ],
    )
    def test_every_form_of_a_moment_is_that_moment_in_utc(self, given_as: Any) -> None:
        """A naive one is UTC, an offset is taken to UTC, and any precision will do."""
        moment = parse_moment(given_as)
        assert moment == HALF_PAST_THREE
        assert moment.tzinfo is UTC

    @pytest.mark.parametrize(
        ("given_as", "microsecond"),
        [("2025-12-10T15:30:00.1Z", 100_000), ("2025-12-10T15:30:00.123456789Z", 123_456)],
    )
    def test_fractions_count(self, given_as: str, microsecond: int) -> None:
        """Down to the microsecond."""
        assert parse_moment(given_as) == HALF_PAST_THREE.replace(microsecond=microsecond)

    @pytest.mark.parametrize(
        "given_as",
        [
            *(
                None,
                "",
                " ",
                "yesterday",
                "2025-13-01",
                "2025-12-10T25:00:00Z",
                "2025-12-10T15:30:60Z",
                1e300,
                10**400,
                "5",
            ),
            *(
                float("nan"),
                True,
                [],
                {},
                b"2025-12-10",
                "[THIS_MOMENT]",
                "2025-12-10T15:30:00+99:00",
                "９" * 1000,
                "\x00",
            ),
            *("0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00"),
            *(datetime.min.replace(tzinfo=EAST_8), datetime.max.replace(tzinfo=timezone(-timedelta(hours=1)))),
        ],
    )
    def test_what_cannot_be_read_is_no_moment(self, given_as: Any) -> None:
        """Wrong types, nonsense, and times before the year 1 or after 9999 in UTC; nothing raises."""
        assert parse_moment(given_as) is None

    @given(st.text() | st.integers() | st.floats() | st.datetimes(timezones=st.timezones()) | st.none())
    def test_nothing_raises_and_a_moment_is_in_utc(self, given_as: Any) -> None:
        """Whatever comes in."""
        moment = parse_moment(given_as)
        assert moment is None or moment.tzinfo is UTC


class TestOffsets:
    """Minutes west of UTC."""

    @pytest.mark.parametrize(
        ("given_as", "minutes"),
        [
            *((-480, -480), ("-480", -480), (" -480 ", -480), ("-480.0", -480), (-480.0, -480), (0, 0), ("0", 0)),
            *((330, 330), (-345, -345), (840, 840), (-840, -840), ("+60", 60)),
        ],
    )
    def test_numbers_and_texts(self, given_as: Any, minutes: int) -> None:
        """As JavaScript gives them, and as browsers send them."""
        assert parse_offset(given_as) == minutes

    @pytest.mark.parametrize(
        "given_as",
        [
            *(None, "", "abc", "8h", "+08:00", "-480.5", 0.5, 841, -841, 10**9, 10**400, "1" + "0" * 400, True, False),
            *([], {}, b"-480", float("nan"), float("inf"), "nan", "-inf", "[THIS_MOMENT]", "\x00", "\ud800"),
        ],
    )
    def test_unreadable_or_absurd(self, given_as: Any) -> None:
        """Not a whole number of minutes, or beyond 14 hours; nothing raises."""
        assert parse_offset(given_as) is None


class TestClocks:
    """A moment on somebody's clock."""

    @pytest.mark.parametrize(
        ("minutes_west", "shown"),
        [
            (-480, "2025-12-10T23:30:00+08:00"),
            (0, "2025-12-10T15:30:00+00:00"),
            (300, "2025-12-10T10:30:00-05:00"),
            (-345, "2025-12-10T21:15:00+05:45"),
            (-840, "2025-12-11T05:30:00+14:00"),
            (720, "2025-12-10T03:30:00-12:00"),
        ],
    )
    def test_west_is_positive(self, minutes_west: int, shown: str) -> None:
        """UTC+8 is -480, also across midnight."""
        assert at_offset(HALF_PAST_THREE, minutes_west).isoformat() == shown

    @pytest.mark.parametrize(
        ("moment", "minutes_west"),
        [(datetime.min.replace(tzinfo=UTC), 60), (datetime.max.replace(tzinfo=UTC), -60)],
    )
    def test_the_ends_of_the_calendar_are_shown_in_utc(self, moment: datetime, minutes_west: int) -> None:
        """Where the clock would leave the years 1 to 9999."""
        assert at_offset(moment, minutes_west).isoformat() == moment.isoformat()


SMALL, LARGE = 4_096, 4_097


def sent(role: Role, content: Any, **metadata: Any) -> Message:
    """A result."""
    return Message(id="a", run_id="r", owner_key="o", role=role, content=content, timestamp=START, metadata=metadata)


@pytest.mark.parametrize(
    "result",
    [
        [[]] * 5_000,
        {f"k{number}": number for number in range(2_000)},
        {"unicode": "я\u2028😀", "n": 0.80},
        "text",
        5,
        None,
        True,
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_large_result_is_recorded_as_the_text_that_contexts_show(result: Any) -> None:
    """The same bytes are shown, and nothing structured is stored; of a small message everything stays as it came."""
    message = sent(Role.TOOL, {"result": result, "tool_name": [[]] * 900, "call_id": "c" * 300, "status": "success"})
    small, large = tool_row(message, SMALL), tool_row(message, LARGE)
    assert small["content"] == result
    assert not isinstance(large["content"], dict | list)
    assert as_text(large["content"]) == as_text(result)
    assert large["metadata"] == {
        "source": "tool_result",
        "tool_name": as_text([[]] * 900)[:256],
        "call_id": "c" * 256,
        "status": "success",
        "execution_success": True,
    }


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([{"type": "text", "text": "one"}, "two"], "one\ntwo"),
        ([{"type": "image", "data": "x" * 8_000}, {"type": "text", "text": "two"}], "[image: 6 KB]\ntwo"),
    ],
    ids=["texts", "image"],
)
def test_a_result_in_parts(parts: Any, text: str) -> None:
    """Is a text, and what was sent stands beside it: of a large message as its JSON."""
    message = sent(Role.TOOL, {"result": parts, "tool_name": "look", "call_id": "c", "status": "success"})
    small, large = tool_row(message, SMALL), tool_row(message, LARGE)
    assert small["content"] == large["content"] == text
    assert small["metadata"]["raw"] == json.loads(large["metadata"]["raw"]) == message.content


def test_a_result_that_names_a_source() -> None:
    """It comes in its envelope like any other."""
    content = {"result": "42", "call_id": "c", "tool_name": "look"}
    plain, named = (tool_row(sent(Role.TOOL, content, **about)) for about in ({}, {"source": "tool_result"}))
    assert named == plain
    assert (named["content"], named["metadata"]["call_id"]) == ("42", "c")


@pytest.mark.parametrize("nested", [True, False], ids=["nested", "flat"])
def test_calls_of_a_large_message(nested: bool) -> None:
    """Say the same with their arguments as JSON text, all of them."""
    call = {"name": "write", "arguments": {"lists": [[]] * 2_000, "text": "я"}}
    calls: list[Any] = [{"id": f"c{number}", **({"function": call} if nested else call)} for number in range(130)]
    row = llm_row(sent(Role.AI, {"content": {"a": [[]]}, "tool_calls": [5, *calls]}), LARGE)
    assert row is not None
    stored, left_out = row["metadata"]["tool_calls"], row["metadata"]["left_out"]
    assert (row["content"], left_out) == ('{"a":[[]]}', [["call", "UNREADABLE"]])
    assert all(isinstance((each["function"] if nested else each)["arguments"], str) for each in stored)
    assert read_tool_calls(stored) == read_tool_calls(calls)
