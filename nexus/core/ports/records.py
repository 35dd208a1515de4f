"""The store of records of builds (contract §13)."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Protocol

from nexus.core.records import BuildRecord, Piece


class RecordStore(Protocol):
    """Records and the pieces of their answers, each until a time at which the store removes it by itself.

    - A piece belongs to one owner, and is kept once however many of the owner's records have it.
    - Records come newest first, by `answered_at` and then by `request_id`; `before` is the last of the page before.
    - Errors: `StoreUnavailableError`, within the store's time limit; `StoreRejectedError` for what it cannot keep.
    """

    async def missing_pieces(self, pieces: Collection[bytes], until: datetime) -> set[bytes]:
        """Those of these ids whose pieces are not there, or may be removed before that time."""

    async def put_pieces(self, pieces: Collection[Piece], until: datetime) -> None:
        """Keep pieces until then, at least; those that are there already, too."""

    async def put_records(self, records: Collection[BuildRecord], until: datetime) -> None:
        """Keep records until then. Of a request one is kept: that of an error gives way to a later one."""

    async def find_record(self, owner_key: str, request_id: str) -> BuildRecord | None:
        """The record of a request."""

    async def records(
        self, owner_key: str, *, session_id: str | None = None, before: BuildRecord | None = None, limit: int
    ) -> list[BuildRecord]:
        """Up to `limit` records of an owner, of one session or of all."""

    async def failures(
        self, *, owner_key: str | None = None, before: BuildRecord | None = None, limit: int
    ) -> list[BuildRecord]:
        """Up to `limit` records of errors, of one owner or of all."""

    async def pieces(self, owner_key: str, pieces: Sequence[bytes]) -> dict[bytes, bytes]:
        """By id, the bytes of these pieces of the owner; only those there are."""
