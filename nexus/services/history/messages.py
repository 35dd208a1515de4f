"""Messages of the history: what each row says, and their order (contract §2, §4.3, §4.6). Pure.

- One malformed row never spoils the rest: it is repaired or left out, and counted.
- Everything is compared as moments, and nothing comes before the human input of its run: clocks differ.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple

from nexus.core.models import LONG_AGO, LeftOut, Row, is_object_id, metadata_of, parse_moment, read_role
from nexus.core.payloads import CallState
from nexus.core.ports.store import CALLS_LEFT_OUT, LONGEST_CONTENT
from nexus.services.history.forms import REPAIRED, UNKNOWN, left_out_of, native, success_of
from nexus.services.history.progress import PROGRESS, is_progress, shown_progress, state_of
from nexus.services.history.rows import text_or_empty
from nexus.services.history.tool_calls import ToolCall, as_id, read_tool_calls
from nexus.services.text.content import as_text

Speaker = Literal["user", "assistant", "tool"]

# By the role of a row.
_SPEAKERS: Final[Mapping[str, Speaker]] = {"HUMAN": "user", "AI": "assistant", "TOOL": "tool"}
_NO_ID: Final = "0" * 24
_NO_ROW: Final[Row] = {}

# By time, then run by run, the human first, then as it was stored.
Place = tuple[datetime, int, bool, int]


class HistoryMessage(NamedTuple):
    """What one row in the form inside says.

    Attributes:
        role: None for a row that no context shows.
        text: as recorded, and JSON for content that is no text; escaped only behind the validity gate. Of progress
            what stands in the place of the result.
        source: id of the message; `""` where it has none.
        run_id: `""` for none.
        calls: those that an answer declares.
        call_id, tool_name: the call that a result names, and its tool; `""` where it names none.
        success: of a result that tells it; None for all else.
        state: of a row that says how far a call has come (`progress`), and is not shown by itself; `""` for all else.
        left_out: what the row says besides, and is not shown.
        moment: in UTC; None where it has no readable time.
        rank: in stored order, oldest lowest; no other row that was read with it has the same.
        row: in the form inside.
        stored: the row as it is stored, or the part of it that this is.
        escaped: places that the validity gate marked in the text.
    """

    role: Speaker | None
    text: str = ""
    source: str = ""
    run_id: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    tool_name: str = ""
    success: bool | None = None
    state: CallState | Literal[""] = ""
    left_out: tuple[LeftOut, ...] = ()
    moment: datetime | None = None
    rank: int = 0
    row: Row = _NO_ROW
    stored: Any = None
    escaped: int = 0

    @property
    def metadata(self) -> Mapping[str, Any]:
        """That of the row; an empty one where it has none."""
        return metadata_of(self.row)

    @property
    def is_faulty(self) -> bool:
        """Whether something in the row could not be read, or was not understood."""
        if self.role is None:
            return read_role(self.row.get("role")) is None
        # Older rows say None where a model only made calls, and a result may be nothing.
        says_nothing = self.row.get("content") is None and self.role != "tool" and not self.calls
        return self.moment is None or self.row.get(REPAIRED) is True or says_nothing

    @property
    def is_truncated(self) -> bool:
        """Whether a long content was read without its middle, or many calls without the last of them."""
        content = self.row.get("content")
        return (isinstance(content, str) and len(content) > LONGEST_CONTENT) or bool(self.metadata.get(CALLS_LEFT_OUT))


def read_messages(rows: Sequence[Any]) -> list[HistoryMessage]:
    """What these rows say, whatever order they come in, in stored order.

    By `_id` where every row has an ObjectId, which grows with time. Otherwise by place: stores answer newest first, so
    the last row is the oldest, unless the times at both ends say that the list runs the other way.
    """
    return messages_of([rows[index] for index in _oldest_first(rows)])


def messages_of(rows: Iterable[Any]) -> list[HistoryMessage]:
    """What these rows say, in their order, oldest first; a row may be several messages."""
    messages: list[HistoryMessage] = []
    for row in rows:
        parts = native(row)
        for part in parts:
            messages.append(_read_message(part, len(messages), row if len(parts) == 1 else part))
    return messages


def _read_message(row: Any, rank: int, stored: Any) -> HistoryMessage:
    if not isinstance(row, dict):
        return HistoryMessage(None, rank=rank, stored=stored)
    role, known, source = _SPEAKERS.get(text_or_empty(row.get("role"))), metadata_of(row), text_or_empty(row.get("id"))
    if role == "tool" and is_progress(row):
        return _read_progress(row, known, source, rank, stored)
    is_result = role == "tool"
    name = text_or_empty(known.get("tool_name")) if is_result else ""
    return HistoryMessage(
        role,
        as_text(row.get("content")),
        source,
        text_or_empty(row.get("run_id")),
        read_tool_calls(known.get("tool_calls")) if role == "assistant" else (),
        as_id(known.get("call_id")) if is_result else "",
        "" if name == UNKNOWN else name,
        success_of(known) if is_result else None,
        "",
        left_out_of(row, source),
        parse_moment(row.get("timestamp")),
        rank,
        row,
        stored,
    )


def _read_progress(row: Row, known: Mapping[str, Any], source: str, rank: int, stored: Any) -> HistoryMessage:
    progress = known.get(PROGRESS)
    state = state_of(progress)
    return HistoryMessage(
        None,
        shown_progress(progress) if state and progress else "",
        source,
        text_or_empty(row.get("run_id")),
        call_id=as_id(known.get("call_id")),
        success=False if state == "failed" else None,
        state=state,
        moment=parse_moment(row.get("timestamp")),
        rank=rank,
        row=row,
        stored=stored,
    )


def in_order(messages: Iterable[HistoryMessage]) -> list[HistoryMessage]:
    """The messages of several runs, oldest first."""
    runs: defaultdict[str | int, list[HistoryMessage]] = defaultdict(list)
    for item in messages:
        # One without a run is one by itself, and one that no context shows has no part in the order of its run.
        runs[item.run_id if item.role and item.run_id else item.rank].append(item)
    placed = (pair for members in runs.values() for pair in zip(places_in_run(members), members, strict=True))
    return [item for _, item in sorted(placed)]


def places_in_run(members: Sequence[HistoryMessage]) -> list[Place]:
    """The sort key of each message of a run; ascending is oldest first.

    Clocks differ: nothing comes before the first message of a human.
    """
    ordered = sorted(members, key=attrgetter("rank"))
    assumed = assumed_moments([item.moment for item in ordered])
    moments = {item.rank: moment for item, moment in zip(ordered, assumed, strict=True)}
    asked, question = min(
        ((moments[item.rank], item.rank) for item in members if item.role == "user"), default=(LONG_AGO, -1)
    )
    first = min(moments, default=0)
    return [(max(moments[item.rank], asked), first, item.rank != question, item.rank) for item in members]


def assumed_moments(moments: Sequence[datetime | None]) -> list[datetime]:
    """The moments of the rows of a run, in stored order; for None that of the row before, or the run's earliest."""
    assumed = min([moment for moment in moments if moment], default=LONG_AGO)
    return [assumed := moment or assumed for moment in moments]


def _oldest_first(rows: Sequence[Any]) -> Iterable[int]:
    """The places of the rows in the list, in stored order."""
    ids = [row.get("_id") if isinstance(row, dict) else _NO_ID for row in rows]
    back = range(len(rows) - 1, -1, -1)
    if all(isinstance(row_id, str) and is_object_id(row_id) for row_id in ids):
        # The later of two with the same `_id` comes first, as it does by place.
        return sorted(back, key=lambda index: str(ids[index]))
    start, end = _first_moment(rows), _first_moment(reversed(rows))
    return range(len(rows)) if start and end and start < end else back


def _first_moment(rows: Iterable[Any]) -> datetime | None:
    read = (parse_moment(row.get("timestamp")) for row in rows if isinstance(row, Mapping))
    return next(filter(None, read), None)
