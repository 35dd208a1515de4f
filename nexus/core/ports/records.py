"""The store of records of builds (contract §13)."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from nexus.core.records import BuildRecord


class RecordStore(Protocol):
    """Records and the pieces of their answers, each until a time at which the store removes it by itself.

    - A piece belongs to one owner, and is kept once however many of the owner's records have it.
    - Records come newest first, by `answered_at` and then by `request_id`; `before` is the last of the page before.
    - Errors: `StoreUnavailableError`, within the store's time limit; `StoreRejectedError` for what it cannot keep.
    """

    async def missing_pieces(self, owner_key: str, pieces: Sequence[bytes], until: datetime) -> set[bytes]:
        """Those of these pieces that the owner has not; those that are there stay until then, at least."""

    async def put_pieces(self, owner_key: str, pieces: Mapping[bytes, bytes], until: datetime) -> None:
        """Keep pieces, compressed bytes by id. What is there already stays as it is."""

    async def put_record(self, record: BuildRecord, until: datetime) -> bool:
        """Keep a record. False, and no change, where the owner has one of that request."""

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
        """By id, the compressed bytes of these pieces; only those there are."""
