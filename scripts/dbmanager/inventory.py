"""What there is on the server: databases, collections, statistics."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pymongo.errors import OperationFailure

from .server import SYSTEM_DATABASES, Client, Rows, Store, explain


@dataclass(frozen=True)
class DatabaseInfo:
    """One database; None where the server does not tell."""

    name: str
    size_on_disk: int | None
    collections: int | None
    documents: int | None
    system: bool
    selected: bool


@dataclass(frozen=True)
class CollectionInfo:
    """One collection or view. The number of documents is the server's estimate, None for a view."""

    name: str
    kind: str
    documents: int | None


@dataclass(frozen=True)
class IndexInfo:
    """One index: its bytes, and how often it was used since when; None where the server does not tell."""

    name: str
    size: int | None
    uses: int | None
    since: datetime | None


@dataclass(frozen=True)
class CollectionStats:
    """The sizes of one collection in bytes."""

    name: str
    documents: int | None
    data_size: int | None
    average_size: int | None
    storage_size: int | None
    index_size: int | None
    indexes: tuple[IndexInfo, ...]


@dataclass(frozen=True)
class DatabaseStats:
    """The statistics of a database, and what the server could not say."""

    database: str
    collections: tuple[CollectionStats, ...]
    notes: tuple[str, ...]


def databases(client: Client, selected: str) -> list[DatabaseInfo]:
    """All databases by name; the selected one is marked."""
    found = sorted(client.list_databases(), key=lambda item: str(item["name"]))
    return [_database(client, item, selected) for item in found]


def _database(client: Client, item: dict[str, Any], selected: str) -> DatabaseInfo:
    name = str(item["name"])
    try:
        inside: list[CollectionInfo] | None = collections(client[name])
    except OperationFailure:  # no right to look inside: the others can still be shown
        inside = None
    return DatabaseInfo(
        name=name,
        size_on_disk=_whole(item.get("sizeOnDisk")),
        collections=None if inside is None else len(inside),
        documents=None if inside is None else sum(each.documents or 0 for each in inside),
        system=name in SYSTEM_DATABASES,
        selected=name == selected,
    )


def collections(store: Store) -> list[CollectionInfo]:
    """All collections and views by name."""
    found = sorted(store.list_collections(), key=lambda item: str(item["name"]))
    return [_collection(store, str(item["name"]), str(item.get("type", "collection"))) for item in found]


def _collection(store: Store, name: str, kind: str) -> CollectionInfo:
    try:
        documents = None if kind == "view" else store[name].estimated_document_count()
    except OperationFailure:
        documents = None
    return CollectionInfo(name, kind, documents)


def statistics(store: Store) -> DatabaseStats:
    """Sizes and index use of every collection that is no view."""
    notes: dict[str, None] = {}  # a set that keeps its order
    made = [_stats(store[info.name], notes) for info in collections(store) if info.kind != "view"]
    return DatabaseStats(store.name, tuple(made), tuple(notes))


def _stats(rows: Rows, notes: dict[str, None]) -> CollectionStats:
    try:
        told: dict[str, Any] = rows.database.command("collStats", rows.name)
    except OperationFailure as error:
        notes[f"{rows.name}: sizes are not known: {explain(error)}"] = None
        told = {"count": rows.estimated_document_count()}
    sizes = told.get("indexSizes")
    documents, data_size = _whole(told.get("count")), _whole(told.get("size"))
    return CollectionStats(
        name=rows.name,
        documents=documents,
        data_size=data_size,
        average_size=data_size // documents if documents and data_size is not None else None,
        storage_size=_whole(told.get("storageSize")),
        index_size=_whole(told.get("totalIndexSize")),
        indexes=tuple(_indexes(rows, sizes if isinstance(sizes, dict) else {}, notes)),
    )


def _indexes(rows: Rows, sizes: dict[str, Any], notes: dict[str, None]) -> Iterable[IndexInfo]:
    uses: dict[str, int] = {}
    since: dict[str, datetime] = {}
    try:
        for item in rows.aggregate([{"$indexStats": {}}]):  # one item an index and shard
            name, accesses = str(item["name"]), item.get("accesses") or {}
            if isinstance(accesses.get("since"), datetime):
                uses[name] = uses.get(name, 0) + int(accesses.get("ops") or 0)
                since[name] = min(accesses["since"], since.get(name, accesses["since"]))
    except OperationFailure as error:
        notes[f"this server does not tell how often an index is used: {explain(error)}"] = None
    names = sizes.keys() | uses.keys() | rows.index_information().keys()
    if names - uses.keys():
        notes["this server does not count how often an index is used"] = None
    return [IndexInfo(name, _whole(sizes.get(name)), uses.get(name), since.get(name)) for name in sorted(names)]


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) else None
