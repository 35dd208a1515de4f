"""Constraints: read from JSON, merged into what is stored, kept and given to contexts and tools (contract §15).

- Of each id the latest setting and the latest taking back count, by the times of their messages. So the same changes
  give the same document in any order and however often, also where a constraint is taken back before it is there.
- All in force are kept, at most `MOST_IN_FORCE` of a place and in tokens what `most_tokens` allows: more is an error
  when it is set. Of the others the newest `_MOST_OTHERS` are kept; only beyond that the order of changes may show.
- A document is replaced only if it has the revision that was read: on a conflict it is read and merged again.
- What an owner's messages change is written by one worker, since one message may name several places. What cannot be
  written now waits in memory, bounded (see `session_queue`); reading waits for what was accepted before.
- A stored document is checked against its owner and its place before it is used. What cannot be read of it is logged
  and passed over.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Self, cast

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Event, Metrics, NoMetrics, Reading
from nexus.core.models import Message, Moment, to_milliseconds, trusted_time, utc_now
from nexus.core.person import CONSTRAINT_SCOPES, KINDS, MAX_CONSTRAINT_CHARS, Constraint, ConstraintScope
from nexus.core.ports import ConstraintStore, Row, TokenCounter
from nexus.core.ports.store import Settled
from nexus.core.wire import explain
from nexus.services.history.rows import read_session_id
from nexus.services.session_queue import Key, SessionQueue
from nexus.services.text.escape import canonical
from nexus.services.text.tokens import too_many_tokens

_log = structlog.get_logger(__name__)

MOST_IN_FORCE: Final = 100
_MOST_OTHERS: Final = 500
OPS: Final = ("add", "retire")
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {"add": ("op", "constraints"), "retire": ("op", "ids", "constraints")}
_FIELDS: Final = ("text", "kind", "scope")
_ID: Final = re.compile(rf"({'|'.join(CONSTRAINT_SCOPES)})-[0-9a-f]{{16}}")
_ID_CHARS: Final = 16
# The longest word of a sender that a reason, which is logged, may quote.
_WORD: Final = re.compile(r"[A-Za-z_-]{1,16}")
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
# As precisely as stores keep a time.
_TICK: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Target:
    """The owner, session and run that a change is about: they are the places of its scopes."""

    owner_key: str
    session_id: str
    run_id: str

    def place(self, scope: str) -> str:
        """The place of a scope."""
        return place_of(scope, self.session_id, self.run_id)


@dataclass(frozen=True, slots=True)
class PlaceChange:
    """What changes in one place: constraints that are set, and by their ids when others were taken back."""

    added: Sequence[Constraint] = ()
    retired: Mapping[str, datetime] = field(default_factory=dict)


# By place.
Change = Mapping[str, PlaceChange]


class _Retired(BaseModel):
    """That a constraint which is not there was taken back."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    id: str
    valid_to: Moment


def place_of(scope: str, session_id: str, run_id: str) -> str:
    """Where constraints of a scope are kept, among those of their owner."""
    return {"owner": "owner", "session": f"session:{session_id}", "run": f"run:{run_id}"}[scope]


def read_constraints(
    value: Any,
    where: str,
    target: Target,
    *,
    at: datetime,
    source_message_id: str = "",
    default_scope: ConstraintScope = "session",
    scopes: Sequence[ConstraintScope] = CONSTRAINT_SCOPES,
) -> list[Constraint]:
    """The constraints in a JSON list of texts, or of objects `{text, kind?, scope?}`, set at this time.

    A text alone is a `must`; `null` counts as missing. Texts stay as they are. A ValueError names the place, from
    `where` on, and what is allowed.
    """
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MOST_IN_FORCE:
        raise ValueError(f"{where}: a list of 1 to {MOST_IN_FORCE} constraints is needed, each a text or a JSON object")
    return [
        read_constraint(
            each,
            f"{where}[{index}]",
            target,
            at=at,
            source_message_id=source_message_id,
            default_scope=default_scope,
            scopes=scopes,
        )
        for index, each in enumerate(value)
    ]


