"""Counts of a collection's documents. Contents stay on the server: only the size of the texts is asked.

A malformed document is counted as such, once a fault, and never stops the count.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeGuard

from nexus.core.models import Role
from nexus.core.turns import TurnStatus

from .documents import types_by_field
from .server import Rows

_ROLES = frozenset(role.value.casefold() for role in Role)
_SUCCESS = frozenset({"success", "succeeded", "ok", "completed"})
_STATUSES = frozenset(status.value for status in TurnStatus)
_SOURCES = frozenset({"fallback", "model"})
_USAGES = ("thinking", "action", "total")
_LEVELS = ("brief", "detailed", "comprehensive")
_UNNAMED = "(unnamed)"
_TOP_OWNERS = 10
_DAYS = 30


@dataclass(frozen=True)
class Named:
    """How often something occurs."""

    name: str
    count: int


@dataclass(frozen=True)
class Runs:
    """Runs, and how many messages they have; or sessions, and how many turns."""

    count: int
    min: int
    median: float
    max: int


@dataclass(frozen=True)
class ToolUse:
    """One tool: calls by models, results, and how many of the results whose outcome is known were a success."""

    name: str
    calls: int
    results: int
    succeeded: int
    failed: int

    @property
    def success_rate(self) -> float | None:
        """From 0 to 1; None where no outcome is known."""
        known = self.succeeded + self.failed
        return self.succeeded / known if known else None


@dataclass(frozen=True)
class MessagesReport:
    """Counts of a collection of messages. Sizes are bytes of text."""

    database: str
    collection: str
    messages: int
    content_bytes: int
    first: datetime | None
    last: datetime | None
    roles: tuple[Named, ...]
    runs: Runs
    owners: int
    top_owners: tuple[Named, ...]
    sessions: int
    tools: tuple[ToolUse, ...]
    days: tuple[Named, ...]
    malformed: tuple[Named, ...]


@dataclass(frozen=True)
class TokenCounts:
    """Tokens that models and orchestrators reported, of all turns together."""

    thinking: int
    action: int
    total: int


@dataclass(frozen=True)
class LevelSize:
    """How many bytes of text the summaries of one level are."""

    level: str
    bytes: int


@dataclass(frozen=True)
class TurnsReport:
    """Counts of a collection of turns.

    Attributes:
        sessions: how many, and how many turns they have.
        sources: who wrote the summaries.
        waiting: by the work that is due on them, now or later.
    """

    database: str
    collection: str
    turns: int
    first: datetime | None
    last: datetime | None
    owners: int
    top_owners: tuple[Named, ...]
    sessions: Runs
    statuses: tuple[Named, ...]
    sources: tuple[Named, ...]
    waiting: tuple[Named, ...]
    tools: tuple[ToolUse, ...]
    tokens: TokenCounts
    summaries: tuple[LevelSize, ...]
    malformed: tuple[Named, ...]


class _Tally:
    """Common to messages and turns: an owner, a moment, tools and faults."""

    def __init__(self) -> None:
        self.count = 0
        self.first: datetime | None = None
        self.last: datetime | None = None
        self.owners: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.results: Counter[str] = Counter()
        self.outcomes: Counter[tuple[str, bool]] = Counter()
        self.faults: Counter[str] = Counter()

    def _moment(self, moment: Any) -> datetime | None:
        if not isinstance(moment, datetime):
            self.faults["timestamp is no date"] += 1
            return None
        self.first = moment if self.first is None else min(self.first, moment)
        self.last = moment if self.last is None else max(self.last, moment)
        return moment

    def _tool_uses(self) -> tuple[ToolUse, ...]:
        return tuple(
            ToolUse(name, self.calls[name], self.results[name], self.outcomes[name, True], self.outcomes[name, False])
            for name in sorted(self.calls.keys() | self.results.keys())
        )


class MessageTally(_Tally):
    """Takes rows as `analyze` projects them, and reports their counts."""

    def __init__(self) -> None:
        super().__init__()
        self.content_bytes = 0
        self.roles: Counter[str] = Counter()
        self.runs: Counter[str] = Counter()
        self.sessions: set[tuple[str, str]] = set()
        self.days: Counter[str] = Counter()

    def add(self, row: Mapping[str, Any]) -> None:
        """Count one row."""
        self.count += 1
        role = self._role(row.get("role"))
        owner = self._named(row.get("owner_key"), self.owners, "missing owner_key")
        self._named(row.get("run_id"), self.runs, "no run_id")
        session = row.get("session_id")
        if owner:
            self.sessions.add((owner, session if _is_name(session) else "default"))
        if moment := self._moment(row.get("timestamp")):
            self.days[moment.astimezone(UTC).date().isoformat()] += 1
        size = row.get("content_bytes")
        if isinstance(size, int):
            self.content_bytes += size
        else:
            self.faults["content is no text"] += 1
        metadata = row.get("metadata")
        if isinstance(metadata, Mapping):
            self._tools(role, metadata)

    def report(self, database: str, collection: str) -> MessagesReport:
        """The counts."""
        return MessagesReport(
            database=database,
            collection=collection,
            messages=self.count,
            content_bytes=self.content_bytes,
            first=self.first,
            last=self.last,
            roles=_by_count(self.roles),
            runs=_spread(self.runs.values()),
            owners=len(self.owners),
            top_owners=_by_count(self.owners)[:_TOP_OWNERS],
            sessions=len(self.sessions),
            tools=self._tool_uses(),
            days=tuple(Named(day, self.days[day]) for day in sorted(self.days)[-_DAYS:]),
            malformed=_by_count(+self.faults),
        )

    def _role(self, role: Any) -> str:
        known = isinstance(role, str) and role.casefold() in _ROLES
        self.faults["unknown role"] += not known
        name = role if isinstance(role, str) else f"({type(role).__name__})"
        self.roles[name.upper() if known else name] += 1
        return name.upper()

    def _named(self, value: Any, counter: Counter[str], fault: str) -> str:
        if _is_name(value):
            counter[value] += 1
            return value
        self.faults[fault] += 1
        return ""

    def _tools(self, role: str, metadata: Mapping[str, Any]) -> None:
        calls = metadata.get("tool_calls")
        for call in calls if isinstance(calls, list) else () if calls is None else (calls,):
            self.calls[_call_name(call)] += 1
        if role != Role.TOOL:
            return
        tool = metadata.get("tool_name")
        name = tool if _is_name(tool) else _UNNAMED
        self.results[name] += 1
        outcome = _outcome(metadata)
        if outcome is not None:
            self.outcomes[name, outcome] += 1


class TurnTally(_Tally):
    """Takes turns as `analyze` projects them, and reports their counts."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions: Counter[tuple[str, str]] = Counter()
        self.statuses: Counter[str] = Counter()
        self.sources: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.sizes: Counter[str] = Counter()

    def add(self, turn: Mapping[str, Any]) -> None:
        """Count one turn."""
        self.count += 1
        self._names(turn)
        self._moment(turn.get("timestamp"))
        self._word("unknown status", turn.get("status"), _STATUSES, self.statuses)
        self._word("unknown source of the summary", turn.get("source"), _SOURCES, self.sources)
        work = turn.get("work")
        self.waiting.update([work] if isinstance(work, str) else [])
        for level in _LEVELS:
            self._size(level, turn.get(level))
        usage = turn.get("token_usage")
        counts = usage if isinstance(usage, Mapping) else {}
        self.tokens.update({name: counts[name] for name in _USAGES if _is_count(counts.get(name))})
        self._tools(turn.get("tool_calls"))

    def report(self, database: str, collection: str) -> TurnsReport:
        """The counts."""
        return TurnsReport(
            database=database,
            collection=collection,
            turns=self.count,
            first=self.first,
            last=self.last,
            owners=len(self.owners),
            top_owners=_by_count(self.owners)[:_TOP_OWNERS],
            sessions=_spread(self.sessions.values()),
            statuses=_by_count(self.statuses),
            sources=_by_count(self.sources),
            waiting=_by_count(self.waiting),
            tools=self._tool_uses(),
            tokens=TokenCounts(*(self.tokens[name] for name in _USAGES)),
            summaries=tuple(LevelSize(level, self.sizes[level]) for level in _LEVELS),
            malformed=_by_count(+self.faults),
        )

    def _names(self, turn: Mapping[str, Any]) -> None:
        names = {name: turn.get(name) for name in ("owner_key", "session_id", "run_id")}
        for name, value in names.items():
            self.faults[f"no {name}"] += not _is_name(value)
        owner, session = names["owner_key"], names["session_id"]
        if _is_name(owner):
            self.owners[owner] += 1
            if _is_name(session):
                self.sessions[owner, session] += 1
        number = turn.get("turn_number")
        self.faults["turn_number is no number from 1 up"] += not (_is_count(number) and number)

    def _word(self, fault: str, value: Any, known: frozenset[str], counter: Counter[str]) -> None:
        if isinstance(value, str) and value in known:
            counter[value] += 1
        else:
            self.faults[fault] += 1

    def _size(self, level: str, size: Any) -> None:
        if _is_count(size):
            self.sizes[level] += size
        else:
            self.faults[f"no {level} summary"] += 1

    def _tools(self, calls: Any) -> None:
        for call in calls if isinstance(calls, list) else ():
            known = call if isinstance(call, Mapping) else {}
            name, success = known.get("name"), known.get("success")
            tool = name if _is_name(name) else _UNNAMED
            self.calls[tool] += 1
            self.results[tool] += known.get("answered") is True
            if isinstance(success, bool):
                self.outcomes[tool, success] += 1


