"""Holding what was claimed at the ledger for as long as it takes (CONTRACT §1.5)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio
import structlog

from nexus.core.errors import BusUnavailableError
from nexus.core.ports import Acquired, RequestLedger
from nexus.services.asks import RequestSettings

_log = structlog.get_logger(__name__)

_RELEASE_S: Final = 1.0
# How often a lease is renewed, in leases.
_RENEWED: Final = 0.25


@asynccontextmanager
async def held(ledger: RequestLedger, claim: Acquired, settings: RequestSettings) -> AsyncIterator[None]:
    """Renew the lease until the context ends; it is given back should that be because the service stops."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_keep, ledger, claim, settings)
        try:
            yield
        except anyio.get_cancelled_exc_class():
            await _release(ledger, claim)
            raise
        tasks.cancel_scope.cancel()


async def _keep(ledger: RequestLedger, claim: Acquired, settings: RequestSettings) -> None:
    while True:
        await anyio.sleep(settings.lease_ms / 1_000 * _RENEWED)
        try:
            await ledger.renew(claim, settings.granted_ms)
        except BusUnavailableError as error:
            _log.warning("lease_not_renewed", request_id=claim.key, reason=str(error))


async def _release(ledger: RequestLedger, claim: Acquired) -> None:
    try:
        with anyio.move_on_after(_RELEASE_S, shield=True):
            await ledger.release(claim)
    except BusUnavailableError as error:
        _log.warning("lease_not_released", request_id=claim.key, reason=str(error))