def read_constraint(
    value: Any,
    where: str,
    target: Target,
    *,
    at: datetime,
    source_message_id: str = "",
    default_scope: ConstraintScope = "session",
    scopes: Sequence[ConstraintScope] = CONSTRAINT_SCOPES,
) -> Constraint:
    """One constraint, as in `read_constraints`; `where` may be `""`."""
    given = {"text": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping):
        raise ValueError(f"{where}: a text or a JSON object with text, kind and scope is needed")
    for key in given:
        if key not in _FIELDS:
            raise _unknown(where, key, _FIELDS)
    inside = f"{where}." if where else ""
    text = _text(given.get("text"), f"{inside}text")
    kind = _word(given.get("kind"), f"{inside}kind", KINDS, "must")
    scope = _word(given.get("scope"), f"{inside}scope", scopes, default_scope)
    place = target.place(scope)
    joined = "\0".join((place, kind, canonical(text).strip()))
    return Constraint(
        id=f"{scope}-{hashlib.sha256(joined.encode()).hexdigest()[:_ID_CHARS]}",
        text=text,
        kind=cast("Any", kind),
        scope=cast("Any", scope),
        session_id="" if scope == "owner" else target.session_id,
        run_id=target.run_id if scope == "run" else "",
        source_message_id=source_message_id,
        valid_from=to_milliseconds(at),
    )


def moved(constraint: Constraint, target: Target) -> Constraint:
    """The same constraint as one of another owner, session or run."""
    return read_constraint(
        {"text": constraint.text, "kind": constraint.kind, "scope": constraint.scope},
        "",
        target,
        at=constraint.valid_from,
        source_message_id=constraint.source_message_id,
    )


def read_change(content: Any, target: Target, at: datetime, message_id: str) -> Change:
    """The change in the content of a message of this time; ValueError for any other content, which says why."""
    op = content.get("op") if isinstance(content, Mapping) else None
    if op is None:
        raise ValueError(f"content: a JSON object is needed, with op: {', '.join(OPS)}")
    if op not in OPS:
        raise _unknown("content.op", op, OPS)
    for key in content:
        if key not in _KEYS[op]:
            raise _unknown("content", key, _KEYS[op])
    given, ids = content.get("constraints"), content.get("ids")
    if op == "retire" and given is None and ids is None:
        raise ValueError("content: to retire, ids or constraints are needed")
    constraints: list[Constraint] = []
    if op == "add" or given is not None:
        constraints = read_constraints(given, "content.constraints", target, at=at, source_message_id=message_id)
    if op == "add":
        return adding(constraints)
    named = [] if ids is None else _ids(ids, "content.ids")
    return retiring([*named, *(each.id for each in constraints)], target, at)


def adding(constraints: Iterable[Constraint]) -> Change:
    """The change that sets these."""
    places: dict[str, list[Constraint]] = defaultdict(list)
    for each in constraints:
        places[place_of(each.scope, each.session_id, each.run_id)].append(each)
    return {place: PlaceChange(added=added) for place, added in places.items()}


def retiring(ids: Iterable[str], target: Target, at: datetime) -> Change:
    """The change that takes those with these ids back. An id says of which scope it is."""
    places: dict[str, dict[str, datetime]] = defaultdict(dict)
    for each in ids:
        places[target.place(each.partition("-")[0])][each] = to_milliseconds(at)
    return {place: PlaceChange(retired=retired) for place, retired in places.items()}


def apply(document: Any, place: str, *changes: PlaceChange) -> dict[str, Any]:
    """The document of a place with the changes merged in; an equal one for changes that are in it already."""
    known, _ = constraints_in(document, place)
    given = {each.id: each for each in known}
    retired = {each.id: each.valid_to for each in known if each.valid_to} | _bare_retirements(document)
    for change in changes:
        for each in change.added:
            given[each.id] = max(each, given.get(each.id, each), key=_order_of_setting)
        for name, at in change.retired.items():
            retired[name] = max(at, retired.get(name, at))
    merged = {name: each.model_copy(update={"valid_to": retired.get(name)}) for name, each in given.items()}
    # All that hold, and the newest of the others: those taken back, and retirements of what is not there.
    others = sorted((at, name) for name, at in retired.items() if name not in merged or not merged[name].holds)[
        -_MOST_OTHERS:
    ]
    kept = {name for _, name in others} | {name for name, each in merged.items() if each.holds}
    return {
        "constraints": [merged[name].model_dump() for name in sorted(kept) if name in merged],
        "retired": [{"id": name, "valid_to": retired[name]} for name in sorted(kept) if name not in merged],
    }


