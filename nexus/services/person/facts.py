"""Facts about persons (contract §15): statements are read and kept, and what holds follows from them.

- Only statements are stored, each once, and nothing changes or removes them: the same statements give the same facts in
  every order, however often they were sent.
- A pair of topic and sub-topic has one value at a time, compared without case and surplus blanks, as values are.
- Its statements are gone through as they were said. An explicit one takes the pair; one that a model read only where
  nothing holds that was written as a fact, for a model may take a quotation for the person's own. A derived one takes
  it where nothing explicit holds and its value was said in two sessions since it held last. A retirement ends the value
  that it names, or whatever holds; the value before does not come back by that.
- Texts are kept on one line each.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, Self, get_args

import structlog
from pydantic import ValidationError

from nexus.core.concurrency import computed
from nexus.core.errors import StoreRejectedError
from nexus.core.metrics import Event, Metrics, NoMetrics, Reading
from nexus.core.models import (
    MAX_ID_CHARS,
    Message,
    Row,
    is_ambiguous,
    parse_moment,
    to_milliseconds,
    trusted_time,
    utc_now,
)
from nexus.core.person import (
    MAX_TOPIC_CHARS,
    MAX_VALUE_CHARS,
    MOST_EVIDENCE,
    MOST_FACTS,
    Fact,
    FactLevel,
    FactSource,
    Statement,
)
from nexus.core.ports import FactStore, MessageStore
from nexus.core.ports.store import Settled
from nexus.services.history.rows import read_session_id
from nexus.services.session_queue import Key, SessionQueue
from nexus.services.text.escape import one_line

_log = structlog.get_logger(__name__)

MOST_STATEMENTS: Final = 5_000
# Of them for what takes back and for operators alone, so that what is wrong can be mended where nothing else is kept.
_RESERVED: Final = 500
# Replicas that write at once may go beyond the limit by what each of them holds.
_MOST_READ: Final = 2 * MOST_STATEMENTS
# Messages that are looked up at once.
_LOOKED_UP: Final = 1_000
# As precisely as stores keep a time.
_LEAST: Final = timedelta(milliseconds=1)
_SESSIONS_NEEDED: Final = 2
_ID_CHARS: Final = 32
# About what reading a statement costs, in characters of text.
_STATEMENT_CHARS: Final = 400
_LEVELS: Final[tuple[FactLevel, ...]] = get_args(FactLevel)
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "add": ("topic", "sub_topic", "value", "level", "evidence", "valid_from"),
    "retire": ("topic", "sub_topic", "value"),
}
OPS: Final = tuple(_FIELDS)

Slot = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where statements come from.

    Attributes:
        key: of the message, call, command or row; the same key and texts are the same statement.
        said_at: when they were said, where they bring no time of their own.
        session_id: in which they were said; `""` for none.
    """

    owner_key: str
    key: str
    said_at: datetime
    session_id: str = ""
    source: FactSource = "message"


def comparable(text: str) -> str:
    """The text as topics and values are compared: without case and surplus blanks."""
    return one_line(text).casefold()


def slot_of(topic: str, sub_topic: str) -> Slot:
    """The pair that has one value at a time."""
    return comparable(topic), comparable(sub_topic)


def statement(
    origin: Origin,
    topic: str,
    value: str,
    sub_topic: str = "",
    *,
    level: FactLevel = "explicit",
    evidence: Iterable[str] = (),
    valid_from: datetime | None = None,
    retires: bool = False,
) -> Statement:
    """A statement with its id, its texts on one line.

    Raises:
        ValueError: a text is empty or too long, or the time is later than that of the origin; it names the field.
    """
    texts = {
        "topic": _text(topic, "topic", MAX_TOPIC_CHARS),
        "sub_topic": _text(sub_topic, "sub_topic", MAX_TOPIC_CHARS, needed=False),
        "value": _text(value, "value", MAX_VALUE_CHARS, needed=not retires),
    }
    if valid_from and valid_from > origin.said_at:
        raise ValueError("valid_from: is later than the message that says so")
    said_at = to_milliseconds(valid_from or origin.said_at)
    # Not the time of the origin: a message that is sent again may get another where its sender's clock is wrong.
    told = [origin.source, origin.key, *texts.values(), level, retires, str(said_at) if valid_from else ""]
    return Statement(
        id=_hash(told),
        owner_key=origin.owner_key,
        **texts,
        level=level,
        evidence=tuple(sorted(set(evidence))),
        session_id=origin.session_id,
        source=origin.source,
        said_at=said_at,
        retires=retires,
    )


