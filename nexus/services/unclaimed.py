"""Answering before claiming: what can be made of what is in memory, or read in a moment (CONTRACT §1.5).

Rules of this module:

- What is made so is claimed and published in one step, if nothing has moved since (docs/decisions:
  0024-answered-in-one-step.md, 0026-first-contexts-too-are-answered-in-one-step.md).
- A request is built before it is claimed where nothing says that it may be what kills who builds it: the attempt is not
  counted.
- What takes longer than a moment to be read is claimed meanwhile.
"""

import time
from typing import Final

import anyio

from nexus.core.polling import BusyPolling
from nexus.core.ports import Acquired, Answering, Asking, Busy, Claim, Concluded, OwnersPast, RequestLedger
from nexus.core.tasks import Alongside
from nexus.services.asks import Ask, RequestSettings
from nexus.services.building import Building, building_s
from nexus.services.claiming import Claiming
from nexus.services.context.ahead import Ahead
from nexus.services.context.builder import GATHERING
from nexus.services.reading_ahead import Young
from nexus.services.telling import Telling

# How long a history may be read before the request is claimed.
_UNCLAIMED_S: Final = 0.1


class Unclaimed:
    """Answers requests that need no claim of their own, and claims the others with what could be done before.

    Args:
        building, claiming, telling, ledger: whom it asks and tells.
        polling: entered while the past is read.
        settings: what is promised of requests.
    """

    def __init__(  # noqa: PLR0917  # one for each part
        self,
        building: Building,
        claiming: Claiming,
        telling: Telling,
        ledger: RequestLedger,
        polling: BusyPolling,
        settings: RequestSettings,
    ) -> None:
        self._building = building
        self._claiming = claiming
        self._telling = telling
        self._ledger = ledger
        self._polling = polling
        self._settings = settings
        self._young = Young(settings.claims_first_ms, settings.claims_first)

    async def claim(self, ask: Ask, asked_at: float, ahead: Ahead, past: OwnersPast) -> Claim | None:
        """The claim, with what could be done before it is known whose the request is; None where it is answered.

        Args:
            ask: what asks for it.
            asked_at: when it was asked for, for the ledger.
            ahead: what was made of it.
            past: of the owner.
        """
        unclaimed = ahead.may_be_at_once and self._builds_unclaimed(ask, ahead)
        if unclaimed and (kept := past.kept()) and (content := self._building.build_at_once(ask, ahead, kept)):
            return await self._answer_unclaimed(ask, asked_at, ahead, content)
        if past.is_worth_reading_ahead:
            return await self._claim_while_reading(ask, asked_at, ahead, past, _UNCLAIMED_S if unclaimed else 0.0)
        return await self._claiming.claim(ask, asked_at, ahead)

    def _builds_unclaimed(self, ask: Ask, ahead: Ahead) -> bool:
        """Whether a request is built before it is claimed, so that the attempt is not counted."""
        # One that was handed out before may be what kills who builds it, and so may one that is heard soon after that.
        is_young = self._young.is_young()
        in_time = time.monotonic() - ask.at < building_s(ahead.allowed_ms)
        return not is_young and in_time and ask.delivery.deliveries <= 1

    async def _answer_unclaimed(self, ask: Ask, asked_at: float, ahead: Ahead, content: bytes) -> Claim | None:
        """Claim the request and publish the answer in one step; the claim, where what it was made of does not hold."""
        started = time.monotonic()
        settings = self._settings
        waited_ms = int((started - asked_at) * 1_000)
        asking = Asking(ask.key, ask.fingerprint, settings.granted_ms, waited_ms, ahead.look)
        keep_ms, within_ms = self._telling.keep_ms(None, len(content)), int(building_s(ahead.allowed_ms) * 1_000)
        read = ahead.past.read if ahead.past else None
        answering = Answering(ask.topic, content, keep_ms, ask.delivery, ahead.ending, within_ms, read)
        done = await self._ledger.begin_and_conclude(asking, answering)
        if isinstance(done, Concluded):
            self._claiming.reading.note(got=True)
            self._building.count_times(ahead)
            ahead.answered(done.moved)
            self._telling.tell(ask, done.heard, None, len(content), started)
            return None
        ahead.begin_again()
        if isinstance(done, Busy) and ask.delivery.shared:
            return await self._claiming.claim(ask, asked_at, ahead)
        return self._claiming.noted(done, ahead)

    async def _claim_while_reading(
        self, ask: Ask, asked_at: float, ahead: Ahead, past: OwnersPast, after_s: float
    ) -> Claim | None:
        """The claim, unless the past is read and the request answered without one; None where it is.

        Args:
            ask: what asks for it.
            asked_at: when it was asked for, for the ledger.
            ahead: what was made of it.
            past: is read as long as the request may be this replica's.
            after_s: when the claim is made, if the past has not been read by then.
        """
        leases = self._building.leases
        gathering_s = building_s(ahead.allowed_ms) * GATHERING
        after_s = min(after_s, gathering_s)
        claim: Claim | None = None

        async def claimed() -> Claim:
            nonlocal claim
            # Nearly all is read before, and needs no timer of its own.
            reading.deadline = anyio.current_time() + gathering_s - after_s
            try:
                claim = await self._claiming.claim(ask, asked_at, ahead)
            finally:
                if isinstance(claim, Acquired):
                    leases.hold(claim)
                else:
                    reading.cancel()
            return claim

        async with Alongside(claimed, after_s) as claiming:
            try:
                with anyio.CancelScope() as reading, self._polling:
                    await past.read_ahead()
                content = None if claiming.has_begun else self._built_of_read(ask, ahead, past)
                if content is None:
                    return await claiming.result()
            except anyio.get_cancelled_exc_class():
                if isinstance(claim, Acquired):
                    await leases.give_back(claim)
                raise
            finally:
                if isinstance(claim, Acquired):
                    leases.let_go(claim)
        return await self._answer_unclaimed(ask, asked_at, ahead, content)

    def _built_of_read(self, ask: Ask, ahead: Ahead, past: OwnersPast) -> bytes | None:
        read = past.as_read()
        return self._building.build_at_once(ask, ahead, read) if read else None
