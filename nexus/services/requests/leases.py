"""Holding what was claimed at the ledger for as long as it takes (contract §1.5)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio
import structlog

from nexus.core.errors import BusUnavailableError
from nexus.core.ports import Acquired, RequestLedger
from nexus.services.requests.envelope import RequestSettings

_log = structlog.get_logger(__name__)

_RELEASE_S: Final = 1.0
# How often leases are renewed, in leases.
_RENEWED: Final = 0.25


class Leases:
    """Holds any number of claims, renewed by one task. Run `run` in it.

    Args:
        ledger: where they were claimed.
        settings: how long a lease is.
    """

    def __init__(self, ledger: RequestLedger, settings: RequestSettings) -> None:
        self._ledger = ledger
        self._granted_ms = settings.granted_ms
        self._renewed_s = settings.lease_ms / 1_000 * _RENEWED
        self._held: dict[str, Acquired] = {}

    @asynccontextmanager
    async def held(self, claim: Acquired) -> AsyncIterator[None]:
        """Have the lease renewed until the context ends; it is given back should that be because the service stops."""
        self._held[claim.token] = claim
        try:
            yield
        except anyio.get_cancelled_exc_class():
            await _release(self._ledger, claim)
            raise
        finally:
            self._held.pop(claim.token, None)

    async def run(self) -> None:
        """Renew what is held, until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                await anyio.sleep(self._renewed_s)
                for claim in [*self._held.values()]:
                    tasks.start_soon(_renew, self._ledger, claim, self._granted_ms)


async def _renew(ledger: RequestLedger, claim: Acquired, granted_ms: int) -> None:
    try:
        await ledger.renew(claim, granted_ms)
    except BusUnavailableError as error:
        _log.warning("lease_not_renewed", request_id=claim.key, reason=str(error))


async def _release(ledger: RequestLedger, claim: Acquired) -> None:
    try:
        with anyio.move_on_after(_RELEASE_S, shield=True):
            await ledger.release(claim)
    except BusUnavailableError as error:
        _log.warning("lease_not_released", request_id=claim.key, reason=str(error))