def read_statements(content: Any, origin: Origin) -> list[Statement]:
    """The statements in the content of a `memory.facts` message; ValueError for any other, with the place and why."""
    op = content.get("op") if isinstance(content, Mapping) else None
    if op is None:
        raise ValueError(f"content: a JSON object is needed, with op: {', '.join(OPS)}")
    if op not in OPS:
        raise _unknown("content.op:", OPS)
    for key in content:
        if key not in {"op", "facts"}:
            raise _unknown("content: a field", ("op", "facts"))
    given = content.get("facts")
    if not isinstance(given, Sequence) or isinstance(given, str) or not 1 <= len(given) <= MOST_FACTS:
        raise ValueError(f"content.facts: a list of 1 to {MOST_FACTS} facts is needed")
    found = [_read(op, fact, f"content.facts[{place}]", origin) for place, fact in enumerate(given)]
    places: dict[tuple[Slot, datetime], int] = {}
    for place, each in enumerate(found):
        first = places.setdefault((slot_of(each.topic, each.sub_topic), each.said_at), place)
        if op == "add" and comparable(found[first].value) != comparable(each.value):
            raise ValueError(
                f"content.facts[{place}]: has the topic and sub_topic of content.facts[{first}], and another value; "
                "a pair has one value at a time, so give each its own sub_topic, or its own valid_from"
            )
    return found


def _read(op: str, fact: Any, where: str, origin: Origin) -> Statement:
    if not isinstance(fact, Mapping):
        raise ValueError(f"{where}: a JSON object is needed, with {', '.join(_FIELDS[op])}")
    for key in fact:
        if key not in _FIELDS[op]:
            raise _unknown(f"{where}: a field", _FIELDS[op])
    given = {name: value for name, value in fact.items() if value is not None}
    level = given.get("level", "explicit")
    if level not in _LEVELS:
        raise _unknown(f"{where}.level:", _LEVELS)
    valid_from = None
    if "valid_from" in given and (valid_from := parse_moment(given["valid_from"])) is None:
        raise ValueError(f"{where}.valid_from: a time in ISO 8601 is needed")
    evidence = read_evidence(given.get("evidence", []), f"{where}.evidence")
    try:
        return statement(
            origin,
            given.get("topic", ""),
            given.get("value", ""),
            given.get("sub_topic", ""),
            level=level,
            evidence=evidence,
            valid_from=valid_from,
            retires=op == "retire",
        )
    except ValueError as error:
        raise ValueError(f"{where}.{error}") from None


def read_evidence(given: Any, where: str) -> list[str]:
    """The ids in a list of messages; ValueError for anything else, which names `where`."""
    if not isinstance(given, list) or len(given) > MOST_EVIDENCE:
        raise ValueError(f"{where}: a list of up to {MOST_EVIDENCE} message ids is needed")
    for place, each in enumerate(given):
        if not isinstance(each, str) or not 1 <= len(each) <= MAX_ID_CHARS or is_ambiguous(each):
            raise ValueError(f"{where}[{place}]: a message id of 1 to {MAX_ID_CHARS} characters is needed")
    return given


def _text(value: Any, name: str, most: int, *, needed: bool = True) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name}: a text of 1 to {most} characters is needed")
    text = one_line(value)
    if len(text) > most:
        raise ValueError(f"{name}: {len(text)} characters, at most {most} are allowed")
    if needed and not text:
        raise ValueError(f"{name}: is missing or blank; a text of 1 to {most} characters is needed")
    return text


def _unknown(what: str, allowed: Iterable[str]) -> ValueError:
    # Reasons are logged, so that it is not quoted.
    return ValueError(f"{what} is unknown; allowed: {', '.join(allowed)}")


def _hash(values: Any) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:_ID_CHARS]


@dataclass(slots=True)
class _Interval:
    """A value of a slot while it holds or, without `valid_from`, while too few sessions have said it."""

    said: list[Statement] = field(default_factory=list)
    sessions: set[str] = field(default_factory=set)
    explicit: Statement | None = None
    strength: int = 0
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    before: "_Interval | None" = None

    @property
    def id(self) -> str:
        first = self.said[0]
        return _hash([*slot_of(first.topic, first.sub_topic), first.id])

    def add(self, each: Statement) -> None:
        self.said.append(each)
        self.strength = max(self.strength, _strength(each))
        if each.session_id:
            self.sessions.add(each.session_id)
        if each.level == "explicit" and self.explicit is None:
            self.explicit = each

    def fact(self) -> Fact:
        # An explicit statement has the words that the person chose.
        shown = self.explicit or self.said[0]
        return Fact(
            id=self.id,
            owner_key=shown.owner_key,
            topic=shown.topic,
            sub_topic=shown.sub_topic,
            value=shown.value,
            level=shown.level,
            evidence=tuple(sorted({id_ for each in self.said for id_ in each.evidence})),
            support=len(self.sessions),
            valid_from=self.valid_from,
            valid_to=self.valid_to,
            supersedes=self.before.id if self.before else None,
            source=shown.source,
        )


