"""The store as retention uses it: what is old, of all owners, and its removal (contract §7)."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, Protocol

from nexus.core.models import Row

Kind = Literal["turns", "compactions", "overviews", "details"]
Removable = Literal["messages", "turns", "overviews", "details"]
# The fields that headers have besides `_id`, `owner_key` and `session_id`.
HEADERS: Final[Mapping[Kind, Sequence[str]]] = {
    "turns": (
        *("run_id", "turn_number", "timestamp", "status", "work", "messages", "removed", "rows_gone"),
        *("summaries.brief", "summaries.detailed"),
    ),
    "compactions": ("number", "first_at", "created_at", "rows_gone"),
    "overviews": ("revision", "updated_at"),
    "details": ("name", "version", "kind", "compaction", "updated_at"),
}


class RetentionStore(Protocol):
    """Reads headers of what is old, and removes by owner and `_id`.

    - Other programs may have written the documents: any field may be missing or of another type.
    - A row has its `_id`, `id`, `run_id`, `owner_key`, `session_id`, `role` and `timestamp`, and of `metadata` whether
      it is internal to a sub-agent.
    - Errors: `StoreUnavailableError`, within the store's time limit; `StoreRejectedError`.
    """

    async def claim_pass(self, now: datetime, until: datetime) -> Row | None:
        """Claim the pass over everything, if it is due by `now`, as at first; it is then due (`due_at`) at `until`.

        Of callers at the same time one gets it. None when it is not due.
        """

    async def update_pass(self, changes: Mapping[str, Any], *, seen: Mapping[str, Any]) -> bool:
        """Set these fields of the pass, if those in `seen` still have these values. False when they have not."""

    async def stored_before(self, kind: Kind, before: datetime, *, after: str = "", limit: int) -> list[Row]:
        """Headers of up to `limit` documents of all owners that were stored before then, in the order of storing.

        Only those after the `_id` `after`; `""` for the first. See `HEADERS`.
        """

    async def rows_of_runs(self, owner_key: str, session_id: str, run_ids: Sequence[str]) -> list[Row]:
        """Headers of the rows of these runs in a session, in any order."""

    async def rows_of_ids(self, owner_key: str, row_ids: Sequence[str]) -> list[Row]:
        """Headers of the owner's rows with these `_id`s, in any order."""

    async def remove(self, kind: Removable, owner_key: str, ids: Sequence[str]) -> int:
        """Remove the owner's documents with these `_id`s. Returns how many there were; the others are gone already."""
