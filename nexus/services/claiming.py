"""Claiming requests at the ledger, and how often that is worth something (CONTRACT §1.5)."""

import time
from typing import Final

import anyio

from nexus.core.ports import Acquired, Busy, Claim, RequestLedger
from nexus.services.asks import Ask, RequestSettings
from nexus.services.context.ahead import Ahead
from nexus.services.reading_ahead import ReadingAhead

# How often a claim that is not free is asked for, in leases.
_ASKED_AGAIN: Final = 0.03


class Claiming:
    """Claims requests.

    Args:
        ledger: where.
        settings: for how long.

    Attributes:
        reading: which part of the requests was this replica's lately.
    """

    def __init__(self, ledger: RequestLedger, settings: RequestSettings) -> None:
        self.reading = ReadingAhead()
        self._ledger = ledger
        self._settings = settings

    async def claim(self, ask: Ask, asked_at: float, ahead: Ahead | None) -> Claim:
        """What the ledger says; with charge of the delivery, not before it is settled who answers.

        Args:
            ask: what asks for it.
            asked_at: when it was asked for, for the ledger.
            ahead: what was made of it; None for what cannot be built.
        """
        while True:
            waited_ms = int((time.monotonic() - asked_at) * 1_000)
            look = ahead.look if ahead else None
            claim = await self._ledger.begin(ask.key, ask.fingerprint, self._settings.granted_ms, waited_ms, look)
            if not (isinstance(claim, Busy) and ask.delivery.shared):
                return self.noted(claim, ahead)
            await anyio.sleep(self._settings.lease_ms / 1_000 * _ASKED_AGAIN)

    def noted(self, claim: Claim, ahead: Ahead | None) -> Claim:
        """The claim, of which `ahead` and `reading` know then."""
        if isinstance(claim, Acquired) and ahead:
            ahead.claimed(claim.standing)
        self.reading.note(got=isinstance(claim, Acquired))
        return claim
