"""Which result answers which call, in the rows of one run. Pure.

The rules are those by which the history is shown (`validity.py`), but for a result that names no call: here it answers
the oldest open call of its tool, else the oldest open one, for a summary had rather say what came of a call than that
nothing did.

- A result that names a call answers the open one of that id in the newest message before it that makes one, else in a
  later one: clocks differ.
- A second result of a call says nothing new. One of a call that nobody made stands by itself.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from nexus.core.turns import ToolOutcome


@dataclass(frozen=True, slots=True)
class Called:
    """A call that a message makes; `id` is `""` when it has none."""

    id: str
    name: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class Came:
    """A result.

    Attributes:
        call_id, tool: what it says it answers; `""` when it does not say.
        success: if it says.
        content: never None.
    """

    call_id: str
    tool: str
    success: bool | None
    content: Any


@dataclass(slots=True)
class _Call:
    place: int
    name: str
    arguments: Any
    result: Came | None = None

    @property
    def outcome(self) -> ToolOutcome:
        came = self.result
        return ToolOutcome(
            name=self.name,
            arguments=self.arguments,
            success=came.success if came else None,
            result=came.content if came else None,
        )


_Queue = deque[_Call]
_UNNAMED: Final = "unknown"


def match(steps: Iterable[tuple[Called, ...] | Came]) -> tuple[tuple[ToolOutcome, ...], bool]:
    """The outcomes in the order in which the calls were made, and whether every call has a result.

    Args:
        steps: the calls of a message, or a result, in the order in which they were recorded.
    """
    desk = _Desk()
    for place, step in enumerate(steps):
        if isinstance(step, Came):
            desk.take(place, step)
        else:
            desk.declare(place, step)
    return desk.settle()


@dataclass(slots=True)
class _Desk:
    """Calls by what a result may name them by. Answered ones leave the queues when they come to the front.

    Attributes:
        newest: by id, the newest message that makes a call of that id, and these calls.
        strangers: results of calls that nobody made.
        early: results that name calls which are not made yet.
        nameless: results that name no call.
    """

    calls: list[_Call] = field(default_factory=list)
    by_id: dict[str, _Queue] = field(default_factory=dict)
    newest: dict[str, tuple[int, _Queue]] = field(default_factory=dict)
    strangers: list[_Call] = field(default_factory=list)
    early: list[tuple[int, Came]] = field(default_factory=list)
    nameless: list[tuple[int, Came]] = field(default_factory=list)

    def declare(self, place: int, called: tuple[Called, ...]) -> None:
        """Calls that the message at this place makes."""
        for item in called:
            call = _Call(place, item.name, item.arguments)
            self.calls.append(call)
            if item.id:
                self.by_id.setdefault(item.id, deque()).append(call)
                known_at, queue = self.newest.get(item.id, (place, deque()))
                self.newest[item.id] = (place, queue if known_at == place else deque())
                self.newest[item.id][1].append(call)

    def take(self, place: int, came: Came) -> None:
        """A result, for the newest call that it names, if there is one already."""
        if not came.call_id:
            self.nameless.append((place, came))
        elif call := _first_open(self.newest.get(came.call_id, (0, _Queue()))[1]):
            call.result = came
        else:
            self.early.append((place, came))

    def settle(self) -> tuple[tuple[ToolOutcome, ...], bool]:
        """What `match` returns."""
        for place, came in self.early:
            queue = self.by_id.get(came.call_id)
            if queue is None:
                self._stands_alone(place, came)
            elif call := _first_open(queue, after=place):
                call.result = came
        by_name: dict[str, _Queue] = {}
        for call in self.calls:
            by_name.setdefault(call.name, deque()).append(call)
        every = deque(self.calls)
        for place, came in self.nameless:
            if call := _first_open(by_name.get(came.tool, _Queue())) or _first_open(every):
                call.result = came
            else:
                self._stands_alone(place, came)
        shown = sorted([*self.calls, *self.strangers], key=lambda call: call.place)
        return tuple(call.outcome for call in shown), all(call.result for call in self.calls)

    def _stands_alone(self, place: int, came: Came) -> None:
        self.strangers.append(_Call(place, came.tool or _UNNAMED, None, came))


def _first_open(queue: _Queue, *, after: int = 0) -> _Call | None:
    while queue and (queue[0].result or queue[0].place < after):
        queue.popleft()
    return queue[0] if queue else None