def _strength(each: Statement) -> int:
    """How much a statement counts beside others: no weaker one takes a pair from a stronger."""
    if each.level == "derived":
        return 0
    return 1 if each.source == "model" else 2


def facts_of(statements: Iterable[Statement]) -> list[Fact]:
    """What follows from the statements of one owner: every interval of every value, by slot, the oldest first.

    Those that never held, for want of support, come last in their slot. The same for any order of statements, and
    however often each is given.
    """
    slots: dict[Slot, list[Statement]] = defaultdict(list)
    for each in {each.id: each for each in statements}.values():
        slots[slot_of(each.topic, each.sub_topic)].append(each)
    facts: list[Fact] = []
    for slot in sorted(slots):
        intervals = _intervals(sorted(slots[slot], key=lambda each: (each.said_at, each.id)))
        facts += [each.fact() for each in intervals if each.valid_from]
        facts += [each.fact() for each in intervals if not each.valid_from]
    return facts


def _intervals(said: Iterable[Statement]) -> list[_Interval]:
    """The intervals of a slot, of its statements as they were said."""
    holds: _Interval | None = None
    # Said and not in force, by value.
    waiting: dict[str, _Interval] = {}
    over: list[_Interval] = []
    for each in said:
        value = comparable(each.value)
        held = comparable(holds.said[0].value) if holds else None
        if each.retires:
            ended = [waiting.pop(name) for name in ([value] if value else [*waiting]) if name in waiting]
            if holds and value in {"", held}:
                ended.append(holds)
                holds = None
            elif holds and holds.before and comparable(holds.before.said[0].value) == value:
                # Nothing shows it any more as what held before.
                holds.before = None
            for interval in ended:
                interval.valid_to = each.said_at
            over += ended
        elif holds and value == held:
            holds.add(each)
        else:
            found = waiting.setdefault(value, _Interval())
            found.add(each)
            is_supported = each.level == "explicit" or len(found.sessions) >= _SESSIONS_NEEDED
            if is_supported and _strength(each) >= (holds.strength if holds else 0):
                found.valid_from, found.before = each.said_at, holds
                if holds:
                    holds.valid_to = each.said_at
                    over.append(holds)
                holds = waiting.pop(value)
    return [*over, *([holds] if holds else []), *waiting.values()]


def _ignore(_reason: str | None) -> None:
    pass


@dataclass(frozen=True, slots=True)
class _Accepted:
    statements: Sequence[Statement]
    message_id: str
    settled: Settled


