"""Records of builds in memory, for unit tests. The contract suite runs on them too."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from nexus.core.records import BuildRecord


class FakeRecords:
    """`nexus.core.ports.RecordStore` in memory, where nothing expires."""

    def __init__(self, ask: Callable[[str], None]) -> None:
        self._ask = ask
        self.kept: dict[tuple[str, str], BuildRecord] = {}
        self.data: dict[tuple[str, bytes], bytes] = {}

    async def missing_pieces(self, owner_key: str, pieces: Sequence[bytes], until: datetime) -> set[bytes]:  # noqa: ARG002  # for ever
        """Those of these pieces that the owner has not."""
        self._ask("missing_pieces")
        return {piece for piece in pieces if (owner_key, piece) not in self.data}

    async def put_pieces(self, owner_key: str, pieces: Mapping[bytes, bytes], until: datetime) -> None:  # noqa: ARG002  # for ever
        """Keep pieces."""
        self._ask("put_pieces")
        self.data = {(owner_key, piece): data for piece, data in pieces.items()} | self.data

    async def put_record(self, record: BuildRecord, until: datetime) -> bool:  # noqa: ARG002  # for ever
        """Keep a record, unless there is one of that request."""
        self._ask("put_record")
        return self.kept.setdefault((record.owner_key, record.request_id), record) is record

    async def find_record(self, owner_key: str, request_id: str) -> BuildRecord | None:
        """The record of a request."""
        self._ask("find_record")
        return self.kept.get((owner_key, request_id))

    async def records(
        self, owner_key: str, *, session_id: str | None = None, before: BuildRecord | None = None, limit: int
    ) -> list[BuildRecord]:
        """Up to `limit` records of an owner."""
        self._ask("records")
        mine = [each for each in self.kept.values() if each.owner_key == owner_key]
        return _newest([each for each in mine if session_id in {None, each.session_id}], before, limit)

    async def failures(
        self, *, owner_key: str | None = None, before: BuildRecord | None = None, limit: int
    ) -> list[BuildRecord]:
        """Up to `limit` records of errors."""
        self._ask("failures")
        return _newest(
            [each for each in self.kept.values() if each.outcome != "success" and owner_key in {None, each.owner_key}],
            before,
            limit,
        )

    async def pieces(self, owner_key: str, pieces: Sequence[bytes]) -> dict[bytes, bytes]:
        """By id, these pieces."""
        self._ask("pieces")
        return {piece: self.data[owner_key, piece] for piece in pieces if (owner_key, piece) in self.data}


def _newest(records: list[BuildRecord], before: BuildRecord | None, limit: int) -> list[BuildRecord]:
    place = None if before is None else (before.answered_at, before.request_id)
    older = [each for each in records if place is None or (each.answered_at, each.request_id) < place]
    return sorted(older, key=lambda each: (each.answered_at, each.request_id), reverse=True)[:limit]
