"""Stored rows one by one: what each says, whatever rows are read with it (CONTRACT §2). Pure.

Rules of this module:

- One malformed row never spoils the rest: it is repaired or not shown, and counted.
- What is read depends on the row alone, so it may be kept as long as the row stays the same.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from nexus.services.context.agents import INTERNAL, is_internal
from nexus.services.context.annotations import ToolCall, as_json, read_tool_calls
from nexus.services.context.clock import parse_moment

_STORED_TODAY: Final[Mapping[str, Literal["human", "ai"]]] = {"HUMAN": "human", "AI": "ai"}
_made: Final = tuple.__new__
_made_row: Final = dict.__new__
_FIELDS: Final = itemgetter("role", "content", "timestamp", "metadata", "id", "run_id")
_KEPT: Final = itemgetter("_id", "owner_key", "role", "content", "timestamp", "metadata", "id", "run_id")
_SHOWN: Final = frozenset({"human", "ai"})
_PASSED_OVER: Final = frozenset({"tool", "system", "command"})
_NO_METADATA: Final[Mapping[str, Any]] = MappingProxyType({})


class Entry(NamedTuple):
    """What one stored row says, whatever rows are read with it: it may be kept and used again.

    Attributes:
        role: `""` for a row that is not shown.
        id: `""` when the row has none.
        run_id: `""` for a row that belongs to no run, or is not shown.
        text: as stored; `""` for an answer without content.
        moment: in UTC; None when the row has no readable time.
        stored_calls: those that the row declared, as stored; None for those of a human, which count for nothing.
        repaired: something in the row was not as it is stored today.
        row: the row itself; None in a `KeptRow`, which it would keep alive with all its fields.
    """

    role: Literal["human", "ai", ""]
    id: str
    run_id: str
    text: str
    moment: datetime | None
    stored_calls: Any
    repaired: bool
    row: Any

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls that the row declared."""
        return read_tool_calls(self.stored_calls) if self.stored_calls else ()


class KeptRow(dict[str, Any]):
    """What is needed of a row that was read, with what it says: it is read once, however often it is shown.

    Nobody may change it. A decoder makes the names of fields anew for each row, and most fields are not asked for
    again. Such rows are kept by the thousand, so they have those that are, under names that all of them share.
    """

    __slots__ = ("entry",)

    def __init__(self, row: Mapping[str, Any]) -> None:
        # One by one, because a dictionary to copy them from takes longer than they do.
        get = row.get
        self["_id"] = get("_id")
        self["id"] = get("id")
        self["run_id"] = get("run_id")
        self["owner_key"] = get("owner_key")
        self["content"] = get("content")
        self.entry = read_row(row, kept=True)


def kept_rows(rows: Iterable[Mapping[str, Any]]) -> list[KeptRow]:
    """What is kept of each row: `KeptRow(row)`, in two thirds of the time where the row is as it is stored today."""
    kept = []
    for row in rows:
        try:
            store_id, owner_key, stored, text, moment, metadata, row_id, run_id = _KEPT(row)
            role = _STORED_TODAY[stored]
        except (KeyError, TypeError):
            kept.append(KeptRow(row))
            continue
        today = type(text) is str and type(metadata) is dict and type(row_id) is str and type(run_id) is str
        if not today or type(moment) is not datetime or moment.tzinfo is not UTC or metadata.get(INTERNAL):
            kept.append(KeptRow(row))
            continue
        # As `KeptRow` and `read_row` do it, without the calls in between.
        one = _made_row(KeptRow)
        one["_id"] = store_id
        one["id"] = row_id
        one["run_id"] = run_id
        one["owner_key"] = owner_key
        one["content"] = text
        calls = metadata.get("tool_calls") if role == "ai" else None
        one.entry = _made(Entry, (role, row_id, run_id, text, moment, calls, False, None))
        kept.append(one)
    return kept


def read_rows(rows: Sequence[Any], *, current_run_id: str = "") -> tuple[list[Entry], int]:
    """What each row says, and how many of them had to be repaired or left out.

    Rows of other roles (tools, system, commands), those internal to a sub-agent and those of the current run are not
    shown, and not counted.

    Args:
        rows: as stored; of a `KeptRow` what was read before is taken.
        current_run_id: the run that asks.
    """
    entries = [row.entry if type(row) is KeptRow else read_row(row) for row in rows]
    if current_run_id:
        entries = [_not_shown(entry.row) if entry.run_id == current_run_id else entry for entry in entries]
    return entries, [entry.repaired for entry in entries].count(True)


def read_row(row: Any, *, kept: bool = False) -> Entry:
    """What a stored row says; of one that is `kept` without the row itself."""
    try:
        stored, text, moment, metadata, row_id, run_id = _FIELDS(row)
        role = _STORED_TODAY[stored]
    except (KeyError, TypeError):
        return _read_leniently(row, kept=kept)
    # Nearly all are as they are stored today, and are read in half the time.
    today = type(text) is str and type(metadata) is dict and type(row_id) is str and type(run_id) is str
    if not today or metadata.get(INTERNAL):
        return _read_leniently(row, kept=kept)
    # Nearly all are dates in UTC, of which `parse_moment` says no more; a call for each row is felt.
    if type(moment) is not datetime or moment.tzinfo is not UTC:
        moment = parse_moment(moment)
    calls = metadata.get("tool_calls") if role == "ai" else None
    # As `Entry(…)` does it, without the call in between.
    return _made(Entry, (role, row_id, run_id, text, moment, calls, moment is None, None if kept else row))


def _read_leniently(row: Any, *, kept: bool) -> Entry:
    if not isinstance(row, Mapping):
        return _not_shown(row, faulty=True)
    stored, metadata = row.get("role"), row.get("metadata", _NO_METADATA)
    role = _STORED_TODAY.get(stored) or stored.lower() if isinstance(stored, str) else ""
    internal = is_internal(metadata)
    if internal or role not in _SHOWN:
        # Nothing is wrong with a row that is none of what people and Nexus said to each other.
        return _not_shown(None if kept else row, faulty=not internal and role not in _PASSED_OVER)
    return _read(row, "human" if role == "human" else "ai", metadata, kept=kept)


def _read(row: Mapping[str, Any], role: Literal["human", "ai"], metadata: Any, *, kept: bool) -> Entry:
    described = isinstance(metadata, Mapping)
    calls = metadata.get("tool_calls") if metadata and described and role == "ai" else None
    text, moment = row.get("content"), parse_moment(row.get("timestamp"))
    repaired = moment is None or not described
    if not isinstance(text, str):
        if text is None and role == "human":
            return _not_shown(None if kept else row, faulty=True)
        # Older rows say None instead of "" when a model only made calls.
        repaired = repaired or not (text is None and read_tool_calls(calls))
        text = as_text(text)
    row_id, run_id = row.get("id"), row.get("run_id")
    return Entry(
        role,
        row_id if isinstance(row_id, str) else "",
        run_id if isinstance(run_id, str) else "",
        text,
        moment,
        calls,
        repaired,
        None if kept else row,
    )


def _not_shown(row: Any, *, faulty: bool = False) -> Entry:
    return Entry("", "", "", "", None, None, faulty, row)


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
