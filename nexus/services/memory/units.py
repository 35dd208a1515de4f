"""Which rows belong together when a session is compacted: a tool call goes with its results (CONTRACT §7). Pure.

Rules of this module:

- Rows are in the order in which a context shows them (`transcript.said_in_rows`), and results belong to the calls to
  which the validity gate gives them: it is asked, so that the two cannot differ.
- A block is a message with calls and everything of its run up to the last of its results. Blocks that overlap are one.
- What no context shows (SYSTEM and COMMAND rows, malformed ones) has a place too, for it is compacted like the rest.
- What is internal to a sub-agent is left out.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

from nexus.core.ports import Row
from nexus.services.context.agents import is_internal
from nexus.services.context.annotations import as_id, read_tool_calls
from nexus.services.context.clock import LONG_AGO, parse_moment
from nexus.services.context.memory import Place, places_in_run, stored_order
from nexus.services.context.transcript import SPEAKERS, Said, named_tool
from nexus.services.context.validity import admit

# The gate looks at whether there is a text, not at what it says.
_SOME_TEXT: Final = "…"


@dataclass(frozen=True, slots=True)
class Item:
    """A row with what its place depends on; see `memory.places_in_run`.

    Attributes:
        run_id: `""` for a row that belongs to no run.
        said: as the validity gate takes it, without its text; None for what is never shown.
    """

    index: int
    row: Row
    run_id: str
    moment: datetime | None
    rank: int
    said: Said | None

    @property
    def is_human(self) -> bool:
        """Whether a person said it."""
        return self.said is not None and self.said.role == "user"


@dataclass(frozen=True, slots=True)
class Unit:
    """Rows of which all are compacted or none.

    Attributes:
        places: of the rows among all of them in order, ascending.
        run_id: `""` for rows that belong to no run.
        is_block: there are tool calls among them.
        is_open: one of the calls has no result.
    """

    places: tuple[int, ...]
    run_id: str
    is_block: bool = False
    is_open: bool = False

    @property
    def end(self) -> int:
        """The place of its last row."""
        return self.places[-1]


def in_order(rows: Sequence[Any]) -> list[Item]:
    """The rows in the order in which they were said, whatever order they come in."""
    ranks = stored_order(rows)
    items = [
        _read(row, index, ranks[index])
        for index, row in enumerate(rows)
        if isinstance(row, Mapping) and not is_internal(row.get("metadata"))
    ]
    runs: dict[str, list[Item]] = {}
    places: dict[int, Place] = {}
    for item in items:
        if item.said is None:
            # It has no part in the order of its run, as it has none in a context.
            places[item.index] = (item.moment or LONG_AGO, item.rank, True, item.rank)
        else:
            runs.setdefault(item.run_id or f"\n{item.index}", []).append(item)
    for members in runs.values():
        places |= places_in_run(members)
    return sorted(items, key=lambda item: places[item.index])


def is_steady(items: Iterable[Item]) -> bool:
    """Whether these rows of a run would be shown in this order if the run's other rows were not there.

    Where clocks differ the order rests on the human input, before which nothing comes.
    """
    shown = [item for item in items if item.said is not None]
    places = places_in_run(shown)
    return all(places[one.index] < places[next_one.index] for one, next_one in pairwise(shown))


def units_of(items: Sequence[Item]) -> list[Unit]:
    """The units of rows that are in order, by their last row."""
    runs: dict[str, list[int]] = {}
    for place, item in enumerate(items):
        runs.setdefault(item.run_id, []).append(place)
    blocks: dict[str, list[_Block]] = {}
    for block in _blocks(items):
        blocks.setdefault(items[block.places[0]].run_id, []).append(block)
    units: list[Unit] = []
    for run_id, places in runs.items():
        units += _units_of_run(run_id, places, _merged(blocks.get(run_id, [])))
    return sorted(units, key=lambda unit: unit.end)


@dataclass(frozen=True, slots=True)
class _Block:
    """A message with calls and their results, in order."""

    places: tuple[int, ...]
    is_open: bool


def _units_of_run(run_id: str, places: Sequence[int], blocks: Sequence[_Block]) -> list[Unit]:
    units, inside = [], set[int]()
    for block in blocks:
        first, last = block.places[0], block.places[-1]
        # Rows without a run have nothing to do with each other.
        between = places[bisect_left(places, first) : bisect_right(places, last)] if run_id else block.places
        inside.update(between)
        units.append(Unit(tuple(between), run_id, is_block=True, is_open=block.is_open))
    return units + [Unit((place,), run_id) for place in places if place not in inside]


def _merged(blocks: Iterable[_Block]) -> list[_Block]:
    groups: list[list[_Block]] = []
    end = -1
    for block in sorted(blocks, key=lambda block: block.places):
        if block.places[0] > end:
            groups.append([])
        groups[-1].append(block)
        end = max(end, block.places[-1])
    return [
        _Block(tuple(sorted({place for block in group for place in block.places})), any(b.is_open for b in group))
        for group in groups
    ]


def _blocks(items: Sequence[Item]) -> list[_Block]:
    """Which results the gate gives to which calls."""
    said = [replace(item.said, source=str(place)) for place, item in enumerate(items) if item.said is not None]
    admitted = admit(said, "rows")
    found: list[_Block] = []
    members: list[int] = []
    is_open = False
    for message, origin in zip(admitted.messages, admitted.origins, strict=True):
        if message["role"] != "tool":
            found += [_Block(tuple(sorted(members)), is_open)] if members else []
            members, is_open = [int(origin.source)] if origin and origin.calls else [], False
        elif origin is None:
            is_open = True
        else:
            members.append(int(origin.source))
    return [*found, _Block(tuple(sorted(members)), is_open)] if members else found


def _read(row: Mapping[str, Any], index: int, rank: int) -> Item:
    role, run_id, metadata = row.get("role"), row.get("run_id"), row.get("metadata")
    run = run_id if isinstance(run_id, str) else ""
    speaker = SPEAKERS.get(role.lower()) if isinstance(role, str) else None
    said = None
    if speaker is not None:
        known = metadata if isinstance(metadata, Mapping) else {}
        said = Said(
            speaker,
            _SOME_TEXT,
            run_id=run,
            calls=read_tool_calls(known.get("tool_calls")) if speaker == "assistant" else (),
            call_id=as_id(known.get("call_id")) if speaker == "tool" else "",
            tool_name=named_tool(known) if speaker == "tool" else "",
        )
    return Item(index, dict(row), run, parse_moment(row.get("timestamp")), rank, said)
