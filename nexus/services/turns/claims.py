"""Claiming what is due, and holding it while something is done with it that takes a while.

What is due stands in a document, as `work` and `due_at`. Who claims it puts `due_at` off for a short time, again and
again, so that what one left undone, because it was stopped or killed, is done by another or by itself when it is back.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any, Final, Protocol, TypeVar

import anyio

from nexus.core.errors import StoreUnavailableError
from nexus.core.models import utc_now
from nexus.core.ports import Row
from nexus.services.turns.documents import to_milliseconds

# How often a claim is renewed in the time that it holds.
RENEWALS: Final = 3
# How often is looked for what is due, where nobody says so.
LOOKED_S: Final = 1.0
# How long a claim may take, also at the end of a service.
_CLAIMED_S: Final = 1.0
# How long giving back what was claimed may hold up the end of a service.
_PARTING_S: Final = 0.5

# Sets these fields of a document, if the second ones still have these values; says whether they had.
Write = Callable[[Mapping[str, Any], Mapping[str, Any]], Awaitable[bool]]


class InHand(Protocol):
    """What `work_off` has done."""

    async def keep_hold(self) -> None:
        """Renew the claim, until it is lost or something is written."""
        ...

    async def give_back(self) -> None:
        """Have somebody else do it, if nothing was written."""
        ...


_Work = TypeVar("_Work", bound=InHand)


class Claimed:
    """A document in hand. What is written of it counts only while it is, and it is until something is written.

    Args:
        document: as it was claimed.
        write: how it is changed.
        until: when the claim ends, which stands in its `due_at`.
        lease: for how long a claim holds that is not renewed.
        unchanged: fields that have to be as they were claimed for what is written to count.
    """

    def __init__(
        self, document: Row, write: Write, until: datetime, lease: timedelta, unchanged: Sequence[str]
    ) -> None:
        self.document = document
        self._write = write
        self._lease = lease
        self._until: datetime | None = until
        self._unchanged = unchanged

    @cached_property
    def _writing(self) -> anyio.Lock:
        """What is written names the end of the claim, which renewing moves."""
        return anyio.Lock()

    @property
    def is_held(self) -> bool:
        """Whether it is in hand."""
        return self._until is not None

    @property
    def seen(self) -> dict[str, Any]:
        """What has to be in the document for what is written to count."""
        return {**{name: self.document.get(name) for name in self._unchanged}, "due_at": self._until}

    async def keep_hold(self) -> None:
        """Renew the claim, until it is lost or something is written."""
        while self._until:
            await anyio.sleep(self._lease.total_seconds() / RENEWALS)
            await self.renew()

    async def renew(self) -> None:
        """Have the claim last longer, if it is in hand."""
        async with self._writing:
            if self._until:
                until = to_milliseconds(utc_now()) + self._lease
                with suppress(StoreUnavailableError):
                    self._until = until if await self._write({"due_at": until}, self.seen) else None

    async def finish(self, changes: Mapping[str, Any]) -> bool:
        """Write what came of it. False, and nothing is written, when it is not in hand any more."""
        async with self._writing:
            if not self._until:
                return False
            written = await self._write(changes, self.seen)
            if not written:
                # It was changed meanwhile, and nobody else has it in hand: it is to be done again at once.
                await self._write({"due_at": utc_now()}, {"due_at": self._until})
            self._until = None
            return written

    def let_go(self) -> None:
        """Leave it to whoever claims it when the claim has run out."""
        self._until = None

    async def give_back(self) -> None:
        """Have somebody else do it, if nothing was written."""
        if self._until:
            await self.finish({"due_at": utc_now()})


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


async def take(
    claim: Callable[[datetime, datetime], Awaitable[Row | None]],
    write: Callable[[Row, Mapping[str, Any], Mapping[str, Any]], Awaitable[bool]],
    *,
    lease_s: float,
    unchanged: Sequence[str],
) -> Claimed | None:
    """What is due, in hand; None for nothing, and where the store is away.

    Args:
        claim: claims what is due by the first moment until the second one.
        write: what `Claimed` takes, of a document.
        lease_s: for how many seconds it is claimed.
        unchanged: what `Claimed` takes.
    """

    async def claim_one(now: datetime, until: datetime) -> list[Row]:
        document = await claim(now, until)
        return [document] if document else []

    claimed = await take_several(claim_one, write, lease_s=lease_s, unchanged=unchanged)
    return claimed[0] if claimed else None


async def take_several(
    claim: Callable[[datetime, datetime], Awaitable[Sequence[Row]]],
    write: Callable[[Row, Mapping[str, Any], Mapping[str, Any]], Awaitable[bool]],
    *,
    lease_s: float,
    unchanged: Sequence[str],
) -> list[Claimed]:
    """What is due of which several pieces are claimed at once; the rest as for `take`."""
    # To the millisecond, as it will be kept: what is written later is compared with it.
    now = to_milliseconds(utc_now())
    lease = timedelta(milliseconds=round(lease_s * 1_000))
    documents: Sequence[Row] = ()
    # Who is stopped now would not know what the store has given out, and nobody could give it back. A store that is
    # away is asked again before long, and others say that it is.
    with anyio.move_on_after(_CLAIMED_S, shield=True), suppress(StoreUnavailableError):
        documents = await claim(now, now + lease)
    return [Claimed(document, partial(write, document), now + lease, lease, unchanged) for document in documents]


async def work_off(
    taken: Callable[[], Awaitable[_Work | None]], do: Callable[[_Work], Awaitable[None]], bell: Bell, at_once: int
) -> None:
    """Do whatever is due, whenever some is, so much at once; never returns.

    Args:
        taken: takes a piece of it in hand; None for nothing.
        do: does it, and must not raise: it would end the work on all others.
        bell: says that there may be some.
        at_once: pieces at most.
    """
    places = anyio.Semaphore(at_once)
    async with anyio.create_task_group() as tasks:
        while True:
            await places.acquire()
            claimed = await taken()
            if claimed:
                tasks.start_soon(_hold, claimed, do, places)
                # What is done by then would be kept until something else is due.
                del claimed
            else:
                places.release()
                await bell.heard(LOOKED_S)


async def _hold(claimed: _Work, do: Callable[[_Work], Awaitable[None]], places: anyio.Semaphore) -> None:
    """Do the work while holding on to the document; whatever becomes of it, somebody will look again."""
    holding = anyio.CancelScope()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_keep_hold, claimed, holding)
            await do(claimed)
            holding.cancel()
    finally:
        with anyio.move_on_after(_PARTING_S, shield=True), suppress(StoreUnavailableError):
            await claimed.give_back()
        places.release()


async def _keep_hold(claimed: InHand, holding: anyio.CancelScope) -> None:
    # A task that its group cancels leaves a cycle behind, and in it all that was in hand: megabytes, until Python next
    # looks for cycles. One that ends within a scope of its own does not.
    with holding:
        await claimed.keep_hold()
