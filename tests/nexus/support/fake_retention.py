"""What retention reads and removes, in memory, for unit tests. Its contract suite runs on it too."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nexus.core.models import DEFAULT_SESSION, new_row_id
from nexus.core.ports import Row
from nexus.core.ports.retention import HEADERS, Kind, Removable
from tests.nexus.support.stored import stored

if TYPE_CHECKING:
    from tests.nexus.support.fakes import FakeStore

_ROW = ("_id", "id", "run_id", "owner_key", "session_id", "role", "timestamp", "metadata")


class FakeRetention:
    """`nexus.core.ports.RetentionStore` in memory; it takes every document for one that was stored long ago.

    Args:
        ask: called with the name of every operation before it is done.
    """

    def __init__(self, store: "FakeStore", ask: Callable[[str], None]) -> None:
        self._store = store
        self._ask = ask
        self._pass: Row = {}
        # By the identity of a kept document.
        self._ids: dict[int, str] = {}

    async def claim_pass(self, now: datetime, until: datetime) -> Row | None:
        """Claim the pass, if it is due by `now`; it is then due at `until`."""
        self._ask("claim_pass")
        if self._pass and self._pass["due_at"] > now:
            return None
        self._pass = stored({"due_at": until})
        return dict(self._pass)

    async def update_pass(self, changes: Mapping[str, Any], *, seen: Mapping[str, Any]) -> bool:
        """Set these fields of the pass, if those in `seen` still have these values."""
        self._ask("update_pass")
        is_same = bool(self._pass) and all(self._pass.get(name) == value for name, value in stored({**seen}).items())
        self._pass |= stored({**changes}) if is_same else {}
        return is_same

    async def stored_before(self, kind: Kind, before: datetime, *, after: str = "", limit: int) -> list[Row]:
        """Headers of up to `limit` documents of all owners, in the order of storing."""
        self._ask("stored_before")
        del before
        later = sorted((each for each in self._kept(kind) if self._id(each) > after), key=self._id)
        return [{**_header(each, HEADERS[kind]), "_id": self._id(each)} for each in later[:limit]]

    async def rows_of_runs(self, owner_key: str, session_id: str, run_ids: Sequence[str]) -> list[Row]:
        """Headers of the rows of these runs in a session, in any order."""
        self._ask("rows_of_runs")
        of_session = [row for row in self._store.messages if (row.get("session_id") or DEFAULT_SESSION) == session_id]
        of_runs = [row for row in of_session if row.get("run_id") in run_ids]
        return [_row(row) for row in of_runs if row.get("owner_key") == owner_key]

    async def rows_of_ids(self, owner_key: str, row_ids: Sequence[str]) -> list[Row]:
        """Headers of the owner's rows with these `_id`s, in any order."""
        self._ask("rows_of_ids")
        own = [row for row in self._store.messages if row.get("owner_key") == owner_key]
        return [_row(row) for row in own if row["_id"] in row_ids]

    async def remove(self, kind: Removable, owner_key: str, ids: Sequence[str]) -> int:
        """Remove the owner's documents with these `_id`s. Returns how many there were."""
        self._ask("remove")
        kept = self._kept(kind)
        going = [each for each in kept if each.get("owner_key") == owner_key and self._id(each) in ids]
        kept[:] = [each for each in kept if not any(each is other for other in going)]
        return len(going)

    def _kept(self, kind: Kind | Removable) -> list[Row]:
        if kind in {"messages", "turns"}:
            return self._store.messages if kind == "messages" else self._store.turns.rows
        names = {"compactions": "compactions", "overviews": "working_memory", "details": "memory_details"}
        return self._store.memory.rows[names[kind]]

    def _id(self, document: Row) -> str:
        return str(document["_id"]) if "_id" in document else self._ids.setdefault(id(document), new_row_id())


def _header(document: Row, names: Sequence[str]) -> Row:
    wanted = ("owner_key", "session_id", *(name.partition(".")[0] for name in names))
    return stored({name: document[name] for name in wanted if name in document})


def _row(row: Row) -> Row:
    return {name: row[name] for name in _ROW if name in row}
