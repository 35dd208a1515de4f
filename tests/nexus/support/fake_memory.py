"""Working memory in memory, for unit tests. Its contract suite runs on it too."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from nexus.core.errors import StoreRejectedError
from nexus.core.ports import Row
from nexus.core.ports.memory import LONGEST_QUERY, NewestMemory
from nexus.services.text.content import as_text
from tests.nexus.support.stored import stored

_UNIQUE: Final = {
    "working_memory": ("owner_key", "session_id", "revision"),
    "memory_details": ("owner_key", "session_id", "name", "version"),
    "compactions": ("owner_key", "session_id", "number"),
}


class FakeMemoryStore:
    """`nexus.core.ports.memory.MemoryStore` in memory.

    Attributes:
        rows: what is kept, by collection, in the order in which it was inserted.

    Args:
        ask: called with the name of every operation before it is done.
    """

    def __init__(self, ask: Callable[[str], None]) -> None:
        self.rows: dict[str, list[Row]] = {name: [] for name in _UNIQUE}
        self._ask = ask

    async def insert_overview(self, overview: Row) -> bool:
        """Keep a revision. False when it is taken."""
        self._ask("insert_overview")
        return self._insert("working_memory", overview)

    async def latest_overview(self, owner_key: str, session_id: str) -> Row | None:
        """The overview with the highest revision."""
        self._ask("latest_overview")
        return next(map(stored, self._highest("working_memory", "revision", owner_key, session_id)), None)

    async def overviews(self, owner_key: str, session_id: str, *, limit: int, before: int | None = None) -> list[Row]:
        """Up to `limit` overviews, the highest revision first."""
        self._ask("overviews")
        found = self._highest("working_memory", "revision", owner_key, session_id, before)
        return [stored(row) for row in found[:limit]]

    async def drop_overviews(self, owner_key: str, session_id: str, *, below: int) -> int:
        """Remove the revisions below this one. Returns how many there were."""
        self._ask("drop_overviews")
        old = self._highest("working_memory", "revision", owner_key, session_id, below)
        self.rows["working_memory"] = [row for row in self.rows["working_memory"] if row not in old]
        return len(old)

    async def insert_details(self, details: Sequence[Row]) -> int:
        """Keep these up to the first whose name and version are taken. Returns how many were kept."""
        self._ask("insert_details")
        for kept, detail in enumerate([stored(dict(detail)) for detail in details]):
            if not self._insert("memory_details", detail):
                return kept
        return len(details)

    async def list_details(
        self, owner_key: str, session_id: str, *, limit: int | None = None, after: str = ""
    ) -> list[Row]:
        """The newest version of each detail, by name, without `content`; up to `limit` of those behind a name."""
        self._ask("list_details")
        newest = {row["name"]: row for row in self._versions(owner_key, session_id) if row["name"] > after}
        return [_without("content", row) for _, row in sorted(newest.items())][:limit]

    async def newest(self, owner_key: str, session_id: str, *, notes: int, archives: int) -> NewestMemory:
        """The working memory of a session as it is now."""
        self._ask("newest")
        overview = next(map(stored, self._highest("working_memory", "revision", owner_key, session_id)), None)
        compactions = self._highest("compactions", "number", owner_key, session_id)
        newest = {row["name"]: row for row in self._versions(owner_key, session_id)}.values()
        last_first = sorted(newest, key=lambda row: (row["updated_at"], row["name"]), reverse=True)
        of_kind = {kind: [row for row in last_first if row["kind"] == kind] for kind in ("note", "archive")}
        recent = [*of_kind["note"][:notes], *of_kind["archive"][:archives]]
        count = sum(map(len, of_kind.values()))
        details = [_without("content", row) for row in sorted(recent, key=lambda row: row["name"])]
        return NewestMemory(overview, details, count, _without_rows(compactions[0]) if compactions else None)

    async def find_detail(
        self, owner_key: str, session_id: str, name: str, *, version: int | None = None
    ) -> Row | None:
        """That version of the detail; its newest where none is named."""
        self._ask("find_detail")
        stored({"name": name, "version": version})
        named = [row for row in self._versions(owner_key, session_id) if row["name"] == name]
        found = [row for row in named if version is None or row["version"] == version]
        return stored(found[-1]) if found else None

    async def detail_versions(
        self, owner_key: str, session_id: str, *, limit: int, after: tuple[str, int] | None = None
    ) -> list[Row]:
        """Up to `limit` versions, whole, by name and then by version."""
        self._ask("detail_versions")
        versions = self._versions(owner_key, session_id)
        later = [row for row in versions if after is None or (row["name"], row["version"]) > after]
        return [stored(row) for row in later[:limit]]

    async def search_details(self, owner_key: str, session_id: str, text: str, *, limit: int) -> list[Row]:
        """Up to `limit` details whose content has `text` in it, whole, the last written first."""
        self._ask("search_details")
        if len(text) > LONGEST_QUERY:
            raise StoreRejectedError(f"no text of more than {LONGEST_QUERY} characters can be searched for")
        stored({"text": text})
        hits = [row for row in self._versions(owner_key, session_id) if holds(row.get("content"), text)]
        newest = {row["name"]: row for row in hits}.values()
        places = {id(row): place for place, row in enumerate(self.rows["memory_details"])}
        last_first = sorted(newest, key=lambda row: (row["updated_at"], places[id(row)]), reverse=True)
        return [stored(row) for row in last_first[:limit]]

    async def insert_compaction(self, compaction: Row) -> bool:
        """Keep a compaction. False when its number is taken."""
        self._ask("insert_compaction")
        return self._insert("compactions", compaction)

    async def latest_compaction(self, owner_key: str, session_id: str) -> Row | None:
        """The compaction with the highest number, without `rows`."""
        self._ask("latest_compaction")
        found = self._highest("compactions", "number", owner_key, session_id)
        return _without_rows(found[0]) if found else None

    async def compactions(
        self, owner_key: str, session_id: str, *, limit: int, before: int | None = None, whole: bool = False
    ) -> list[Row]:
        """Up to `limit` compactions, the highest number first; `whole`: with `rows`."""
        self._ask("compactions")
        found = self._highest("compactions", "number", owner_key, session_id, before)[:limit]
        return [stored(row) if whole else _without_rows(row) for row in found]

    async def update_compaction(
        self, owner_key: str, session_id: str, number: int, changes: Mapping[str, Any], *, seen: Mapping[str, Any]
    ) -> bool:
        """Set these fields, if those in `seen` still have these values."""
        self._ask("update_compaction")
        wanted = stored({**seen, "number": number}).items()
        of_session = self._of("compactions", owner_key, session_id)
        found = [row for row in of_session if all(row.get(name) == value for name, value in wanted)]
        for row in found:
            row.update(stored({**row, **changes}))
        return bool(found)

    async def claim_compaction(self, work: str, now: datetime, until: datetime) -> Row | None:
        """Of the compactions on which this work is due by `now`, the one first due; it is then due at `until`."""
        self._ask("claim_compaction")
        moment = stored({"now": now})["now"]
        of_work = [row for row in self.rows["compactions"] if row.get("work") == work and row.get("due_at")]
        due = [row for row in of_work if row["due_at"] <= moment]
        if not due:
            return None
        first = min(due, key=lambda row: row["due_at"])
        first.update(stored({"due_at": until}))
        return stored(first)

    def _insert(self, collection: str, document: Row) -> bool:
        kept = stored(dict(document))
        key = [kept.get(name) for name in _UNIQUE[collection]]
        if any([row.get(name) for name in _UNIQUE[collection]] == key for row in self.rows[collection]):
            return False
        self.rows[collection].append(kept)
        return True

    def _of(self, collection: str, owner_key: str, session_id: str) -> list[Row]:
        own = [row for row in self.rows[collection] if row.get("owner_key") == owner_key]
        return [row for row in own if row.get("session_id") == session_id]

    def _highest(
        self, collection: str, name: str, owner_key: str, session_id: str, before: int | None = None
    ) -> list[Row]:
        found = [row for row in self._of(collection, owner_key, session_id) if before is None or row[name] < before]
        return sorted(found, key=lambda row: row[name], reverse=True)

    def _versions(self, owner_key: str, session_id: str) -> list[Row]:
        of_session = self._of("memory_details", owner_key, session_id)
        return sorted(of_session, key=lambda row: (row["name"], row["version"]))


def holds(content: Any, text: str) -> bool:
    """Whether a content, as text, contains this one, upper and lower case alike."""
    is_read = isinstance(content, str | list | dict)
    return is_read and re.search(re.escape(text), as_text(content), re.IGNORECASE) is not None


def _without_rows(row: Row) -> Row:
    return _without("removed", _without("rows", row))


def _without(name: str, row: Row) -> Row:
    return stored({field: value for field, value in row.items() if field != name})
