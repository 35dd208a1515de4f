"""A tool call is never parted from its results, however broken the log is (contract §5)."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nexus.services.context.pinned import (
    calculate_reverse_position,
    find_safe_insert_position,
    identify_tool_call_blocks,
    insert_messages_at_position,
    pinned_position,
)

PINNED: Final = [{"role": "user", "content": "## Current TODO List"}, {"role": "user", "content": "## Folder Notes"}]


def user(text: str = "u") -> dict[str, Any]:
    """What a person said."""
    return {"role": "user", "content": text}


def says(text: str = "a") -> dict[str, Any]:
    """An answer without calls."""
    return {"role": "assistant", "content": text}


def calls(*ids: str) -> dict[str, Any]:
    """An assistant message that declares a call under each of these ids."""
    functions = [{"id": each, "type": "function", "function": {"name": "f", "arguments": "{}"}} for each in ids]
    return {"role": "assistant", "content": None, "tool_calls": functions}


def result(call_id: Any = None) -> dict[str, Any]:
    """A tool message that answers this id, or has none."""
    message = {"role": "tool", "content": "r"}
    return message if call_id is None else {**message, "tool_call_id": call_id}


def extents(messages: Sequence[Any]) -> list[tuple[int, int]]:
    """Where the blocks begin and end."""
    return [(block.start_index, block.end_index) for block in identify_tool_call_blocks(messages)]


def positions(messages: Sequence[Any]) -> list[int]:
    """The safe position for every target from the start to the end."""
    return [find_safe_insert_position(messages, target) for target in range(len(messages) + 1)]


class TestIdentifyToolCallBlocks:
    """Which messages belong together."""

    def test_no_block(self) -> None:
        """A talk without tools has none either."""
        assert identify_tool_call_blocks([user(), says(), user(), says()]) == []

    def test_several_blocks(self) -> None:
        """Each by itself, in order, also with nothing between them."""
        messages = [calls("1"), result("1"), calls("2"), result("2"), user(), calls("3"), result("3")]
        blocks = identify_tool_call_blocks(messages)
        assert extents(messages) == [(0, 1), (2, 3), (5, 6)]
        assert [set(block.tool_call_ids) for block in blocks] == [{"1"}, {"2"}, {"3"}]

    def test_an_incomplete_block(self) -> None:
        """A lost result leaves the block at what is there."""
        assert extents([user(), calls("1"), user()]) == [(1, 1)]
        assert extents([calls("1", "2"), result("2"), says()]) == [(0, 1)]
        assert extents([calls("1", "2"), result("1"), says()]) == [(0, 1)]

    def test_a_block_of_parallel_calls(self) -> None:
        """All results of one message, in whatever order they came."""
        [block] = identify_tool_call_blocks([calls("1", "2", "3"), result("3"), result("1"), result("2"), says()])
        assert (block.start_index, block.end_index, set(block.tool_call_ids)) == (0, 3, {"1", "2", "3"})


class TestFindSafeInsertPosition:
    """Where something may be put at or before a target."""

    MESSAGES: Final = (user(), calls("1", "2"), result("1"), result("2"), says(), user())

    @pytest.mark.parametrize("target", [0, 4, 5, 6])
    def test_a_target_outside_of_a_block_stays(self, target: int) -> None:
        """Before it, directly after it, and further on."""
        assert find_safe_insert_position(self.MESSAGES, target) == target

    def test_a_target_at_the_end_of_a_block_moves_before_it(self) -> None:
        """Before the last result is still inside."""
        assert find_safe_insert_position(self.MESSAGES, 3) == 1


class TestInsertMessagesAtPosition:
    """Putting messages in, in one piece."""

    MESSAGES: Final = (user("1"), says("2"), user("3"))

    def test_in_the_middle(self) -> None:
        """Between two."""
        expected = [*self.MESSAGES[:1], *PINNED, *self.MESSAGES[1:]]
        assert insert_messages_at_position(self.MESSAGES, PINNED, 1) == expected

    def test_the_position_is_clamped(self) -> None:
        """An index beyond either end is that end, and does not count from behind."""
        assert insert_messages_at_position(self.MESSAGES, PINNED, -1) == [*PINNED, *self.MESSAGES]
        assert insert_messages_at_position(self.MESSAGES, PINNED, 99) == [*self.MESSAGES, *PINNED]


class TestCalculateReversePosition:
    """Before the Nth message from the end."""

    def test_more_messages_than_that(self) -> None:
        """As many as that come after the position; five, if nothing is said."""
        assert calculate_reverse_position([user()] * 12) == 7
        assert calculate_reverse_position([user()] * 12, 3) == 9

    @pytest.mark.parametrize("length", [1, 2, 3, 4])
    def test_fewer_than_that(self, length: int) -> None:
        """At the end, and not at the start as the seed's code had it against its own words."""
        assert calculate_reverse_position([user()] * length) == length