def constraints_in(document: Any, place: str) -> tuple[list[Constraint], list[str]]:
    """The constraints in a stored document, also those taken back, as they were set; and what could not be read.

    Those set at the same time are in the order of their ids.
    """
    found, faults = list[Constraint](), list[str]()
    for index, value in enumerate(_list_in(document, "constraints", faults)):
        try:
            constraint = Constraint.model_validate(value)
        except ValidationError as error:
            faults.append(f"constraints[{index}]: {explain(error)}")
            continue
        if place_of(constraint.scope, constraint.session_id, constraint.run_id) == place:
            found.append(constraint)
        else:
            faults.append(f"constraints[{index}]: is one of another place")
    return sorted(found, key=lambda each: (each.valid_from, each.id)), faults


def _bare_retirements(document: Any) -> dict[str, datetime]:
    retired = {}
    for value in _list_in(document, "retired", []):
        try:
            read = _Retired.model_validate(value)
        except ValidationError:
            continue
        retired[read.id] = read.valid_to
    return retired


def _list_in(document: Any, name: str, faults: list[str]) -> Sequence[Any]:
    if document is None:
        return ()
    value = document.get(name, []) if isinstance(document, Mapping) else None
    if not isinstance(value, list):
        faults.append(f"{name}: a list is needed")
        return ()
    return value


def _order_of_setting(constraint: Constraint) -> tuple[datetime, str, str, str]:
    # Where two pass for one, any fixed order.
    return constraint.valid_from, constraint.source_message_id, constraint.text, constraint.session_id


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where}: a text of 1 to {MAX_CONSTRAINT_CHARS} characters is needed")
    if len(value) > MAX_CONSTRAINT_CHARS:
        raise ValueError(f"{where}: {len(value)} characters, at most {MAX_CONSTRAINT_CHARS} are allowed")
    if found := _UNSTORABLE.search(value):
        what = "a NUL" if found[0] == "\x00" else "half a surrogate pair"
        raise ValueError(f"{where}: {what} at place {found.start() + 1} cannot be kept; leave it out")
    if not canonical(value).strip():
        raise ValueError(f"{where}: is blank; a text of 1 to {MAX_CONSTRAINT_CHARS} characters is needed")
    return value


def _word(value: Any, where: str, allowed: Sequence[str], default: str) -> str:
    if value is None:
        return default
    if not isinstance(value, str) or value not in allowed:
        raise _unknown(where, value, allowed)
    return value


def _ids(value: Any, where: str) -> list[str]:
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= _MOST_OTHERS:
        raise ValueError(f"{where}: a list of 1 to {_MOST_OTHERS} ids is needed")
    return [read_id(each, f"{where}[{index}]") for index, each in enumerate(value)]


def read_id(value: Any, where: str) -> str:
    """The id of a constraint; a ValueError says what one looks like."""
    if not isinstance(value, str) or not _ID.fullmatch(value):
        allowed = ", ".join(CONSTRAINT_SCOPES)
        raise ValueError(f"{where}: no id of a constraint: its scope ({allowed}), '-' and {_ID_CHARS} of 0-9a-f")
    return value


def _unknown(where: str, value: Any, allowed: Sequence[str]) -> ValueError:
    if not isinstance(value, str):
        shown = f"a JSON {type(value).__name__}"
    else:
        shown = repr(value) if _WORD.fullmatch(value) else f"a text of {len(value)} characters"
    return ValueError(f"{where}: {shown} is unknown; allowed: {', '.join(allowed)}")


async def known_in(store: ConstraintStore, target: Target) -> list[Constraint]:
    """The constraints of the owner, then of the session, then of the run, as they were set, also those taken back.

    Raises as the store does, and StoreUnavailableError for documents of somebody else.
    """
    places = [target.place(scope) for scope in CONSTRAINT_SCOPES]
    by_place = {row.get("place"): row for row in await store.find_constraints(target.owner_key, places)}
    return _read(target.owner_key, [by_place[place] for place in places if place in by_place])


