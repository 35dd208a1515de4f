"""Facts about persons, kept as statements and given to contexts and tools (contract §15).

Only statements are stored, each once, and nothing changes or removes them: the same statements give the same facts in
every order, however often they were sent.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

import structlog
from pydantic import ValidationError

from nexus.core.concurrency import computed
from nexus.core.errors import StoreRejectedError
from nexus.core.metrics import Event, Metrics, Reading
from nexus.core.models import TICK, Message, Row, utc_now
from nexus.core.person import Fact, Statement
from nexus.core.ports import FactStore, MessageStore
from nexus.services.history.tombstones import Said, Tombstones
from nexus.services.person.statements import Origin, Slot, comparable, facts_of, read_statements, slot_of, statement
from nexus.services.session_queue import Key, MessageQueue, Outcomes

_log = structlog.get_logger(__name__)

MOST_STATEMENTS: Final = 5_000
# Of them for what takes back and for operators alone, so that what is wrong can be mended where nothing else is kept.
_RESERVED: Final = 500
# Replicas that write at once may go beyond the limit by what each of them holds.
_MOST_READ: Final = 2 * MOST_STATEMENTS
# Messages that are looked up at once.
_LOOKED_UP: Final = 1_000
# About what reading a statement costs, in characters of text.
_STATEMENT_CHARS: Final = 400

_OUTCOMES: Final = Outcomes(
    delayed="facts_delayed",
    refused="facts_refused",
    unwritten="facts_unwritten",
    recorded_count=Event.FACTS_RECORDED,
    refused_count=Event.FACTS_REFUSED,
    lost_count=Event.FACTS_LOST,
    waiting=Reading.UNWRITTEN_FACTS,
)


class Facts(MessageQueue[list[Statement]]):
    """`nexus.core.ports.FactSource` on a store. Messages are written while `running()`; all else needs no running."""

    def __init__(self, store: FactStore, tombstones: Tombstones, metrics: Metrics | None = None) -> None:
        super().__init__(_OUTCOMES, tombstones, metrics)
        self._store = store

    def _read_message(self, message: Message, said: Said) -> tuple[Key, list[Statement]]:
        origin = Origin(said.owner_key, message.id, said.said_at, said.session_id)
        return _key(said.owner_key), read_statements(message.content, origin)

    async def facts(self, owner_key: str) -> list[Fact]:
        """Every fact of the owner, with the messages that were accepted before; see `facts_of`.

        Raises:
            StoreUnavailableError: they cannot be read now.
        """
        await self._queue.settled(_key(owner_key))
        rows = await self._store.statements(owner_key, limit=_MOST_READ)
        return await computed(owner_key, len(rows) * _STATEMENT_CHARS, lambda: facts_of(read_rows(rows, owner_key)))

    async def taken_back_by(self, owner_key: str, topic: str, sub_topic: str = "", value: str = "") -> list[Fact]:
        """The facts that taking this back is about: of that value, held or not; without one whatever holds."""
        of_slot = [each for each in await self.facts(owner_key) if _slot(each) == slot_of(topic, sub_topic)]
        return [each for each in of_slot if (comparable(each.value) == comparable(value) if value else each.holds)]

    async def statements(self, owner_key: str) -> list[Statement]:
        """Every stored statement of the owner, the latest first. Raises as `facts`."""
        await self._queue.settled(_key(owner_key))
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
        before = [each for each in await self.statements(origin.owner_key) if _slot(each) == slot]
        after = [_next(each.said_at) for each in before]
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
        # One that was kept before stays as it was.
        chars = len(before) * _STATEMENT_CHARS
        return await computed(origin.owner_key, chars, lambda: facts_of([said, *before]))

    async def _write(self, key: Key, said: Sequence[list[Statement]]) -> None:
        await self.add(key[0], [each for statements in said for each in statements])


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
        return moment + TICK
    except OverflowError:
        return moment


def _slot(said: Fact | Statement) -> Slot:
    return slot_of(said.topic, said.sub_topic)


def _key(owner_key: str) -> Key:
    # One line for an owner: a session's statements are of no other order than those of the others.
    return owner_key, ""
