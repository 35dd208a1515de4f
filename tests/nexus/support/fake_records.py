"""Records of builds in memory, for unit tests. The contract suite runs on them too."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from nexus.core.errors import StoreRejectedError
from nexus.core.records import BuildRecord, Piece


class FakeRecords:
    """`nexus.core.ports.RecordStore` in memory, where nothing expires. Records of the request `refused` are refused."""

    def __init__(self, ask: Callable[[str], None]) -> None:
        self._ask = ask
        self.kept: dict[tuple[str, str], BuildRecord] = {}
        self.data: dict[bytes, Piece] = {}
        self.until: dict[bytes, datetime] = {}
        self.refused = ""

    async def missing_pieces(self, pieces: Collection[bytes], until: datetime) -> set[bytes]:
        """Those of these ids whose pieces are not there so long."""
        self._ask("missing_pieces")
        return {each for each in pieces if each not in self.until or self.until[each] < until}

    async def put_pieces(self, pieces: Collection[Piece], until: datetime) -> None:
        """Keep pieces until then, at least."""
        self._ask("put_pieces")
        for each in pieces:
            self.data.setdefault(each.id, each)
            self.until[each.id] = max(until, self.until.get(each.id, until))

    async def put_records(self, records: Collection[BuildRecord], until: datetime) -> None:  # noqa: ARG002  # for ever
        """Keep records, each instead of one of an error of the same request."""
        self._ask("put_records")
        if self.refused in {each.request_id for each in records}:
            raise StoreRejectedError("refused")
        for each in records:
            key = (each.owner_key, each.request_id)
            if key not in self.kept or self.kept[key].outcome != "success":
                self.kept[key] = each

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
        found = [self.data[each] for each in pieces if each in self.data]
        return {each.id: each.data for each in found if each.owner_key == owner_key}


def _newest(records: list[BuildRecord], before: BuildRecord | None, limit: int) -> list[BuildRecord]:
    place = None if before is None else (before.answered_at, before.request_id)
    older = [each for each in records if place is None or (each.answered_at, each.request_id) < place]
    return sorted(older, key=lambda each: (each.answered_at, each.request_id), reverse=True)[:limit]
