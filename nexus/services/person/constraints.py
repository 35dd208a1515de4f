"""Constraints, kept and given to contexts and tools (contract §15).

- At most `MOST_IN_FORCE` of a place are in force, and in tokens what `most_tokens` allows: more is an error when it is
  set.
- A document is replaced only if it has the revision that was read: on a conflict it is read and merged again.
- What an owner's messages change is written by one worker, since one message may name several places. What cannot be
  written now waits in memory, bounded (see `session_queue`); reading waits for what was accepted before.
- A stored document is checked against its owner and its place before it is used. What cannot be read of it is logged
  and passed over.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from nexus.core.errors import StoreUnavailableError
from nexus.core.metrics import Event, Metrics, Reading
from nexus.core.models import TICK, Message, utc_now
from nexus.core.person import CONSTRAINT_SCOPES, Constraint
from nexus.core.ports import ConstraintStore, Row, TokenCounter
from nexus.services.history.rows import revision_of
from nexus.services.history.tombstones import Said, Tombstones
from nexus.services.person.constraint_changes import (
    MOST_IN_FORCE,
    Change,
    PlaceChange,
    Target,
    adding,
    apply,
    constraints_in,
    read_change,
    read_constraint,
    retiring,
)
from nexus.services.session_queue import Key, MessageQueue, Outcomes
from nexus.services.text.tokens import too_many_tokens

_log = structlog.get_logger(__name__)

_OUTCOMES: Final = Outcomes(
    delayed="constraints_delayed",
    refused="constraints_refused",
    unwritten="constraints_unwritten",
    recorded_count=Event.CONSTRAINTS_RECORDED,
    refused_count=Event.CONSTRAINTS_REFUSED,
    lost_count=Event.CONSTRAINTS_LOST,
    waiting=Reading.UNWRITTEN_CONSTRAINTS,
)


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
                waiting.append((place, document, revision_of(row, "place", "constraints")))
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


class Constraints(MessageQueue[Change]):
    """`nexus.core.ports.ConstraintSource` on a store. Messages are written while `running()`, all else at once.

    `render` gives the text by which constraints are shown. That of a place may have `most_tokens` by the `counter`, a
    number that may be replaced at any time.
    """

    def __init__(  # noqa: PLR0917  # one for each part
        self,
        store: ConstraintStore,
        tombstones: Tombstones,
        render: Callable[[Sequence[Constraint]], str],
        counter: TokenCounter,
        most_tokens: int,
        metrics: Metrics | None = None,
    ) -> None:
        super().__init__(_OUTCOMES, tombstones, metrics)
        self._store = store
        self._render = render
        self._counter = counter
        self.most_tokens = most_tokens

    def _read_message(self, message: Message, said: Said) -> tuple[Key, Change]:
        target = Target(said.owner_key, said.session_id, message.run_id)
        return _queue_of(said.owner_key), read_change(message.content, target, said.said_at, message.id)

    async def constraints(self, owner_key: str, session_id: str, run_id: str) -> list[Constraint]:
        """The constraints in force for a run: the owner's, then the session's, then the run's, as they were set.

        StoreUnavailableError where they, with all that was accepted before, cannot be had now.
        """
        return [each for each in await self.known(Target(owner_key, session_id, run_id)) if each.holds]

    async def known(self, target: Target) -> list[Constraint]:
        """As `constraints`, with those that were taken back."""
        await self._queue.settled(_queue_of(target.owner_key))
        return await known_in(self._store, target)

    async def known_of_owner(
        self, owner_key: str, *, limit: int, after: str = ""
    ) -> tuple[list[Constraint], str | None]:
        """An owner's constraints, also those taken back, of up to `limit` places behind `after`.

        And the last of these places, where there are others behind it.
        """
        await self._queue.settled(_queue_of(owner_key))
        rows = await self._store.list_constraints(owner_key, limit=limit + 1, after=after)
        last = str(rows[limit - 1].get("place")) if len(rows) > limit else None
        return _read(owner_key, rows[:limit]), last

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
                    update={"valid_from": max(constraint.valid_from, same.valid_to + TICK)}
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

    async def _write(self, key: Key, changes: Sequence[Change]) -> None:
        await self.change(key[0], *changes)


def _queue_of(owner_key: str) -> Key:
    """One queue for all places of an owner."""
    return owner_key, ""
