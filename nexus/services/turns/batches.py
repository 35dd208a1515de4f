"""Several documents in hand that were claimed at once, and are finished at once where that can be done.

What holds for one of them (`claims.Claimed`) holds for each: what is written of it counts only while it is in hand.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import anyio

from nexus.core.models import utc_now
from nexus.core.ports import Row
from nexus.services.turns.claims import RENEWALS, Claimed

# Sets fields of documents, of each if others still have these values: (document, fields, others). Says of how many, and
# the places of those that cannot be kept.
WriteAll = Callable[[Sequence[tuple[Row, Mapping[str, Any], Mapping[str, Any]]]], Awaitable[tuple[int, Sequence[int]]]]


class Batch:
    """Documents in hand.

    Args:
        claimed: each of them.
        write: how several are changed.
        lease_s: for how many seconds a claim holds that is not renewed.
    """

    def __init__(self, claimed: Sequence[Claimed], write: WriteAll, lease_s: float) -> None:
        self.claimed = claimed
        self._write = write
        self._lease_s = lease_s
        # What is written names the ends of the claims, which renewing moves.
        self._writing = anyio.Lock()

    async def keep_hold(self) -> None:
        """Renew the claims that are not lost and of which nothing is written."""
        while any(claimed.is_held for claimed in self.claimed):
            await anyio.sleep(self._lease_s / RENEWALS)
            async with self._writing:
                for claimed in self.claimed:
                    await claimed.renew()

    async def finish(self, results: Sequence[tuple[Claimed, Mapping[str, Any]]]) -> int:
        """Write what came of these, which nobody else finishes meanwhile. Returns of how many it was written.

        The others cannot be kept, and are still in hand; or they are not in hand any more, or were changed meanwhile
        and are to be done again at once.
        """
        async with self._writing:
            held = [(claimed, changes) for claimed, changes in results if claimed.is_held]
            if not held:
                return 0
            updates = [(claimed.document, changes, claimed.seen) for claimed, changes in held]
            written, refused = await self._write(updates)
            held = [each for place, each in enumerate(held) if place not in refused]
            if written < len(held):
                # Those that were written are not due then any more.
                again = {"due_at": utc_now()}
                await self._write([(each.document, again, {"due_at": each.seen["due_at"]}) for each, _ in held])
            for claimed, _ in held:
                claimed.let_go()
            return written

    async def give_back(self) -> None:
        """Have somebody else do those of which nothing was written."""
        held = [claimed for claimed in self.claimed if claimed.is_held]
        await self.finish([(claimed, {"due_at": utc_now()}) for claimed in held])
