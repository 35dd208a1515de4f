"""The way to a MongoDB server, its databases and collections, and the errors an operator sees.

    Refusal              exit code 1: the server or the data said no
    └── WrongUsage       exit code 2: the command cannot be meant that way
        └── NobodyToAskError     a question without a terminal to ask it at

The URI may hold a password: only `address_of` it is ever shown.
"""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import InvalidName, OperationFailure, PyMongoError, ServerSelectionTimeoutError

from nexus.adapters.mongo.versions import DATABASE, FIELD, KNOWN, is_newer
from nexus.cli.options import is_utf8
from nexus.core.errors import reason_of

SELECTION_MS = 2_000
# How long a write waits for a majority of the members.
WRITTEN_MS = 60_000
SYSTEM_DATABASES = ("admin", "config", "local")

Document = dict[str, Any]
Client = MongoClient[Document]
Rows = Collection[Document]
Store = Database[Document]

_MAX_NAME_BYTES = 63
_NOT_IN_NAMES = frozenset('/\\. "$*<>:|?\0')


class Refusal(Exception):  # noqa: N818  # the name says what happens to the operator, an outcome of the program
    """The operation cannot be done. The message is one line for the operator, without credentials."""

    exit_code = 1


class WrongUsage(Refusal):
    """The command itself is wrong; the message names the allowed values."""

    exit_code = 2


class NobodyToAskError(WrongUsage):
    """The operator has to agree, and stdin is no terminal."""


def address_of(uri: str) -> str:
    """Host and port of a valid `uri`, for people: no credentials, no options."""
    _, _, rest = uri.partition("://")
    return rest.partition("?")[0].rpartition("@")[2].partition("/")[0]


def connect(uri: str) -> tuple[Client, list[str]]:
    """A client that has talked to its server, and the driver's remarks on a URI that holds no secret it could quote.

    Dates that no datetime can hold and text that is no UTF-8 are read as well as they can be: one malformed document
    must not end an export.

    Raises:
        WrongUsage: the URI cannot be read.
        Refusal: no server, or none that lets us in.
    """
    with warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always")
        try:
            client: Client = MongoClient(
                uri,
                serverSelectionTimeoutMS=SELECTION_MS,
                connectTimeoutMS=SELECTION_MS,
                w="majority",
                wTimeoutMS=WRITTEN_MS,
                readConcernLevel="majority",
                retryReads=True,
                retryWrites=True,
                tz_aware=True,
                datetime_conversion="DATETIME_AUTO",
                unicode_decode_error_handler="replace",
                appname="nexus-database-manager",
            )
        except OSError as error:
            named = f"{error.filename}: " if error.filename else ""
            reason = one_line(error.strerror or type(error).__name__)
            raise WrongUsage(f"a file that the MongoDB URI names cannot be used: {named}{reason}") from None
        except (PyMongoError, ValueError, TypeError) as error:
            # The driver quotes the part it stumbled over, which is a part of the password when that was not escaped.
            reason = f": {one_line(str(error))}" if _has_no_secret(uri) else ""
            expected = "mongodb://[user:password@]host[:port]/[?options], user and password percent-encoded"
            raise WrongUsage(f"the MongoDB URI cannot be read{reason}; expected {expected}") from None
    try:
        client.admin.command("ping")
    except PyMongoError as error:
        client.close()
        raise Refusal(f"{address_of(uri)}: {explain(error)}") from None
    return client, [one_line(str(remark.message)) for remark in remarks] if _has_no_secret(uri) else []


def _has_no_secret(uri: str) -> bool:
    return not any(sign in uri.casefold() for sign in ("@", "password", "token"))


def explain(error: PyMongoError) -> str:
    """A driver's error in one line for the operator."""
    if isinstance(error, ServerSelectionTimeoutError):
        reason = str(error).split(", Timeout:")[0].split(" (configured timeouts")[0]
        return one_line(f"no usable MongoDB server answered within {SELECTION_MS // 1000} s: {reason}")
    if isinstance(error, OperationFailure):
        details = error.details if isinstance(error.details, Mapping) else {}
        return one_line(str(details.get("errmsg") or error).split(", full error:")[0])
    return one_line(reason_of(error).split(" (configured timeouts")[0])


def one_line(text: str) -> str:
    """`text` without line ends."""
    return " ".join(text.split())


def checked_database_name(name: str) -> str:
    """`name`, if MongoDB allows it.

    Raises:
        WrongUsage: it does not.
    """
    if not name or not is_utf8(name) or len(name.encode()) > _MAX_NAME_BYTES or _NOT_IN_NAMES.intersection(name):
        raise WrongUsage(f'{name!r} is no database name: 1 to 63 bytes, without / \\ . " $ * < > : | ? and spaces')
    return name


def writable(store: Store) -> Store:
    """`store`, if it is not one of the server's own, and no newer release has written to it.

    Raises:
        WrongUsage: it is one.
        Refusal: one has.
    """
    if store.name in SYSTEM_DATABASES:
        raise WrongUsage(f"{store.name} belongs to the MongoDB server: select another database")
    if is_newer(version := (store["schema"].find_one(DATABASE) or {}).get(FIELD)):
        raise Refusal(f"database {store.name!r} has the schema version {version}; {KNOWN}")
    return store


def existing_collection(store: Store, name: str) -> Rows:
    """The collection `name`.

    Raises:
        Refusal: there is none, with the names that there are.
    """
    names = sorted(store.list_collection_names())
    if name not in names:
        there = ", ".join(names) or "none"
        raise Refusal(f"no collection {name!r} in database {store.name!r}; there are: {there}")
    try:
        return store[name]
    except InvalidName as error:
        raise WrongUsage(explain(error)) from None


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
    """The statistics of a database, and notes on figures that the server does not give."""

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
