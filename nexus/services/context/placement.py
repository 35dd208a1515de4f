"""Positions in a list that split no tool call from its results (contract §5). Pure.

Rules of this module:

- Messages are in the OpenAI form. Anything else is passed over, never an error: logs are malformed.
- A position is the index of the message that follows it; `len(messages)` is the end.
- Every function goes through the messages once and changes none of its arguments.

The rule of the position is that of the source document: before the fifth message from the end, or, should that be
inside of a block, before the block. A later rule of the same authors counts assistant messages instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from nexus.services.history.tool_calls import as_id

Placement = Literal["from_end", "before_assistant", "tail"]
PINNED_FROM_END: Final = 5


@dataclass(frozen=True, slots=True)
class ToolCallBlock:
    """The messages from one that declares tool calls to the last result that answers one of them.

    Blocks overlap where a log has results after the next declaration.

    Attributes:
        start_index: of the assistant message.
        end_index: of the last tool message that belongs to it; the same where none does.
        tool_call_ids: of the declared calls.
    """

    start_index: int
    end_index: int
    tool_call_ids: frozenset[str]


def identify_tool_call_blocks(messages: Sequence[Any]) -> list[ToolCallBlock]:
    """The blocks in `messages`, by their start.

    A result belongs to the latest declaration of its id, whatever lies between; a tool message without an id to the
    block that it directly follows.
    """
    return [
        ToolCallBlock(start, end, frozenset(_ids(declared_calls(messages[start])))) for start, end in _extents(messages)
    ]


def find_safe_insert_position(messages: Sequence[Any], target_index: int) -> int:
    """The nearest position at or before `target_index` that is inside of no block; the target is clamped."""
    position = max(0, min(target_index, len(messages)))
    # A block that begins later cannot hold a position before its beginning, so one way back finds them all.
    for start, end in reversed(_extents(messages)):
        if start < position <= end:
            position = start
    return position


def insert_messages_at_position(
    messages: Sequence[Any], messages_to_insert: Sequence[Any], insert_index: int
) -> list[Any]:
    """A new list with `messages_to_insert` before the message at `insert_index`, which is clamped."""
    index = max(0, min(insert_index, len(messages)))
    return [*messages[:index], *messages_to_insert, *messages[index:]]


def calculate_reverse_position(messages: Sequence[Any], count: int = PINNED_FROM_END) -> int:
    """The position before the `count`-th message from the end; the end itself where there are fewer, or for 0."""
    return len(messages) - count if 0 <= count <= len(messages) else len(messages)


def position_before_assistant(messages: Sequence[Any], count: int = PINNED_FROM_END) -> int:
    """The position before the `count`-th assistant message from the end.

    Where there are fewer, before the first of them; where there is none, the end.
    """
    found = [index for index, message in enumerate(messages) if _role(message) == "assistant"]
    if not found or count <= 0:
        return len(messages)
    return found[max(len(found) - count, 0)]


def pinned_position(messages: Sequence[Any], placement: Placement, count: int = PINNED_FROM_END) -> int:
    """The position of the pinned block in a history: inside of no tool call block."""
    match placement:
        case "from_end":
            target = calculate_reverse_position(messages, count)
        case "before_assistant":
            target = position_before_assistant(messages, count)
        case "tail":
            target = len(messages)
    return find_safe_insert_position(messages, target)


def declared_calls(message: Any) -> Sequence[Any]:
    """The calls that an assistant message declares; none for any other message."""
    calls = message.get("tool_calls") if _role(message) == "assistant" else None
    return calls if isinstance(calls, list | tuple) else ()


def _extents(messages: Sequence[Any]) -> list[tuple[int, int]]:
    """Start and end of each block, by its start."""
    starts: list[int] = []
    ends: list[int] = []
    declared: dict[str, int] = {}
    ending_before: int | None = None
    for index, message in enumerate(messages):
        role, block = _role(message), None
        if role == "assistant" and (calls := declared_calls(message)):
            block = len(starts)
            starts.append(index)
            ends.append(index)
            for given_id in _ids(calls):
                declared[given_id] = block
        elif role == "tool":
            given_id = as_id(message.get("tool_call_id"))
            block = declared.get(given_id) if given_id else ending_before
            if block is not None:
                ends[block] = index
        ending_before = block
    return list(zip(starts, ends, strict=True))


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, Mapping) else None


def _ids(calls: Sequence[Any]) -> list[str]:
    return [given_id for call in calls if isinstance(call, Mapping) and (given_id := as_id(call.get("id")))]
