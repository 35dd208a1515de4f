"""What the documents of `turns` say, counted one by one. A malformed one is counted as such and stops nothing."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeGuard

from nexus.core.turns import TurnStatus

from .tally import Named, Runs, ToolUse, by_count, spread

_STATUSES = frozenset(status.value for status in TurnStatus)
_SOURCES = frozenset({"fallback", "model"})
_USAGES = ("thinking", "action", "total")
_LEVELS = ("brief", "detailed", "comprehensive")
_TOP_OWNERS = 10


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
    """What is in a collection of turns. Malformed ones are counted once a fault.

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


class TurnTally:
    """Takes turns as `analyze` projects them, and reports what they were."""

    def __init__(self) -> None:
        self.turns = 0
        self.first: datetime | None = None
        self.last: datetime | None = None
        self.owners: Counter[str] = Counter()
        self.sessions: Counter[tuple[str, str]] = Counter()
        self.statuses: Counter[str] = Counter()
        self.sources: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.sizes: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.results: Counter[str] = Counter()
        self.outcomes: Counter[tuple[str, bool]] = Counter()
        self.faults: Counter[str] = Counter()

    def add(self, turn: Mapping[str, Any]) -> None:
        """Count one turn."""
        self.turns += 1
        self._names(turn)
        self._moment(turn.get("timestamp"))
        self._word("unknown status", turn.get("status"), _STATUSES, self.statuses)
        self._word("unknown source of the summary", turn.get("source"), _SOURCES, self.sources)
        work = turn.get("work")
        self.waiting.update([work] if isinstance(work, str) else [])
        for level in _LEVELS:
            self._size(level, turn.get(level))
        self._tokens(turn.get("token_usage"))
        self._tools(turn.get("tool_calls"))

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

    def _moment(self, moment: Any) -> None:
        if not isinstance(moment, datetime):
            self.faults["timestamp is no date"] += 1
            return
        self.first = moment if self.first is None else min(self.first, moment)
        self.last = moment if self.last is None else max(self.last, moment)

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

    def _tokens(self, usage: Any) -> None:
        counts = usage if isinstance(usage, Mapping) else {}
        self.tokens.update({name: counts[name] for name in _USAGES if _is_count(counts.get(name))})

    def _tools(self, calls: Any) -> None:
        for call in calls if isinstance(calls, list) else ():
            known = call if isinstance(call, Mapping) else {}
            name, success = known.get("name"), known.get("success")
            tool = name if _is_name(name) else "(unnamed)"
            self.calls[tool] += 1
            self.results[tool] += known.get("answered") is True
            if isinstance(success, bool):
                self.outcomes[tool, success] += 1

    def report(self, database: str, collection: str) -> TurnsReport:
        """What was counted."""
        return TurnsReport(
            database=database,
            collection=collection,
            turns=self.turns,
            first=self.first,
            last=self.last,
            owners=len(self.owners),
            top_owners=by_count(self.owners)[:_TOP_OWNERS],
            sessions=spread(self.sessions.values()),
            statuses=by_count(self.statuses),
            sources=by_count(self.sources),
            waiting=by_count(self.waiting),
            tools=tuple(self._tool(name) for name in sorted(self.calls)),
            tokens=TokenCounts(*(self.tokens[name] for name in _USAGES)),
            summaries=tuple(LevelSize(level, self.sizes[level]) for level in _LEVELS),
            malformed=by_count(+self.faults),
        )

    def _tool(self, name: str) -> ToolUse:
        good, bad = self.outcomes[name, True], self.outcomes[name, False]
        return ToolUse(name, self.calls[name], self.results[name], good, bad)


def _is_name(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