class Facts:
    """`nexus.core.ports.FactSource` on a store. Messages are written while `running()`; all else needs no running.

    Attributes:
        pending: messages that are accepted and not stored.
    """

    def __init__(self, store: FactStore, metrics: Metrics | None = None) -> None:
        self._store = store
        self._metrics = metrics or NoMetrics()
        self._messages = SessionQueue[_Accepted](self._write, self._settle, self._delayed, metrics=metrics)
        self.pending = self._messages.pending
        self._metrics.read_from(Reading.UNWRITTEN_FACTS, lambda: self.pending.count)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Write accepted messages until the context ends. Wait for `pending` first, to lose nothing."""
        async with self._messages.running():
            try:
                yield self
            finally:
                if self.pending.count:
                    _log.error("facts_unwritten", pending=self.pending.count)
                    self._metrics.count(Event.FACTS_LOST, self.pending.count)

    def offer(self, message: Message, size: int, settled: Settled = _ignore) -> bool:
        """Accept a `memory.facts` message of `size` bytes. Never waits; False when too much is waiting already.

        ValueError where the message holds no facts; it says where and what is allowed.
        """
        session_id = read_session_id(message.metadata)
        origin = Origin(message.owner_key, message.id, trusted_time(message), session_id)
        accepted = _Accepted(read_statements(message.content, origin), message.id, settled)
        return self._messages.offer(_key(message.owner_key), accepted, size)

    async def facts(self, owner_key: str) -> list[Fact]:
        """Every fact of the owner, with the messages that were accepted before; see `facts_of`.

        Raises:
            StoreUnavailableError: they cannot be read now.
        """
        await self._messages.settled(_key(owner_key))
        rows = await self._store.statements(owner_key, limit=_MOST_READ)
        return await computed(owner_key, len(rows) * _STATEMENT_CHARS, lambda: facts_of(read_rows(rows, owner_key)))

    async def statements(self, owner_key: str) -> list[Statement]:
        """Every stored statement of the owner, the latest first. Raises as `facts`."""
        await self._messages.settled(_key(owner_key))
        rows = await self._store.statements(owner_key, limit=_MOST_READ)
        return await computed(owner_key, len(rows) * _STATEMENT_CHARS, lambda: read_rows(rows, owner_key))

    async def add(self, owner_key: str, statements: Sequence[Statement]) -> None:
        """Keep statements of an owner, each once.

        Raises:
            StoreRejectedError: the owner would have too many, or the store cannot keep them; nothing is kept.
            StoreUnavailableError: some of them may be kept; adding them again keeps each once.
        """
        known = await self._store.count_statements(owner_key)
        mends = all(each.retires or each.source == "operator" for each in statements)
        most = MOST_STATEMENTS if mends else MOST_STATEMENTS - _RESERVED
        if known + len(statements) > most:
            kept = {row.get("id") for row in await self._store.statements(owner_key, limit=_MOST_READ)}
            new = sum(each.id not in kept for each in statements)
            if new and known + new > most:
                others = "" if mends else f"; {_RESERVED} more are for operators, and for taking back"
                raise StoreRejectedError(f"of the owner {known} statements are kept, and at most {most} may be{others}")
        await self._store.add_statements(owner_key, statements)

    async def remember(  # noqa: PLR0917  # the arguments of the tool, and where they come from
        self,
        owner_key: str,
        session_id: str,
        call_id: str,
        topic: str,
        value: str,
        sub_topic: str = "",
        evidence: Sequence[str] = (),
    ) -> list[Fact]:
        """Keep what a model was told to remember, once for each call; see `FactSource`."""
        origin = Origin(owner_key, call_id, utc_now(), session_id, "tool")
        return await self.say(origin, topic, value, sub_topic, evidence=evidence)

    async def say(
        self,
        origin: Origin,
        topic: str,
        value: str,
        sub_topic: str = "",
        *,
        evidence: Sequence[str] = (),
        valid_from: datetime | None = None,
        retires: bool = False,
    ) -> list[Fact]:
        """Keep one statement. Returns the facts of its slot then.

        Without `valid_from` it is the latest of the slot, whatever clocks others have.

        Raises:
            ValueError: as `statement`.
            StoreRejectedError, StoreUnavailableError: as `add`.
        """
        slot = slot_of(topic, sub_topic)
        every = await self.statements(origin.owner_key)
        after = [_next(each.said_at) for each in every if slot_of(each.topic, each.sub_topic) == slot]
        said = statement(
            replace(origin, said_at=max(origin.said_at, *after)) if after else origin,
            topic,
            value,
            sub_topic,
            evidence=evidence,
            valid_from=valid_from,
            retires=retires,
        )
        await self.add(origin.owner_key, [said])
        facts = await self.facts(origin.owner_key)
        return [each for each in facts if slot_of(each.topic, each.sub_topic) == slot]

    async def _write(self, key: Key, accepted: Sequence[_Accepted]) -> None:
        await self.add(key[0], [each for item in accepted for each in item.statements])

    def _settle(self, accepted: _Accepted, reason: str | None) -> None:
        if reason is None:
            self._metrics.count(Event.FACTS_RECORDED)
        else:
            _log.warning("facts_refused", message_id=accepted.message_id, reason=reason)
            self._metrics.count(Event.FACTS_REFUSED)
        accepted.settled(reason)

    def _delayed(self, reason: str) -> None:
        _log.warning("facts_delayed", reason=reason, pending=self.pending.count)


async def unsupported(messages: MessageStore, owner_key: str, facts: Iterable[Fact]) -> list[Fact]:
    """Of these facts those that hold and name evidence, of which no message of the owner is there any more."""
    holding = [each for each in facts if each.holds and each.evidence]
    named = [*dict.fromkeys(id_ for each in holding for id_ in each.evidence)]
    there = set[str]()
    for start in range(0, len(named), _LOOKED_UP):
        there |= await messages.recorded_ids(owner_key, named[start : start + _LOOKED_UP])
    return [each for each in holding if there.isdisjoint(each.evidence)]


def read_rows(rows: Iterable[Row], owner_key: str) -> list[Statement]:
    """The statements of the owner in stored documents; any other document is passed over with a line in the log."""
    found, foreign, faults = [], 0, []
    for row in rows:
        if row.get("owner_key") != owner_key:
            foreign += 1
            continue
        try:
            found.append(Statement.model_validate(row))
        except ValidationError as error:
            faults.append(error.errors()[0])
    if foreign:
        _log.error("foreign_rows_withheld", rows=foreign)
    if faults:
        where = ".".join(map(str, faults[0]["loc"]))
        _log.warning("stored_facts_passed_over", rows=len(faults), reason=f"{where}: {faults[0]['type']}")
    return found


def _next(moment: datetime) -> datetime:
    """The next moment that a store tells apart; the last one there is has none."""
    try:
        return moment + _LEAST
    except OverflowError:
        return moment


def _key(owner_key: str) -> Key:
    # One line for an owner: a session's statements are of no other order than those of the others.
    return owner_key, ""
