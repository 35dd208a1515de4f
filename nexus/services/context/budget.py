"""What a context may take of the model's window, and what goes where it would take more (CONTRACT §7). Pure.

Rules of this module:

- The oldest memory goes first: turns, then messages of the history, then useful information and folder notes of what is
  pinned, then the summary of what is compacted. Instructions, role, TODO list, working memory, goal and input stay.
- A tool call goes with its results.
- What goes is counted where the manifest describes the rest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final

from nexus.services.context.blocks import Block
from nexus.services.context.pinned import pinned_blocks
from nexus.services.context.remembered import Remembered, turns_block
from nexus.services.context.session_state import SessionState
from nexus.services.context.tokens import Measure
from nexus.services.context.validity import Admitted

# A note on a block that has gone.
NO_ROOM: Final = "window: there is no room for {}"
_NO_LIMIT: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Room:
    """How many tokens what is put together may take.

    Attributes:
        measure: how they are counted.
        tokens: of all of it.
        turns, pinned: of `[TURN_MEMORY]`, and of the pinned block.
    """

    measure: Measure
    tokens: int
    turns: int = _NO_LIMIT
    pinned: int = _NO_LIMIT


@dataclass(frozen=True, slots=True)
class Weights:
    """What a context took before anything was left out to make it fit, in tokens.

    Attributes:
        total: all that was put together.
        fixed: of that, what always stays.
        history: messages of the session.
        summary: what stands for older ones.
    """

    total: int
    fixed: int
    history: int
    summary: int


@dataclass(frozen=True, slots=True)
class Movable:
    """The parts of a context of which something may go.

    Attributes:
        start: how many of the oldest messages of the history have gone.
        infos, notes: how many of the useful information and of the folder notes stay; None for all.
        summary: what stands for compacted messages; `[]` also where it has gone.
    """

    remembered: Remembered
    past: Admitted
    role: str
    state: SessionState
    summary: Sequence[Block]
    start: int = 0
    items: int | None = None

    @property
    def turns(self) -> list[Block]:
        """`[TURN_MEMORY]`."""
        return turns_block(self.remembered)

    @property
    def pinned(self) -> list[Block]:
        """The pinned block."""
        return pinned_blocks(self.role, self.state, most=self.items)


def fit(fixed: Sequence[Block], movable: Movable, room: Room) -> tuple[Movable, Weights]:
    """What stays, and what all of it would have taken.

    Args:
        fixed: the parts that always stay.
        movable: the others.
        room: for both.
    """
    weigh = room.measure.messages
    movable = replace(movable, remembered=_fitting_turns(movable.remembered, room.turns, room.measure))
    movable = _fitting_items(movable, room.pinned, weigh)
    always = _of_blocks(fixed, weigh)
    history = [room.measure.message(message) for message in movable.past.messages]
    weights = Weights(
        always + sum(history) + _of_blocks([*movable.turns, *movable.pinned, *movable.summary], weigh),
        always,
        sum(history),
        _of_blocks(movable.summary, weigh),
    )
    over = weights.total - room.tokens
    if over <= 0:
        return movable, weights
    turns = _of_blocks(movable.turns, weigh)
    movable = replace(movable, remembered=_fitting_turns(movable.remembered, turns - over, room.measure))
    over -= turns - _of_blocks(movable.turns, weigh)
    if over > 0:
        movable = replace(movable, start=_start(movable.past.messages, history, over))
        over -= sum(history[: movable.start])
    if over > 0:
        pinned = _of_blocks(movable.pinned, weigh)
        movable = _fitting_items(movable, pinned - over, weigh)
        over -= pinned - _of_blocks(movable.pinned, weigh)
    return (replace(movable, summary=[]) if over > 0 else movable), weights


def unsaid(whole: Movable, left: Movable) -> list[str]:
    """Notes on what has gone, and of which no block is left that could say so."""
    tags = {block.tag for block in (*left.turns, *left.pinned, *left.summary)}
    gone = [block.tag for block in (*whole.turns, *whole.pinned, *whole.summary) if block.tag not in tags]
    gone += ["HISTORY"] if left.start and left.start == len(left.past.messages) else []
    return [NO_ROOM.format(tag) for tag in gone]


def largest(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The largest number from `low` to `high` that fits, where with each one that fits all smaller ones do."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def without_oldest(remembered: Remembered, count: int) -> Remembered:
    """Without so many of the oldest turns."""
    if not count:
        return remembered
    return replace(remembered, turns=remembered.turns[count:], dropped=remembered.dropped + count)


def _fitting_turns(remembered: Remembered, room: int, measure: Measure) -> Remembered:
    every = len(remembered.turns)

    def fits(kept: int) -> bool:
        return _of_blocks(turns_block(without_oldest(remembered, every - kept)), measure.messages) <= room

    # All of them fit nearly always.
    return remembered if fits(every) else without_oldest(remembered, every - largest(0, every, fits))


def _fitting_items(movable: Movable, room: int, weigh: Callable[[Sequence[Any]], int]) -> Movable:
    every = len(movable.state.useful_info or ()) + len(movable.state.folder_notes or ())

    def fits(kept: int) -> bool:
        return _of_blocks(pinned_blocks(movable.role, movable.state, most=kept), weigh) <= room

    if not every or _of_blocks(movable.pinned, weigh) <= room:
        return movable
    return replace(movable, items=largest(0, every, fits))


def _start(messages: Sequence[dict[str, Any]], tokens: Sequence[int], over: int) -> int:
    """How many of the oldest messages have to go for so many tokens, and no call without its results."""
    for index, gone in enumerate(accumulate(tokens)):
        following = index + 1
        if gone >= over and (following == len(messages) or messages[following]["role"] != "tool"):
            return following
    return len(messages)


def _of_blocks(blocks: Sequence[Block], weigh: Callable[[Sequence[Any]], int]) -> int:
    return weigh([message for block in blocks for message in block.messages]) if blocks else 0
