"""Erasure in memory, for unit tests. Its contract suite runs on it too."""

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import bson

from nexus.core.erasure import Erasure, StoreKind, Tombstone, hashed
from nexus.core.models import DEFAULT_SESSION, parse_moment
from nexus.core.ports import Row

if TYPE_CHECKING:
    from tests.nexus.support.fakes import FakeStore

_SUMMARIES = {"details": "memory_details", "overviews": "working_memory", "compactions": "compactions"}


class FakeErasure:
    """`nexus.core.ports.ErasureStore` in memory.

    Attributes:
        tombs: the tombstones.
    """

    def __init__(self, store: "FakeStore", ask: Callable[[str], None]) -> None:
        self._store = store
        self._ask = ask
        self.tombs: list[Tombstone] = []

    async def put_tombstone(self, tombstone: Tombstone) -> None:
        """Keep a tombstone, or renew it."""
        self._ask("put_tombstone")
        same = [each for each in self.tombs if replace(each, erased_at=tombstone.erased_at) == tombstone]
        self.tombs = [each for each in self.tombs if each not in same]
        self.tombs.append(max([*same, tombstone], key=lambda each: each.erased_at))

    async def tombstones(self, owner_keys: Sequence[str]) -> list[Tombstone]:
        """All tombstones of these owners."""
        self._ask("tombstones")
        return [each for each in self.tombs if each.owner in {*map(hashed, owner_keys)}]

    async def sessions(self, erasure: Erasure) -> list[str]:
        """The sessions in which something goes."""
        self._ask("sessions")
        if erasure.before is None:
            return [] if erasure.session_id is None else [erasure.session_id]
        names = set()
        for kind in ("messages", "turns", "states", *_SUMMARIES):
            for row in self._rows(kind):
                if row.get("owner_key") == erasure.owner_key and _is_of(row, erasure) and _is_earlier(row, erasure):
                    names.add(row.get("session_id") or DEFAULT_SESSION)
        return sorted(names)

    async def count(self, kind: StoreKind, erasure: Erasure, sessions: Sequence[str]) -> int | None:
        """How many of a kind would go."""
        self._ask("count")
        if kind == "constraints" and not erasure.is_whole:
            return sum(document != left for document, left in self._constraints(erasure))
        return len(self._going(kind, erasure, sessions))

    async def remove(self, kind: StoreKind, erasure: Erasure, sessions: Sequence[str]) -> AsyncGenerator[int]:
        """Remove all of a kind, one at a time."""
        self._ask("remove")
        if kind == "constraints" and not erasure.is_whole:
            for document, left in [*self._constraints(erasure)]:
                if document != left:
                    key = (document["owner_key"], document["place"])
                    self._store.constraints.kept[key] = left
                    if not any(left["document"].values()):
                        del self._store.constraints.kept[key]
                    yield 1
            return
        # What the index has of a message goes with it.
        for each in self._going(kind, erasure, sessions) if kind != "index" else ():
            if kind == "messages":
                self._store.recall.drop(each)
            self._drop(kind, each)
            yield 1

    async def find_text(self, forms: Sequence[bytes]) -> AsyncGenerator[tuple[str, int]]:
        """By kind, how many documents hold one of these byte strings."""
        self._ask("find_text")
        for kind in ("messages", "facts", "constraints", "turns", "states", "profile", *_SUMMARIES):
            held = [bson.encode({name: row[name] for name in row}) for row in self._rows(kind)]
            yield kind, sum(any(form in each for form in forms) for each in held)

    def _rows(self, kind: str) -> list[Any]:
        store = self._store
        if kind == "index":
            return [row for row in store.messages if "place" in store.recall.states.get(row["_id"], {})]
        kept: dict[str, list[Any]] = {
            "records": [*store.records.kept.values()],
            "pieces": [*store.records.data.values()],
            "facts": [*store.facts.kept.values()],
            "constraints": [*store.constraints.kept.values()],
            "profile": store.identities,
            "turns": store.turns.rows,
            "states": store.session_states,
            "messages": store.messages,
            **{name: store.memory.rows[collection] for name, collection in _SUMMARIES.items()},
        }
        return kept[kind]

    def _going(self, kind: StoreKind, erasure: Erasure, sessions: Sequence[str]) -> list[Any]:
        rows, owner = self._rows(kind), erasure.owner_key
        if kind == "records":
            return [each for each in rows if each.owner_key == owner]
        if kind == "pieces":
            return [each for each in rows if each.owner_key == owner]
        if kind == "profile":
            return [row for row in rows if erasure.is_whole and row.get("public_key") == owner]
        own = [row for row in rows if row.get("owner_key") == owner]
        if erasure.is_whole:
            return own
        if kind in {*_SUMMARIES, "states", "turns"}:
            return [row for row in own if row.get("session_id") in sessions]
        gone = self._ids_that_go(erasure) if kind == "facts" else set()
        return [
            row
            for row in own
            if (_is_of(row, erasure, kind) and _is_earlier(row, erasure)) or gone & {*row.get("evidence", ())}
        ]

    def _ids_that_go(self, erasure: Erasure) -> set[Any]:
        return {row.get("id") for row in self._going("messages", erasure, [])}

    def _constraints(self, erasure: Erasure) -> Iterable[tuple[Row, Row]]:
        """The owner's documents, and what is left of each."""
        gone = self._ids_that_go(erasure)

        def goes(each: Row) -> bool:
            is_of = erasure.session_id in {None, each.get("session_id")}
            return (is_of and _is_before(each.get("valid_from"), erasure)) or each.get("source_message_id") in gone

        for row in self._rows("constraints"):
            if row["owner_key"] != erasure.owner_key:
                continue
            given, taken_back = (_entries(row["document"].get(name)) for name in ("constraints", "retired"))
            whose = row["place"] == f"session:{erasure.session_id}" or erasure.session_id is None
            left = {
                "constraints": [each for each in given if not goes(each)],
                "retired": [each for each in taken_back if not (whose and _is_before(each.get("valid_to"), erasure))],
            }
            same = left == {"constraints": given, "retired": taken_back}
            yield row, row if same else {**row, "document": left, "revision": row["revision"] + 1}

    def _drop(self, kind: StoreKind, each: Any) -> None:
        store = self._store
        if kind == "records":
            del store.records.kept[each.owner_key, each.request_id]
        elif kind == "pieces":
            del store.records.data[each.id], store.records.until[each.id]
        elif kind == "facts":
            del store.facts.kept[each["owner_key"], each["id"]]
        elif kind == "constraints":
            del store.constraints.kept[each["owner_key"], each["place"]]
        else:
            rows = self._rows(kind)
            rows[:] = [row for row in rows if row is not each]


def _entries(value: Any) -> list[Row]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _is_of(row: Row, erasure: Erasure, kind: str = "messages") -> bool:
    session = row.get("session_id") or ("" if kind == "facts" else DEFAULT_SESSION)
    return erasure.session_id in {None, session}


def _is_earlier(row: Row, erasure: Erasure) -> bool:
    names = ("timestamp", "updated_at", "said_at", "created_at", "first_at")
    times = [row[name] for name in names if name in row]
    return erasure.before is None or not times or any(_is_before(each, erasure) for each in times)


def _is_before(value: Any, erasure: Erasure) -> bool:
    moment = parse_moment(value)
    return erasure.before is None or moment is None or moment < erasure.before
