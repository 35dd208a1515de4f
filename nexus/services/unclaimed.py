"""Answering before claiming: what can be made of what is in memory, or read in a moment (CONTRACT §1.5).

Rules of this module:

- What is made so is claimed and published in one step, if nothing has moved since (docs/decisions:
  0024-answered-in-one-step.md, 0026-first-contexts-too-are-answered-in-one-step.md).
- A request is built before it is claimed where nothing says that it may be what kills who builds it: the attempt is not
  counted.
- What takes longer than a moment to be read is claimed meanwhile.
"""

import time
from typing import Final, NamedTuple

import anyio

from nexus.core.meanwhile import Meanwhile
from nexus.core.models import Message
from nexus.core.polling import BusyPolling
from nexus.core.ports import Acquired, Answering, Asking, Busy, Claim, Concluded, OwnersPast, RequestLedger
from nexus.core.tasks import Alongside
from nexus.services.asks import Ask, RequestSettings
from nexus.services.building import Building, building_s
from nexus.services.claiming import Claiming
from nexus.services.context.ahead import Ahead, Glance
from nexus.services.context.build_dialogue import Prepared
from nexus.services.context.builder import GATHERING, ContextBuilder
from nexus.services.reading_ahead import Young
from nexus.services.telling import Telling

# How long a history may be read before the request is claimed.
_UNCLAIMED_S: Final = 0.1


class Unread(NamedTuple):
    """A request that has been glanced at.

    Attributes:
        ask: what it asks.
        message: its envelope.
        asked_at: when it was asked for, for the ledger.
        seen: what was seen of it.
        past: of the owner.
    """

    ask: Ask
    message: Message
    asked_at: float
    seen: Glance
    past: OwnersPast


class _Looked(NamedTuple):
    """What is made of a request while its past is read.

    Attributes:
        ahead: None where it cannot be read.
        prepared: None where it is not to be built before it is claimed.
    """

    ahead: Ahead | None
    prepared: Prepared | None = None

    @property
    def gathering_s(self) -> float:
        """For how long the past may be read, from when the request was glanced at; 0 where it is of no use."""
        return building_s(self.ahead.allowed_ms) * GATHERING if self.ahead and self.ahead.past else 0.0


# What the ledger said, and what was made of the request.
Outcome = tuple[Claim, Ahead | None]


