"""Store and bus as erasure uses them (contract §13).

What goes is removed in batches, so that others are not held up: each method that does so is an iterator of what a batch
removed, and whoever iterates may pause or end there. All of it may be done again, and goes on where it ended.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Protocol

from nexus.core.erasure import BusKind, Erasure, StoreKind, Tombstone


class ErasureStore(Protocol):
    """Keeps tombstones, for ever, and removes what they are of. Errors: `StoreUnavailableError`, within its time limit.

    - What was said before a time is what has an earlier time, or none that can be read.
    - A `session` or `before` erasure removes all `records` and `pieces` of the owner, since contexts show earlier
      messages, and no `profile`. Facts and constraints go with a message that they name, whatever their own time.
    - Of the sessions that it is given all `states`, `turns`, `details`, `overviews` and `compactions` go, whatever
      their time: each may repeat what was said before.
    """

    async def put_tombstone(self, tombstone: Tombstone) -> None:
        """Keep a tombstone. Of one with the same names and `until` the later `erased_at` is kept."""

    async def tombstones(self, owner_keys: Sequence[str]) -> list[Tombstone]:
        """All tombstones of these owners."""

    async def sessions(self, erasure: Erasure) -> list[str]:
        """The sessions in which something goes; `[]` where all of the owner goes."""

    async def count(self, kind: StoreKind, erasure: Erasure, sessions: Sequence[str]) -> int | None:
        """How many of a kind would go, of the index messages or documents; None where counting takes too long."""

    def remove(self, kind: StoreKind, erasure: Erasure, sessions: Sequence[str]) -> AsyncGenerator[int]:
        """Remove all of a kind; how many went with each batch.

        Of the `index` what goes is of messages that went before: it is to be called again after a while.
        """

    def find_text(self, forms: Sequence[bytes]) -> AsyncGenerator[tuple[str, int]]:
        """By collection, how many of a batch of documents hold one of these byte strings."""


class BusErasure(Protocol):
    """What a bus and its ledger keep of an owner, besides outbox and dead letters. Errors: `BusUnavailableError`."""

    def sweep(self, owner_key: str, *, remove: bool) -> AsyncGenerator[Mapping[BusKind, int]]:
        """Look at everything that is kept, and with `remove` remove what is the owner's; how many of each kind."""

    def find_text(self, forms: Sequence[bytes]) -> AsyncGenerator[tuple[str, int]]:
        """By the beginning of their names, how many of a batch of keys hold one of these byte strings."""
