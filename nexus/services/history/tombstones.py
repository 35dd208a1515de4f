"""What was erased does not come back: asked right before something is stored (contract §13).

- Refused is what was said up to the `until` of a tombstone, and a result of a run whose input is neither stored nor
  waiting in the outbox, whatever time the result has.
- Work that is no message, such as a compaction, is refused where it began before an erasure was over.
- Of an owner without a tombstone it costs one read by an index. What operators import is never asked about.
"""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import structlog

from nexus.core.erasure import Tombstone, hashed
from nexus.core.errors import BusUnavailableError, ErasedError, StoreUnavailableError
from nexus.core.metrics import Event, Metrics
from nexus.core.models import DEFAULT_SESSION, Role, read_role, utc_now
from nexus.core.ports import Outbox, Row, Store

_log = structlog.get_logger(__name__)

# Until so long after it work may have read what an erasure had not removed yet. Clocks differ, too.
_ERASING: Final = timedelta(seconds=10)
_LATELY: Final = timedelta(days=1)


class Said(NamedTuple):
    """Something that an owner said in a session at a time. A result names its run, without which it is not stored."""

    owner_key: str
    session_id: str
    said_at: datetime
    run_id: str = ""
    is_result: bool = False


class Made(NamedTuple):
    """Work that began then, and may have read what was said: in one session, or in any for None."""

    owner_key: str
    begun_at: datetime
    session_id: str | None = None


class Tombstones:
    """The tombstones in a store. Each way to ask reads them once, and raises StoreUnavailableError where it is away."""

    def __init__(self, store: Store, outbox: Outbox | None = None) -> None:
        self._store = store
        self._outbox = outbox

    async def refusals(self, asked: Sequence[Said | Made]) -> list[ErasedError | None]:
        """Why these are not to be stored, in this order; None for each that may be."""
        found = await self._store.erasure.tombstones([*{each.owner_key for each in asked}]) if asked else []
        errors: list[ErasedError | None] = []
        begun = set[tuple[str, str]]()
        for each in asked if found else ():
            mine = [tombstone for tombstone in found if tombstone.owner == hashed(each.owner_key)]
            if isinstance(each, Made):
                errors.append(_meanwhile(mine, each))
                continue
            error, run = _covering(mine, each), (each.owner_key, each.run_id)
            if not error and each.is_result and run not in begun:
                error = await self._without_input(mine, each)
            if not error:
                begun.add(run)
            errors.append(error)
        return errors or [None] * len(asked)

    async def raise_if_erased(self, asked: Sequence[Said | Made]) -> None:
        """ErasedError where one of these is not to be stored."""
        for error in filter(None, await self.refusals(asked)):
            raise error

    async def is_lately_erased(self, owner_key: str) -> bool:
        """Whether something of the owner was erased within a day. Raises StoreUnavailableError."""
        found = await self._store.erasure.tombstones([owner_key])
        return any(each.erased_at > utc_now() - _LATELY for each in found)

    async def _without_input(self, tombstones: Sequence[Tombstone], result: Said) -> ErasedError | None:
        # Results of runs that nobody knows are taken to be of the default session.
        known = None if result.session_id == DEFAULT_SESSION else result.session_id
        concerned = _of_session(tombstones, known)
        if concerned and not await self._has_input(result.owner_key, result.run_id):
            return ErasedError(f"{_what(concerned[0])}, and the input of the run is not stored")
        return None

    async def _has_input(self, owner_key: str, run_id: str) -> bool:
        """Whether the run's input is stored, or is to be; where it is removed at this moment, it may seem so."""
        if await self._store.find_origin(owner_key, run_id):
            return True
        # It may leave the outbox for the store in between.
        return await self._is_waiting(owner_key, run_id) or bool(await self._store.find_origin(owner_key, run_id))

    async def _is_waiting(self, owner_key: str, run_id: str) -> bool:
        if self._outbox is None:
            return False
        try:
            waiting = await self._outbox.of_owner(owner_key)
        except BusUnavailableError as error:
            raise StoreUnavailableError(f"the outbox: {error}") from error
        return any(json.loads(each.id)[0] == run_id for each in waiting)


def said_in(row: Row) -> Said:
    """The row of a message, as it is asked about."""
    is_result = read_role(row["role"]) is not Role.HUMAN
    return Said(row["owner_key"], row["session_id"], row["timestamp"], row["run_id"], is_result)


def report_erased(metrics: Metrics, error: ErasedError, **ids: str) -> None:
    """Log and count something that is not stored."""
    _log.warning("erased_refused", reason=str(error), **ids)
    metrics.count(Event.ERASED_REFUSED)


def _of_session(tombstones: Sequence[Tombstone], session_id: str | None) -> list[Tombstone]:
    return [each for each in tombstones if session_id is None or each.session in {"", hashed(session_id)}]


def _covering(tombstones: Sequence[Tombstone], said: Said) -> ErasedError | None:
    covering = (each for each in tombstones if each.covers(said.session_id, said.said_at))
    return next((ErasedError(f"{_what(each)}, and this is from before") for each in covering), None)


def _meanwhile(tombstones: Sequence[Tombstone], made: Made) -> ErasedError | None:
    concerned = _of_session(tombstones, made.session_id)
    late = (each for each in concerned if made.begun_at <= each.erased_at + _ERASING)
    return next((ErasedError(f"{_what(each)} while this was made") for each in late), None)


def _what(tombstone: Tombstone) -> str:
    what = "the session" if tombstone.session else "the owner"
    erased_at, until = (f"{moment:%Y-%m-%dT%H:%M:%S}Z" for moment in (tombstone.erased_at, tombstone.until))
    return f"{what} was erased at {erased_at}" + ("" if until == erased_at else f", up to {until}")
