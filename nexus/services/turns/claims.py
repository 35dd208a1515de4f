"""Holding a turn while something is done on it that takes a while."""

from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final

import anyio

from nexus.core.errors import StoreUnavailableError
from nexus.core.models import utc_now
from nexus.core.ports import Row, TurnStore
from nexus.services.turns.documents import to_milliseconds

# How often a claim is renewed in the time that it holds.
_RENEWALS: Final = 3


class Claimed:
    """A turn in hand. What is written of it counts only while it is, and it is until something is written."""

    def __init__(self, store: TurnStore, document: Row, until: datetime, lease: timedelta) -> None:
        self.document = document
        self._store = store
        self._lease = lease
        self._until: datetime | None = until
        # What is written names the end of the claim, which renewing moves.
        self._writing = anyio.Lock()

    async def keep_hold(self) -> None:
        """Renew the claim, until it is lost or something is written."""
        while self._until:
            await anyio.sleep(self._lease.total_seconds() / _RENEWALS)
            async with self._writing:
                if self._until:
                    until = to_milliseconds(utc_now()) + self._lease
                    with suppress(StoreUnavailableError):
                        self._until = until if await self._set({"due_at": until}) else None

    async def finish(self, changes: dict[str, Any]) -> bool:
        """Write what came of it. False, and nothing is written, when it is not in hand any more."""
        async with self._writing:
            if not self._until:
                return False
            written = await self._set(changes)
            if not written:
                # Something was heard meanwhile, and nobody else has it in hand: it is to be done again at once.
                await self._write({"due_at": utc_now()}, seen={"due_at": self._until})
            self._until = None
            return written

    def let_go(self) -> None:
        """Leave it to whoever claims it when the claim has run out."""
        self._until = None

    async def give_back(self) -> None:
        """Have somebody else do it, if nothing was written."""
        if self._until:
            await self.finish({"due_at": utc_now()})

    async def _set(self, changes: dict[str, Any]) -> bool:
        return await self._write(changes, seen={"due_at": self._until, "heard_at": self.document["heard_at"]})

    async def _write(self, changes: dict[str, Any], seen: dict[str, Any]) -> bool:
        turn = self.document
        place = turn["owner_key"], turn["session_id"], turn["turn_number"]
        return await self._store.update_turn(*place, changes, seen=seen)


class Bell:
    """Says that there may be something to do."""

    def __init__(self) -> None:
        self._rung = anyio.Event()

    def ring(self) -> None:
        """There is."""
        self._rung.set()

    async def heard(self, seconds: float) -> None:
        """Return when it has been rung since this last returned, or after so long."""
        with anyio.move_on_after(seconds):
            await self._rung.wait()
        self._rung = anyio.Event()
