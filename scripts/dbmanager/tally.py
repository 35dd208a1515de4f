"""What the rows of `messages` say, counted one by one. A malformed row is counted as such and never stops the count."""

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from nexus.core.models import Role

_ROLES = frozenset(role.value.casefold() for role in Role)
_SUCCESS = frozenset({"success", "succeeded", "ok", "completed"})
_TOP_OWNERS = 10
_DAYS = 30


@dataclass(frozen=True)
class Named:
    """How often something occurs."""

    name: str
    count: int


@dataclass(frozen=True)
class Runs:
    """Runs, and how many messages they have; or whatever else has parts."""

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
    """What is in a collection of messages. Sizes are bytes of text; malformed rows are counted once a fault."""

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


class MessageTally:
    """Takes rows as `analyze` projects them, and reports what they were."""

    def __init__(self) -> None:
        self.messages = 0
        self.content_bytes = 0
        self.first: datetime | None = None
        self.last: datetime | None = None
        self.roles: Counter[str] = Counter()
        self.runs: Counter[str] = Counter()
        self.owners: Counter[str] = Counter()
        self.sessions: set[tuple[str, str]] = set()
        self.days: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.results: Counter[str] = Counter()
        self.outcomes: Counter[tuple[str, bool]] = Counter()

    def add(self, row: Mapping[str, Any]) -> None:
        """Count one row."""
        self.messages += 1
        role = self._role(row.get("role"))
        owner = self._named(row.get("owner_key"), self.owners, "missing owner_key")
        self._named(row.get("run_id"), self.runs, "no run_id")
        session = row.get("session_id")
        if owner:
            self.sessions.add((owner, session if isinstance(session, str) and session else "default"))
        self._moment(row.get("timestamp"))
        self._content(row)
        metadata = row.get("metadata")
        if isinstance(metadata, Mapping):
            self._tools(role, metadata)

    def _role(self, role: Any) -> str:
        known = isinstance(role, str) and role.casefold() in _ROLES
        self.faults["unknown role"] += not known
        name = role if isinstance(role, str) else f"({type(role).__name__})"
        self.roles[name.upper() if known else name] += 1
        return name.upper()

    def _named(self, value: Any, counter: Counter[str], fault: str) -> str:
        if isinstance(value, str) and value:
            counter[value] += 1
            return value
        self.faults[fault] += 1
        return ""

    def _moment(self, moment: Any) -> None:
        if not isinstance(moment, datetime):
            self.faults["timestamp is no date"] += 1
            return
        self.first = moment if self.first is None else min(self.first, moment)
        self.last = moment if self.last is None else max(self.last, moment)
        self.days[moment.astimezone(UTC).date().isoformat()] += 1

    def _content(self, row: Mapping[str, Any]) -> None:
        size = row.get("content_bytes")
        if isinstance(size, int):
            self.content_bytes += size
        else:
            self.faults["content is no text"] += 1

    def _tools(self, role: str, metadata: Mapping[str, Any]) -> None:
        for call in _calls(metadata.get("tool_calls")):
            self.calls[_call_name(call)] += 1
        tool = metadata.get("tool_name")
        if role != Role.TOOL:
            return
        name = tool if isinstance(tool, str) and tool else "(unnamed)"
        self.results[name] += 1
        outcome = _outcome(metadata)
        if outcome is not None:
            self.outcomes[name, outcome] += 1

    def report(self, database: str, collection: str) -> MessagesReport:
        """What was counted."""
        return MessagesReport(
            database=database,
            collection=collection,
            messages=self.messages,
            content_bytes=self.content_bytes,
            first=self.first,
            last=self.last,
            roles=by_count(self.roles),
            runs=spread(self.runs.values()),
            owners=len(self.owners),
            top_owners=by_count(self.owners)[:_TOP_OWNERS],
            sessions=len(self.sessions),
            tools=tuple(self._tool(name) for name in sorted(self.calls.keys() | self.results.keys())),
            days=tuple(Named(day, self.days[day]) for day in sorted(self.days)[-_DAYS:]),
            malformed=by_count(+self.faults),
        )

    def _tool(self, name: str) -> ToolUse:
        good, bad = self.outcomes[name, True], self.outcomes[name, False]
        return ToolUse(name, self.calls[name], self.results[name], good, bad)


def _calls(value: Any) -> Iterable[Any]:
    if isinstance(value, list):
        return value
    return () if value is None else (value,)


def _call_name(call: Any) -> str:
    """Of a nested `{"function": {"name"}}` or a flat `{"name"}` call (CONTRACT §2)."""
    if not isinstance(call, Mapping):
        return "(unnamed)"
    function = call.get("function")
    name = function.get("name") if isinstance(function, Mapping) else call.get("name")
    return name if isinstance(name, str) and name else "(unnamed)"


def _outcome(metadata: Mapping[str, Any]) -> bool | None:
    succeeded = metadata.get("execution_success")
    if isinstance(succeeded, bool):
        return succeeded
    status = metadata.get("status")
    return status.casefold() in _SUCCESS if isinstance(status, str) and status else None


def spread(sizes: Collection[int]) -> Runs:
    """How many there are, and of which sizes."""
    return Runs(len(sizes), min(sizes), statistics.median(sizes), max(sizes)) if sizes else Runs(0, 0, 0, 0)


def by_count(counter: Counter[str]) -> tuple[Named, ...]:
    """What is most frequent first."""
    return tuple(Named(name, counter[name]) for name in sorted(counter, key=lambda name: (-counter[name], name)))
