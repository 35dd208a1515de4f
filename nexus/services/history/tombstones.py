"""What was erased does not come back: asked right before something is stored (contract §13).

- Refused is what was said up to the `until` of a tombstone, and a result of a run whose input is neither stored nor
  waiting in the outbox, whatever time the result has.
- Work that is no message, such as a compaction, is refused where it began before an erasure was over.
- Of an owner without a tombstone it costs one read by an index. What operators import is never asked about.
"""

import json
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Final

import structlog

from nexus.core.erasure import Tombstone, hashed
from nexus.core.errors import BusUnavailableError, ErasedError, StoreUnavailableError
from nexus.core.metrics import Event, Metrics
from nexus.core.models import DEFAULT_SESSION, Role, read_role
from nexus.core.ports import ErasureStore, MessageStore, Outbox, Row

_log = structlog.get_logger(__name__)

# Until so long after it work may have read what an erasure had not removed yet. Clocks differ, too.
_ERASING: Final = timedelta(seconds=10)

_Run = tuple[str, str]


class Tombstones:
    """The tombstones of owners; none without a store. Methods raise `StoreUnavailableError` where it did not answer."""

    def __init__(
        self,
        store: ErasureStore | None = None,
        messages: MessageStore | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        self._store = store
        self._messages = messages
        self._outbox = outbox

    async def find(self, owner_key: str, said: Sequence[tuple[str, datetime]]) -> list[ErasedError | None]:
        """Why these are not to be stored, each said in a session at a time; None for each that may be."""
        found = await self._of([owner_key])
        return [_covering(found, session_id, said_at) for session_id, said_at in said]

    async def check(self, owner_key: str, said: Sequence[tuple[str, datetime]]) -> None:
        """ErasedError where one of these is not to be stored; see `find`."""
        for error in filter(None, await self.find(owner_key, said)):
            raise error

    async def check_run(self, owner_key: str, session_id: str, run_id: str, said_at: datetime) -> None:
        """ErasedError where what was said then in a run may not be stored, as a result of it may not."""
        found = await self._of([owner_key])
        error = await self._of_run(found, owner_key, session_id, run_id, said_at)
        if error:
            raise error

    async def check_work(self, owner_key: str, begun_at: datetime, session_id: str | None = None) -> None:
        """ErasedError where work that began then may have read what was erased: of a session, or of any for None."""
        found = await self._of([owner_key])
        concerned = [each for each in found if session_id is None or each.session in _names(session_id)]
        if error := _meanwhile(concerned, owner_key, begun_at):
            raise error

    async def of_works(self, works: Sequence[tuple[str, datetime]]) -> list[ErasedError | None]:
        """Why these are not to be stored, as `check_work` of any session, each of an owner and begun then."""
        found = await self._of({owner_key for owner_key, _ in works})
        return [_meanwhile(found, owner_key, begun_at) for owner_key, begun_at in works]

    async def of_rows(self, rows: Sequence[Row]) -> list[ErasedError | None]:
        """Why these rows are not to be stored, each in its session; None for each that may be."""
        found = await self._of({row["owner_key"] for row in rows})
        if not found:
            return [None] * len(rows)
        errors: list[ErasedError | None] = []
        begun: set[_Run] = set()
        for row in rows:
            run = row["owner_key"], row["run_id"]
            mine = [each for each in found if each.owner == hashed(row["owner_key"])]
            if read_role(row["role"]) is Role.HUMAN or run in begun:
                error = _covering(mine, row["session_id"], row["timestamp"])
            else:
                error = await self._of_run(mine, run[0], row["session_id"], run[1], row["timestamp"])
            errors.append(error)
            if error is None:
                begun.add(run)
        return errors

    async def _of(self, owner_keys: Collection[str]) -> list[Tombstone]:
        return await self._store.tombstones([*owner_keys]) if self._store else []

    async def _of_run(
        self, found: Sequence[Tombstone], owner_key: str, session_id: str, run_id: str, said_at: datetime
    ) -> ErasedError | None:
        if error := _covering(found, session_id, said_at):
            return error
        # Results of runs that nobody knows are taken to be of the default session.
        concerned = [each for each in found if session_id == DEFAULT_SESSION or each.session in _names(session_id)]
        if concerned and not await self._has_input(owner_key, run_id):
            return ErasedError(f"{_what(concerned[0])}, and the input of the run is not stored")
        return None

    async def _has_input(self, owner_key: str, run_id: str) -> bool:
        """Whether the run's input is stored, or is to be; where it is removed at this moment, it may seem so."""
        if self._messages is None or await self._messages.find_origin(owner_key, run_id):
            return True
        # It may leave the outbox for the store in between.
        return await self._is_waiting(owner_key, run_id) or bool(await self._messages.find_origin(owner_key, run_id))

    async def _is_waiting(self, owner_key: str, run_id: str) -> bool:
        if self._outbox is None:
            return False
        try:
            waiting = await self._outbox.of_owner(owner_key)
        except BusUnavailableError as error:
            raise StoreUnavailableError(f"the outbox: {error}") from error
        return any(json.loads(each.id)[0] == run_id for each in waiting)


def report_erased(metrics: Metrics, error: ErasedError, **ids: str) -> None:
    """Log and count something that is not stored."""
    _log.warning("erased_refused", reason=str(error), **ids)
    metrics.count(Event.ERASED_REFUSED)


def _names(session_id: str) -> tuple[str, str]:
    return "", hashed(session_id)


def _covering(tombstones: Sequence[Tombstone], session_id: str, said_at: datetime) -> ErasedError | None:
    covering = (each for each in tombstones if each.covers(session_id, said_at))
    return next((ErasedError(f"{_what(each)}, and this is from before") for each in covering), None)


def _meanwhile(tombstones: Sequence[Tombstone], owner_key: str, begun_at: datetime) -> ErasedError | None:
    late = (each for each in tombstones if begun_at <= each.erased_at + _ERASING and each.owner == hashed(owner_key))
    return next((ErasedError(f"{_what(each)} while this was made") for each in late), None)


def _what(tombstone: Tombstone) -> str:
    what = "the session" if tombstone.session else "the owner"
    erased_at, until = (f"{moment:%Y-%m-%dT%H:%M:%S}Z" for moment in (tombstone.erased_at, tombstone.until))
    return f"{what} was erased at {erased_at}" + ("" if until == erased_at else f", up to {until}")
