"""Until requests are claimed before they are built: the ledger with its journal. The rest has moved."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import overload

import structlog

from nexus.adapters.in_memory.bus import MemoryBus as MemoryBus
from nexus.adapters.in_memory.bus import MemorySubscription as MemorySubscription
from nexus.adapters.in_memory.ledger import MemoryLedger as PlainLedger
from nexus.adapters.in_memory.ledger import _Request
from nexus.adapters.memory_journal import MemoryJournal
from nexus.core.ports import (
    MOST_JOURNALED,
    Acquired,
    Answering,
    Asking,
    Claim,
    Concluded,
    Delivery,
    Ending,
    KeptBefore,
    Look,
    Moved,
    OutboxRow,
    Standing,
)

_log = structlog.get_logger(__name__)


def _is_in_the_way(claim: Acquired, standing: Standing, answering: Answering) -> bool:
    """Whether the request has to be built when it has been claimed, however recent its answer is."""
    return (
        claim.attempts > 1
        or standing.kept not in {None, answering.ending.kept_with(answering.answer)}
        or standing.waiting >= MOST_JOURNALED
        or claim.waited_ms(answering.delivery) > answering.within_ms
    )


class MemoryLedger(PlainLedger):
    """`nexus.core.ports.RequestLedger` within one process.

    Args:
        bus: where answers are published.
        clock: seconds that never run back.

    Attributes:
        journal: where rows are put by `conclude`.
    """

    def __init__(self, bus: MemoryBus, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(bus, clock=clock)
        self.journal = MemoryJournal(clock)

    async def begin(
        self, key: str, fingerprint: str, lease_ms: int, waited_ms: int = 0, look: Look | None = None
    ) -> Claim:
        """Ask for a request."""
        claim = await super().claim(key, fingerprint, lease_ms, waited_ms)
        if not (look and isinstance(claim, Acquired)):
            return claim
        return replace(claim, standing=self.journal.look(look, await self.kept(look.kept)))

    async def claim(self, key: str, fingerprint: str, lease_ms: int, waited_ms: int = 0) -> Claim:
        """Ask for a request."""
        return await self.begin(key, fingerprint, lease_ms, waited_ms)

    async def finish(
        self, claim: Acquired, topic: str, answer: bytes, keep_ms: int, delivery: Delivery | None = None
    ) -> int | None:
        """Keep the answer and publish it."""
        done = await self.conclude(claim, topic, answer, keep_ms, delivery, Ending())
        return done.heard if isinstance(done, Concluded) else None

    @overload
    async def conclude(
        self,
        claim: Acquired,
        topic: str,
        answer: bytes,
        keep_ms: int,
        delivery: Delivery | None = None,
        outbox: OutboxRow | None = None,
    ) -> int | None: ...

    @overload
    async def conclude(
        self, claim: Acquired, topic: str, answer: bytes, keep_ms: int, delivery: Delivery | None, outbox: Ending
    ) -> Concluded | KeptBefore | None: ...

    async def conclude(  # noqa: PLR0917  # the port's arguments
        self,
        claim: Acquired,
        topic: str,
        answer: bytes,
        keep_ms: int,
        delivery: Delivery | None = None,
        outbox: OutboxRow | Ending | None = None,
    ) -> int | Concluded | KeptBefore | None:
        """Keep the answer, put the row into the outbox and publish."""
        if isinstance(outbox, Ending):
            return await self._conclude(claim, topic, answer, keep_ms, delivery, outbox)
        done = await self._conclude(claim, topic, answer, keep_ms, delivery, Ending(), outbox)
        return done.heard if isinstance(done, Concluded) else None

    async def _conclude(  # noqa: PLR0917  # those of `conclude`, and one
        self,
        claim: Acquired,
        topic: str,
        answer: bytes,
        keep_ms: int,
        delivery: Delivery | None,
        ending: Ending,
        row: OutboxRow | None = None,
    ) -> Concluded | KeptBefore | None:
        del delivery  # nothing is kept that could be done with
        now = self._clock()
        entry = self._known(claim.key, now)
        if entry and (entry.answer is not None or entry.fingerprint not in {claim.fingerprint, ""}):
            return Concluded(1) if entry.token == claim.token and entry.fingerprint == claim.fingerprint else None
        if kept := ending.kept_with(answer):
            first = await self.keep_first(ending.kept_key, kept, ending.keep_ms)
            if first != kept:
                return KeptBefore(first)
        if row and not self.outbox.put(row):
            _log.error("outbox_full", row_id=row.id, size=len(row.content))
        moved = self.journal.put(ending.row) if ending.row else Moved()
        until = now + keep_ms / 1_000
        self._state.requests[claim.key] = _Request(
            claim.fingerprint, claim.token, until, topic=topic, answer=answer, announced_at=now
        )
        return Concluded(await self._bus.publish(topic, answer), moved)

    async def begin_and_conclude(self, asking: Asking, answering: Answering) -> Claim | Concluded:
        """`begin`, and where nothing stands in the way `conclude`."""
        look, read = asking.look, answering.read
        known = look is not None and self.journal.knows(look.owner_key)
        current = look is not None and read is not None and self.journal.is_current(look.owner_key, read)
        claim = await self.begin(asking.key, asking.fingerprint, asking.lease_ms, asking.waited_ms, look)
        if not (isinstance(claim, Acquired) and look and (standing := claim.standing)):
            return claim
        if not (current if read else standing.version == look.version) or _is_in_the_way(claim, standing, answering):
            return claim
        done = await self.conclude(
            claim, answering.topic, answering.answer, answering.keep_ms, answering.delivery, answering.ending
        )
        if not isinstance(done, Concluded):
            return claim
        return done if known else replace(done, moved=replace(done.moved, before=""))