def _call_name(call: Any) -> str:
    """Of a nested `{"function": {"name"}}` or a flat `{"name"}` call (contract §2)."""
    if not isinstance(call, Mapping):
        return _UNNAMED
    function = call.get("function")
    name = function.get("name") if isinstance(function, Mapping) else call.get("name")
    return name if _is_name(name) else _UNNAMED


def _outcome(metadata: Mapping[str, Any]) -> bool | None:
    succeeded = metadata.get("execution_success")
    if isinstance(succeeded, bool):
        return succeeded
    status = metadata.get("status")
    return status.casefold() in _SUCCESS if _is_name(status) else None


def _is_name(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _spread(sizes: Collection[int]) -> Runs:
    return Runs(len(sizes), min(sizes), statistics.median(sizes), max(sizes)) if sizes else Runs(0, 0, 0, 0)


def _by_count(counter: Counter[str]) -> tuple[Named, ...]:
    return tuple(Named(name, counter[name]) for name in sorted(counter, key=lambda name: (-counter[name], name)))


_BATCH = 500


def _text_bytes(value: str, otherwise: int | None = None) -> dict[str, Any]:
    return {"$cond": [{"$eq": [{"$type": value}, "string"]}, {"$strLenBytes": value}, otherwise]}


def _list_bytes(value: str) -> dict[str, Any]:
    texts = {"$map": {"input": value, "as": "item", "in": _text_bytes("$$item", 0)}}
    return {"$cond": [{"$isArray": value}, {"$sum": texts}, 0]}


_MESSAGE = {
    "_id": 0,
    **dict.fromkeys(("run_id", "owner_key", "session_id", "role", "timestamp"), 1),
    "content_bytes": _text_bytes("$content"),
    **dict.fromkeys(("metadata.tool_calls.name", "metadata.tool_calls.function.name"), 1),
    **dict.fromkeys(("metadata.tool_name", "metadata.status", "metadata.execution_success"), 1),
}
_STRUCTURED = "$summaries.structured"
_OVERVIEW = _text_bytes(f"{_STRUCTURED}.overview")
_LISTS = [_list_bytes(f"{_STRUCTURED}.{name}") for name in ("actions", "results", "decisions", "next_steps")]
_OUTCOME = {
    "name": "$$call.name",
    "success": "$$call.success",
    "answered": {"$ne": [{"$ifNull": ["$$call.result", None]}, None]},
}
_TURN = {
    "_id": 0,
    **dict.fromkeys(("turn_number", "owner_key", "session_id", "run_id", "timestamp", "status", "token_usage"), 1),
    "work": 1,
    "source": "$summaries.source",
    "brief": _text_bytes("$summaries.brief"),
    "detailed": _text_bytes("$summaries.detailed"),
    # A sum of nothing known is nothing known.
    "comprehensive": {"$add": [_OVERVIEW, *_LISTS]},
    "tool_calls": {
        "$cond": [
            {"$isArray": "$tool_calls"},
            {"$map": {"input": "$tool_calls", "as": "call", "in": _OUTCOME}},
            None,
        ]
    },
}


@dataclass(frozen=True)
class Field:
    """A field at the top of documents: in how many it is, and with which BSON types."""

    name: str
    documents: int
    types: dict[str, int]


@dataclass(frozen=True)
class FieldsReport:
    """The fields of a collection's documents."""

    database: str
    collection: str
    documents: int
    fields: tuple[Field, ...]


def analyze_messages(rows: Rows, advance: Callable[[int], None]) -> MessagesReport:
    """Count the rows of a collection of messages."""
    tally = MessageTally()
    _add_all(tally, rows, _MESSAGE, advance)
    return tally.report(rows.database.name, rows.name)


def analyze_turns(rows: Rows, advance: Callable[[int], None]) -> TurnsReport:
    """Count the documents of a collection of turns."""
    tally = TurnTally()
    _add_all(tally, rows, _TURN, advance)
    return tally.report(rows.database.name, rows.name)


def _add_all(
    tally: MessageTally | TurnTally, rows: Rows, fields: Mapping[str, Any], advance: Callable[[int], None]
) -> None:
    for document in rows.aggregate([{"$project": fields}], batchSize=_BATCH):
        tally.add(document)
        if tally.count % _BATCH == 0:
            advance(_BATCH)


def analyze_fields(rows: Rows) -> FieldsReport:
    """Count the fields of a collection's documents."""
    fields = [Field(name, sum(types.values()), types) for name, types in types_by_field(rows, {}).items()]
    fields.sort(key=lambda field: (-field.documents, field.name))
    return FieldsReport(rows.database.name, rows.name, rows.count_documents({}), tuple(fields))