async def merge(
    store: ConstraintStore,
    owner_key: str,
    *changes: Change,
    check: Callable[[str, Sequence[Constraint]], None] = lambda _scope, _in_force: None,
) -> None:
    """Merge changes into what is stored of an owner. `check` gets a scope and what would be in force where that grows.

    Raises:
        ValueError: too many would be in force, or `check` says so; then nothing is changed, unless another writer fills
            one of several places at that moment.
        StoreUnavailableError, StoreRejectedError: not all of it is stored; the same again does no harm.
    """
    by_place: dict[str, list[PlaceChange]] = defaultdict(list)
    for change in changes:
        for place, of_place in change.items():
            by_place[place].append(of_place)
    is_kept = False
    while not is_kept:
        rows = {row.get("place"): row for row in await store.find_constraints(owner_key, [*by_place])}
        waiting = []
        for place, changed in by_place.items():
            row = rows.get(place)
            stored = _document_of(owner_key, row) if row else None
            document = apply(stored, place, *changed)
            # What cannot be read of a stored document is no reason to write it anew.
            if document != apply(stored, place):
                _check_growth(place, stored, document, check)
                waiting.append((place, document, _revision_of(row)))
        is_kept = True
        for place, document, revision in waiting:
            is_kept &= await store.put_constraints(owner_key, place, document, revision)


def _check_growth(
    place: str, before: Any, after: Mapping[str, Any], check: Callable[[str, Sequence[Constraint]], None]
) -> None:
    earlier = {each.id for each in constraints_in(before, place)[0] if each.holds}
    in_force = [each for each in constraints_in(after, place)[0] if each.holds]
    if earlier.issuperset(each.id for each in in_force):
        return
    scope = place.partition(":")[0]
    if len(in_force) > MOST_IN_FORCE:
        raise ValueError(
            f"constraints of scope {scope}: {len(in_force)} would be in force, at most {MOST_IN_FORCE} are allowed; "
            "take some back first"
        )
    check(scope, in_force)


def _read(owner_key: str, rows: Sequence[Row]) -> list[Constraint]:
    found = []
    for row in rows:
        constraints, faults = constraints_in(_document_of(owner_key, row), str(row.get("place")))
        if faults:
            _log.warning("stored_constraints_passed_over", reason=faults[0], rows=len(faults))
        found += constraints
    return found


def _document_of(owner_key: str, row: Row) -> Any:
    if row.get("owner_key") != owner_key:
        _log.error("foreign_rows_withheld", rows=1)
        raise StoreUnavailableError("the store gave the constraints of another owner")
    return row.get("document")


def _revision_of(row: Row | None) -> int:
    if row is None:
        return 0
    revision = row.get("revision")
    if isinstance(revision, bool) or not isinstance(revision, int) or revision < 1:
        raise StoreRejectedError("what is stored of the place has no revision; remove it from constraints")
    return revision


def _ignore(_reason: str | None) -> None:
    pass


@dataclass(frozen=True, slots=True)
class _Accepted:
    change: Change
    message_id: str
    settled: Settled


