"""The past as it was stored: rows read leniently and merged by run (CONTRACT §2, §4.3).

Rules of this module:

- One malformed row never spoils the rest: it is repaired or left out, and counted.
- All AI rows of a run become one message; humans stay as they are; rows without a run id are never merged.
- Everything is compared as moments. At equal moments humans come before the AI of their run, then stored order counts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, Protocol

from nexus.core.working_memory import OBJECT_ID
from nexus.services.context.agents import is_internal
from nexus.services.context.annotations import ToolCall, as_json, read_tool_calls
from nexus.services.context.clock import LONG_AGO, parse_moment

_NO_ID: Final = "0" * 24


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored row that can be shown.

    Attributes:
        index: the row's place in the list that was read.
        id: `""` when the row has none.
        run_id: `""` for a row that belongs to no run.
        text: as stored; `""` for an answer without content.
        moment: in UTC; None when the row has no readable time.
        tool_calls: those that the row declared; a human declares none.
        rank: its place in stored order, oldest first.
        repaired: something in the row was not as it is stored today.
    """

    index: int
    id: str
    run_id: str
    role: Literal["human", "ai"]
    text: str
    moment: datetime | None
    tool_calls: tuple[ToolCall, ...]
    rank: int
    repaired: bool


@dataclass(frozen=True, slots=True)
class Utterance:
    """What one side said: a human row, or the AI rows of a run together, in the order of time.

    Attributes:
        id: that of the row, or `merged_ai_<run_id>`.
        moment: the latest of its rows'; None when none has a readable time.
        merged: several rows may stand behind it (it is the AI's side of a run).
        order: the sort key; ascending is oldest first.
    """

    id: str
    run_id: str
    role: Literal["human", "ai"]
    entries: tuple[Entry, ...]
    moment: datetime | None
    merged: bool
    order: tuple[datetime, int, int, int]


def read_rows(rows: Sequence[Any], *, current_run_id: str = "") -> tuple[list[Entry], int]:
    """The rows that can be shown, and how many had to be repaired or left out.

    Rows of other roles (tools, system, commands), those internal to a sub-agent and those of the current run are left
    out without being counted.
    """
    ranks = stored_order(rows)
    entries, faults = [], 0
    for index, row in enumerate(rows):
        entry = _read_row(row, index, ranks[index]) if isinstance(row, Mapping) else None
        if entry is None:
            faults += not _is_of_others(row)
        elif not (current_run_id and entry.run_id == current_run_id):
            entries.append(entry)
            faults += entry.repaired
    return entries, faults


def merge(entries: Iterable[Entry]) -> list[Utterance]:
    """The entries as utterances, newest first."""
    runs: dict[str, list[Entry]] = {}
    single: list[Entry] = []
    for entry in entries:
        if entry.run_id:
            runs.setdefault(entry.run_id, []).append(entry)
        else:
            single.append(entry)
    utterances = [_alone(entry, entry.moment or LONG_AGO, entry.rank) for entry in single]
    for members in runs.values():
        utterances += _utterances_of_run(members)
    return sorted(utterances, key=lambda utterance: utterance.order, reverse=True)


def _utterances_of_run(members: list[Entry]) -> list[Utterance]:
    rank = min(entry.rank for entry in members)
    moments = assumed_moments(members)
    humans = [_alone(entry, moments[entry.index], rank) for entry in members if entry.role == "human"]
    spoken = sorted(
        (entry for entry in members if entry.role == "ai"), key=lambda entry: (moments[entry.index], entry.rank)
    )
    if not spoken:
        return humans
    moment = max((entry.moment for entry in spoken if entry.moment is not None), default=None)
    run_id = members[0].run_id
    # Clocks differ: an answer that claims to be older than its question still comes after it.
    asked = min((human.order[0] for human in humans), default=LONG_AGO)
    order = (max(moments[spoken[-1].index], asked), rank, 1, spoken[-1].rank)
    return [*humans, Utterance(f"merged_ai_{run_id}", run_id, "ai", tuple(spoken), moment, True, order)]


class _Timed(Protocol):
    """A row with its time and its place; see `Entry`."""

    @property
    def index(self) -> int: ...
    @property
    def moment(self) -> datetime | None: ...
    @property
    def rank(self) -> int: ...


def assumed_moments(members: Sequence[_Timed]) -> dict[int, datetime]:
    """By index, the moment of each row of a run; without one, that of the row stored before it or the run's first."""
    assumed = min((entry.moment for entry in members if entry.moment is not None), default=LONG_AGO)
    moments = {}
    for entry in sorted(members, key=lambda entry: entry.rank):
        assumed = entry.moment or assumed
        moments[entry.index] = assumed
    return moments