class TestBrokenLogs:
    """What a strict provider would not accept, and what is stored nevertheless."""

    @pytest.mark.parametrize(
        "garbage", ["1", 7, True, {"id": "1"}, object(), [None], ["1"], [7, []], [{"id": []}], [{"id": {}}, None]]
    )
    def test_calls_that_are_none_break_nothing(self, garbage: Any) -> None:
        """No error, and a block elsewhere is found all the same."""
        messages = [{"role": "assistant", "tool_calls": garbage}, user(), calls("2"), result("2")]
        assert extents(messages)[-1] == (2, 3)
        assert positions(messages)[-2:] == [2, 4]

    @pytest.mark.parametrize("thing", [None, "tool", 7, [], {}, object(), {"role": None}, {"role": ["tool"]}, {1: 2}])
    def test_what_is_no_message_breaks_nothing(self, thing: Any) -> None:
        """It stands between the others like any message."""
        messages = [thing, calls("1"), thing, result("1"), thing]
        assert extents(messages) == [(1, 3)]
        assert positions(messages) == [0, 1, 1, 1, 4, 5]
        assert insert_messages_at_position(messages, PINNED, 4) == [*messages[:4], *PINNED, thing]

    @pytest.mark.timeout(60)
    def test_a_long_chain_takes_no_more_than_its_length(self) -> None:
        """Twenty thousand calls that all overlap, and one call whose result comes at the very end."""
        ids = [str(number) for number in range(20_000)]
        chain = [*map(calls, ids), *map(result, ids)]
        assert find_safe_insert_position(chain, len(chain) - 1) == 0
        late = [calls("late"), *([calls("1"), result("1")] * 20_000), result("late")]
        assert find_safe_insert_position(late, len(late) - 3) == 0


class TestPinnedPosition:
    """The rules that can be chosen, over a past history."""

    def test_from_the_end(self) -> None:
        """Before the fifth from the end, before the block where that is inside one, at the end of a short history."""
        plain = [user(), says()] * 4
        inside = [user(), calls("1", "2", "3"), result("1"), result("2"), result("3"), says(), user(), says()]
        assert pinned_position(plain, "from_end") == 3
        assert pinned_position(inside, "from_end") == 1
        assert pinned_position([user(), says()], "from_end") == 2
        assert pinned_position([], "from_end") == 0

    def test_before_an_assistant_message(self) -> None:
        """Before the Nth assistant message from the end, and never inside a block."""
        messages = [user(), says(), user(), calls("1"), says("early"), result("1"), user(), says()]
        assert pinned_position(messages, "before_assistant", 1) == 7
        assert pinned_position(messages, "before_assistant", 2) == 3
        assert pinned_position(messages, "before_assistant", 3) == 3
        assert pinned_position(messages, "before_assistant", 4) == 1


_IDS: Final = st.sampled_from(["1", "2", "3"])
_MESSAGES: Final = st.one_of(
    st.builds(user),
    st.builds(says),
    st.lists(_IDS, min_size=1, max_size=3).map(lambda ids: calls(*ids)),
    st.one_of(_IDS, st.sampled_from([None, "", "9"])).map(result),
    st.sampled_from([None, {}, "tool", {"role": "assistant", "tool_calls": None}, {"role": "tool"}]),
)


@st.composite
def _well_formed(draw: st.DrawFn) -> list[Any]:
    messages: list[Any] = []
    for number in range(draw(st.integers(0, 5))):
        ids = [f"{number}_{index}" for index in range(draw(st.integers(0, 4)))]
        messages += [user(), *([calls(*ids), *map(result, draw(st.permutations(ids)))] if ids else []), says()]
    return messages


def histories() -> st.SearchStrategy[list[Any]]:
    """Well-formed sessions, and broken ones of few ids, so that these collide."""
    return _well_formed() | st.lists(_MESSAGES, max_size=14)


def parts(messages: Sequence[Any], position: int) -> bool:
    """Whether a position lies between a call and a result of it, where a result answers the last that declared its id.

    Made from the contract and not from the code; takes its time.
    """
    return any(
        start < position <= last
        for start, message in enumerate(messages)
        if _field(message, "tool_calls")
        for last in [_last_result(messages, start)]
    )


def _last_result(messages: Sequence[Any], start: int) -> int:
    ids = {call["id"] for call in messages[start]["tool_calls"]}
    last = start
    for place in range(start + 1, len(messages)):
        if _field(messages[place], "role") == "assistant":
            ids -= {call["id"] for call in _field(messages[place], "tool_calls") or []}
        elif _field(messages[place], "role") == "tool" and _field(messages[place], "tool_call_id") in ids:
            last = place
    while last + 1 < len(messages) and _is_nameless(messages[last + 1]):
        last += 1
    return last


def _field(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, Mapping) else None


def _is_nameless(message: Any) -> bool:
    return _field(message, "role") == "tool" and not _field(message, "tool_call_id")


class TestProperties:
    """What holds for every history and every target."""

    @given(histories(), st.integers(-3, 18))
    @example([calls("1"), calls("2"), result("1"), result("2")], 3)
    @example([calls("1", "2"), result("1"), calls("1"), result("2"), result()], 4)
    def test_a_position_never_parts_a_call_from_its_result(self, messages: list[Any], target: int) -> None:
        """Neither by the blocks that are found nor by a reader that knows the contract alone."""
        position = find_safe_insert_position(messages, target)
        assert not parts(messages, position)
        assert not any(start < position <= end for start, end in extents(messages))

    @given(histories(), st.integers(-3, 18))
    def test_a_position_is_the_last_safe_one_at_or_before_the_target(self, messages: list[Any], target: int) -> None:
        """Never after it, and no further before it than a block reaches; asked again, it stays."""
        position = find_safe_insert_position(messages, target)
        wanted = min(max(target, 0), len(messages))
        assert min(max(position, 0), len(messages)) <= wanted
        assert all(
            any(start < passed <= end for start, end in extents(messages))
            for passed in range(max(position, 0) + 1, wanted + 1)
        )
        assert find_safe_insert_position(messages, position) == position