class Constraints:
    """`nexus.core.ports.ConstraintSource` on a store. Messages are written while `running()`, all else at once.

    `render` gives the text by which constraints are shown. That of a place may have `most_tokens` by the `counter`, a
    number that may be replaced at any time.

    Attributes:
        pending: messages that are accepted and not stored.
    """

    def __init__(
        self,
        store: ConstraintStore,
        render: Callable[[Sequence[Constraint]], str],
        counter: TokenCounter,
        most_tokens: int,
        metrics: Metrics | None = None,
    ) -> None:
        self._store = store
        self._render = render
        self._counter = counter
        self.most_tokens = most_tokens
        self._metrics = metrics or NoMetrics()
        self._changes = SessionQueue[_Accepted](self._write, self._settle, self._delayed, metrics=metrics)
        self.pending = self._changes.pending
        self._metrics.read_from(Reading.UNWRITTEN_CONSTRAINTS, lambda: self.pending.count)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Write accepted messages until the context ends. Wait for `pending` first, to lose nothing."""
        async with self._changes.running():
            try:
                yield self
            finally:
                if self.pending.count:
                    _log.error("constraints_unwritten", pending=self.pending.count)
                    self._metrics.count(Event.CONSTRAINTS_LOST, self.pending.count)

    def offer(self, message: Message, size: int, settled: Settled = _ignore) -> bool:
        """Accept a `session.constraints` message of `size` bytes. Never waits; False when too much is waiting already.

        ValueError where the message holds no change; it says where and what is allowed.
        """
        target = Target(message.owner_key, read_session_id(message.metadata), message.run_id)
        change = read_change(message.content, target, trusted_time(message), message.id)
        return self._changes.offer(_queue_of(message.owner_key), _Accepted(change, message.id, settled), size)

    async def constraints(self, owner_key: str, session_id: str, run_id: str) -> list[Constraint]:
        """The constraints in force for a run: the owner's, then the session's, then the run's, as they were set.

        StoreUnavailableError where they, with all that was accepted before, cannot be had now.
        """
        return [each for each in await self.known(Target(owner_key, session_id, run_id)) if each.holds]

    async def known(self, target: Target) -> list[Constraint]:
        """As `constraints`, with those that were taken back."""
        await self._changes.settled(_queue_of(target.owner_key))
        return await known_in(self._store, target)

    async def known_of_owner(self, owner_key: str, *, limit: int) -> tuple[list[Constraint], bool]:
        """All constraints of an owner, of up to `limit` places, also those taken back; and whether there are others."""
        await self._changes.settled(_queue_of(owner_key))
        rows = await self._store.list_constraints(owner_key, limit=limit + 1)
        return _read(owner_key, rows[:limit]), len(rows) > limit

    async def pin(
        self, owner_key: str, session_id: str, run_id: str, given: Mapping[str, Any], *, message_id: str = ""
    ) -> tuple[Constraint, int]:
        """Set the constraint that `{text, kind?, scope?}` says; returns it, and how many are in force for the run.

        One that is in force stays as it is, and so does one that this message has set before.

        Raises:
            ValueError: it is none, or there are too many; what is allowed.
            StoreUnavailableError, StoreRejectedError: it is not stored.
        """
        target = Target(owner_key, session_id, run_id)
        constraint = read_constraint(given, "", target, at=utc_now(), source_message_id=message_id)
        known = {each.id: each for each in await self.known(target)}
        same = known.get(constraint.id)
        if not same or not (same.holds or (message_id and same.source_message_id == message_id)):
            if same and same.valid_to:
                # What is set and taken back at the same moment does not hold.
                constraint = constraint.model_copy(
                    update={"valid_from": max(constraint.valid_from, same.valid_to + _TICK)}
                )
            await self.change(owner_key, adding([constraint]))
            known = {each.id: each for each in await self.known(target)}
        return known.get(constraint.id, constraint), sum(each.holds for each in known.values())

    async def retire(self, target: Target, ids: Sequence[str]) -> list[Constraint]:
        """Take back those with these ids; returns them. Raises as `pin`, also where one is not in force."""
        in_force = {each.id: each for each in await self.known(target) if each.holds}
        for name in ids:
            if name not in in_force:
                raise ValueError(f"{name}: is not in force; see nexus constraints list")
        # Later than its setting, also where that came from a clock that is ahead.
        at = max(utc_now(), *(in_force[name].valid_from for name in ids))
        await self.change(target.owner_key, retiring(ids, target, at))
        return [in_force[name] for name in ids]

    async def change(self, owner_key: str, *changes: Change) -> None:
        """Merge changes into what is stored. Raises as `pin`; what is too much changes nothing."""
        await merge(self._store, owner_key, *changes, check=self._check)

    def _check(self, scope: str, in_force: Sequence[Constraint]) -> None:
        if tokens := too_many_tokens(self._counter, self._render(in_force), self.most_tokens):
            raise ValueError(
                f"constraints of scope {scope}: they would take {tokens} tokens, at most {self.most_tokens} are "
                "allowed; take some back first"
            )

    async def _write(self, key: Key, accepted: Sequence[_Accepted]) -> None:
        await self.change(key[0], *(item.change for item in accepted))

    def _settle(self, accepted: _Accepted, reason: str | None) -> None:
        if reason is None:
            self._metrics.count(Event.CONSTRAINTS_RECORDED)
        else:
            _log.warning("constraints_refused", message_id=accepted.message_id, reason=reason)
            self._metrics.count(Event.CONSTRAINTS_REFUSED)
        accepted.settled(reason)

    def _delayed(self, reason: str) -> None:
        _log.warning("constraints_delayed", reason=reason, pending=self.pending.count)


def _queue_of(owner_key: str) -> Key:
    """One queue for all places of an owner."""
    return owner_key, ""
