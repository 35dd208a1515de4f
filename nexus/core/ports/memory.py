"""The store of the working memory, and the working memory as contexts use it (contract §7)."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Protocol

from nexus.core.ports.rows import Row
from nexus.core.working_memory import CompactionJob, CompactionRequest, Snapshot

# Characters. Escaped for a pattern, each may take four, and patterns have a limit.
LONGEST_QUERY: Final = 250


class MemoryStore(Protocol):
    """Overviews, details and compactions, one document each revision, version or number.

    - Documents have the fields of `nexus.core.working_memory`, and `owner_key` and `session_id`. They never change, but
      for the summary of a compaction and the work that is due on it.
    - Unique are (`owner_key`, `session_id`, `revision`), (…, `name`, `version`) and (…, `number`): of several writers
      of the same one, one succeeds.
    - `work` of a compaction says what is due (`refine`, or None), `due_at` when. Times are kept to the millisecond.
    - Every read but `claim_compaction` names an owner and returns documents of that owner only, without `_id`.
    - Errors: `StoreUnavailableError`, within the store's time limit; `StoreRejectedError` for what it cannot keep.
    """

    async def insert_overview(self, overview: Row) -> bool:
        """Store a revision. False, and no change, when it is taken."""
        ...

    async def latest_overview(self, owner_key: str, session_id: str) -> Row | None:
        """The overview with the highest revision."""
        ...

    async def overviews(self, owner_key: str, session_id: str, *, limit: int, before: int | None = None) -> list[Row]:
        """Up to `limit` overviews, the highest revision first; only those below `before`."""
        ...

    async def insert_details(self, details: Sequence[Row]) -> int:
        """Store these in order, up to the first whose name and version are taken. Returns how many were stored."""
        ...

    async def list_details(self, owner_key: str, session_id: str) -> list[Row]:
        """The newest version of each detail, by name, without `content`."""
        ...

    async def recent_details(
        self, owner_key: str, session_id: str, *, notes: int, archives: int
    ) -> tuple[list[Row], int]:
        """The newest version of the notes and archives written last, by name, without `content`; and the number of all.

        At most so many of each. It takes time for what is returned, not for all archives.
        """
        ...

    async def find_detail(
        self, owner_key: str, session_id: str, name: str, *, version: int | None = None
    ) -> Row | None:
        """That version of the detail; its newest where none is named."""
        ...

    async def detail_versions(
        self, owner_key: str, session_id: str, *, limit: int, after: tuple[str, int] | None = None
    ) -> list[Row]:
        """Up to `limit` versions, whole, by name and then by version; only those after that name and version."""
        ...

    async def search_details(self, owner_key: str, session_id: str, text: str, *, limit: int) -> list[Row]:
        """Up to `limit` whole details whose content has `text`, ignoring case, the last written first.

        Of each detail the newest version that has it. `text` is literal; more than `LONGEST_QUERY` characters are
        rejected. A text index of the server may speed this up, but never hide a find.
        """
        ...

    async def insert_compaction(self, compaction: Row) -> bool:
        """Store a compaction. False, and no change, when its number is taken."""
        ...

    async def latest_compaction(self, owner_key: str, session_id: str) -> Row | None:
        """The compaction with the highest number, without `rows`, which are many."""
        ...

    async def compactions(
        self, owner_key: str, session_id: str, *, limit: int, before: int | None = None, whole: bool = False
    ) -> list[Row]:
        """Up to `limit` compactions, the highest number first; only those below `before`; `whole`: with `rows`."""
        ...

    async def update_compaction(
        self, owner_key: str, session_id: str, number: int, changes: Mapping[str, Any], *, seen: Mapping[str, Any]
    ) -> bool:
        """Set these fields, if those in `seen` still have these values. False, and no change, when they have not."""
        ...

    async def claim_compaction(self, work: str, now: datetime, until: datetime) -> Row | None:
        """Claim the compaction on which this work has been due the longest by `now`; it is then due at `until`.

        Callers at the same time get different ones. None when nothing is due.
        """
        ...

    async def delete_memory(self, owner_key: str, session_id: str) -> int:
        """Delete all of it. Returns how many documents there were."""
        ...


class MemorySource(Protocol):
    """The working memory as the context builder uses it."""

    async def snapshot(self, owner_key: str, session_id: str) -> Snapshot:
        """The working memory of a session.

        Raises:
            StoreUnavailableError: the store did not answer.
        """
        ...

    def compact_soon(self, request: CompactionRequest, /, *, long: bool = False) -> CompactionJob | None:
        """Start the compaction in the background, or join the one of the session that is under way. Never waits.

        Args:
            request: what is asked for.
            long: it may take long and no request waits for it; only a few of these run at once.

        Returns:
            None when too many are under way; it is not started then.
        """
        ...