class Unclaimed:
    """Answers requests that need no claim of their own, and claims the others with what could be done before.

    Args:
        builder, building, claiming, telling, ledger: whom it asks and tells.
        polling: entered while the past is read.
        settings: what is promised of requests.
    """

    def __init__(  # noqa: PLR0917  # one for each part
        self,
        builder: ContextBuilder,
        building: Building,
        claiming: Claiming,
        telling: Telling,
        ledger: RequestLedger,
        polling: BusyPolling,
        settings: RequestSettings,
    ) -> None:
        self._builder = builder
        self._building = building
        self._claiming = claiming
        self._telling = telling
        self._ledger = ledger
        self._polling = polling
        self._settings = settings
        self._young = Young(settings.claims_first_ms, settings.claims_first)

    async def claim(self, unread: Unread) -> Outcome | None:
        """The claim, with what could be done before it is known whose the request is; None where it is answered."""
        ask, past = unread.ask, unread.past
        if past.is_worth_reading_ahead:
            return await self._claim_while_reading(unread)
        ahead = self._look_ahead(unread)
        if ahead and self._is_harmless(ask, ahead) and (kept := past.kept()):
            content = self._building.build_at_once(ask, ahead, kept)
            if content:
                return await self._answer(unread, ahead, content)
        return await self._claiming.claim(ask, unread.asked_at, ahead), ahead

    def _look_ahead(self, unread: Unread) -> Ahead | None:
        return self._builder.look_ahead(unread.message, unread.seen, self._settings.deadline_ms)

    def _is_harmless(self, ask: Ask, ahead: Ahead) -> bool:
        """Whether a request may be built before it is claimed, without the attempt being counted."""
        if not ahead.may_be_at_once:
            return False
        # One that was handed out before may be what kills who builds it, and so may one that is heard soon after that.
        is_young = self._young.is_young()
        in_time = time.monotonic() - ask.at < building_s(ahead.allowed_ms)
        return not is_young and in_time and ask.delivery.deliveries <= 1

    async def _answer(self, unread: Unread, ahead: Ahead, content: bytes) -> Outcome | None:
        """Claim the request and publish the answer in one step; the claim, where what it was made of does not hold."""
        ask, settings, started = unread.ask, self._settings, time.monotonic()
        waited_ms = int((started - unread.asked_at) * 1_000)
        asking = Asking(ask.key, ask.fingerprint, settings.granted_ms, waited_ms, ahead.look)
        keep_ms, within_ms = self._telling.keep_ms(None, len(content)), int(building_s(ahead.allowed_ms) * 1_000)
        answering = Answering(ask.topic, content, keep_ms, ask.delivery, ahead.ending, within_ms, unread.past.read)
        done = await self._ledger.begin_and_conclude(asking, answering)
        if isinstance(done, Concluded):
            self._claiming.reading.note(got=True)
            self._building.count_times(ahead)
            ahead.answered(done.moved)
            self._telling.tell(ask, done.heard, None, len(content), started)
            return None
        ahead.begin_again()
        if isinstance(done, Busy) and ask.delivery.shared:
            return await self._claiming.claim(ask, unread.asked_at, ahead), ahead
        return self._claiming.noted(done, ahead), ahead

    async def _claim_while_reading(self, unread: Unread) -> Outcome | None:
        """The claim, unless the past is read and the request answered without one; None where it is.

        The past is asked for as soon as it is known whose it is, and read as long as the request may be this replica's.
        All else that has to be made of the request is made while the store looks it up.
        """
        leases = self._building.leases
        claim: Claim | None = None

        def look() -> _Looked:
            made = None
            try:
                made = self._looked(unread)
            finally:
                if not (made and made.gathering_s):
                    reading.cancel()
            # What is not to be claimed before it is built is claimed nevertheless when that takes long.
            claiming.begin(min(_UNCLAIMED_S, made.gathering_s) if made.prepared else 0.0)
            return made

        async def claimed() -> Claim:
            nonlocal claim
            made = looked.result()
            # Nearly all is read before, and needs no timer of its own.
            reading.deadline = anyio.current_time() + made.gathering_s - (time.monotonic() - unread.seen.since)
            try:
                claim = await self._claiming.claim(unread.ask, unread.asked_at, made.ahead)
            finally:
                if isinstance(claim, Acquired):
                    leases.hold(claim)
                else:
                    reading.cancel()
            return claim

        async with Alongside(claimed) as claiming:
            looked = Meanwhile(look)
            try:
                with anyio.CancelScope() as reading, self._polling:
                    await unread.past.read_ahead()
                made = looked.result()
                content = None if claiming.has_begun else self._built(unread, made)
                if made.ahead is None or content is None:
                    return await claiming.result(), made.ahead
            except anyio.get_cancelled_exc_class():
                if isinstance(claim, Acquired):
                    await leases.give_back(claim)
                raise
            finally:
                if isinstance(claim, Acquired):
                    leases.let_go(claim)
        return await self._answer(unread, made.ahead, content)

    def _built(self, unread: Unread, made: _Looked) -> bytes | None:
        """The answer, of what was read and what was made meanwhile; None where that does not do."""
        ahead, prepared = made
        read = unread.past.as_read() if ahead and prepared else None
        return self._building.build_at_once(unread.ask, ahead, read, prepared) if ahead and read else None

    def _looked(self, unread: Unread) -> _Looked:
        ahead = self._look_ahead(unread)
        if ahead is None:
            return _Looked(None)
        prepared = self._building.prepare(unread.ask, ahead) if self._is_harmless(unread.ask, ahead) else None
        return _Looked(ahead, prepared)