class _Spoken(_Timed, Protocol):
    @property
    def is_human(self) -> bool: ...


# By when it was said, then run by run, the human first, then as it was stored.
Place = tuple[datetime, int, bool, int]


def places_in_run(members: Sequence[_Spoken]) -> dict[int, Place]:
    """By index, the sort key of each row of a run, for rows of every role; ascending is oldest first.

    Clocks differ: nothing comes before the first that a human said.
    """
    moments = assumed_moments(members)
    asked = min((moments[row.index] for row in members if row.is_human), default=LONG_AGO)
    first = min((row.rank for row in members), default=0)
    return {row.index: (max(moments[row.index], asked), first, not row.is_human, row.rank) for row in members}


def _alone(entry: Entry, sorted_at: datetime, rank: int) -> Utterance:
    order = (sorted_at, rank, int(entry.role == "ai"), entry.rank)
    return Utterance(entry.id, entry.run_id, entry.role, (entry,), entry.moment, False, order)


def stored_order(rows: Sequence[Any]) -> list[int]:
    """For each row its rank in stored order, oldest lowest.

    By `_id` where every row has an ObjectId, which grows with time. Otherwise by place: stores answer newest first, so
    the last row is the oldest, unless the times at both ends say that the list runs the other way.
    """
    ids = [row.get("_id") if isinstance(row, Mapping) else _NO_ID for row in rows]
    if rows and all(isinstance(item, str) and OBJECT_ID.fullmatch(item) for item in ids):
        ranks = [0] * len(rows)
        for rank, index in enumerate(sorted(range(len(rows)), key=lambda i: (str(ids[i]), -i))):
            ranks[index] = rank
        return ranks
    moments = [moment for row in rows if isinstance(row, Mapping) and (moment := parse_moment(row.get("timestamp")))]
    oldest_first = bool(moments) and moments[0] < moments[-1]
    return list(range(len(rows))) if oldest_first else list(range(len(rows) - 1, -1, -1))


def _is_of_others(row: Any) -> bool:
    """Whether the row is none of what people and Nexus said to each other."""
    if not isinstance(row, Mapping):
        return False
    role = row.get("role")
    return is_internal(row.get("metadata")) or (isinstance(role, str) and role.lower() in {"tool", "system", "command"})


def _read_row(row: Mapping[str, Any], index: int, rank: int) -> Entry | None:
    role = row.get("role")
    lowered = role.lower() if isinstance(role, str) else ""
    metadata = row.get("metadata", {})
    if lowered not in {"human", "ai"} or is_internal(metadata):
        return None
    calls = read_tool_calls(metadata.get("tool_calls")) if isinstance(metadata, Mapping) else ()
    text, text_repaired = _read_text(row.get("content"))
    if text is None:
        if lowered == "human":
            return None
        # Older rows say None instead of "" when a model only made calls.
        text, text_repaired = "", not calls
    moment = parse_moment(row.get("timestamp"))
    row_id, run_id = row.get("id"), row.get("run_id")
    return Entry(
        index=index,
        id=row_id if isinstance(row_id, str) else "",
        run_id=run_id if isinstance(run_id, str) else "",
        role="human" if lowered == "human" else "ai",
        text=text,
        moment=moment,
        tool_calls=calls if lowered == "ai" else (),
        rank=rank,
        repaired=text_repaired or moment is None or not isinstance(metadata, Mapping),
    )


def _read_text(content: Any) -> tuple[str | None, bool]:
    """The text of a content, and whether it had to be made from something else than a text."""
    if isinstance(content, str):
        return content, False
    if content is None:
        return None, True
    return as_text(content), True


def as_text(content: Any) -> str:
    """A content as text: `""` for None, and as JSON what is neither a text nor a list of texts."""
    if content is None or isinstance(content, str):
        return content or ""
    text = text_of_parts(content)
    return as_json(content) if text is None else text


def text_of_parts(content: Any) -> str | None:
    """The joined texts of content parts (`{"type": "text", "text": …}` or plain texts); None for anything else."""
    if not isinstance(content, list | tuple) or not content:
        return None
    found = (part.get("text") if isinstance(part, Mapping) else part for part in content)
    texts = [text for text in found if isinstance(text, str)]
    return "\n".join(texts) if len(texts) == len(content) else None
