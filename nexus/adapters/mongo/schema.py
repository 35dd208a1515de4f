"""The indexes that the store's promises rest on, how its documents are decoded, and conditions for queries.

An owner is always compared as a text (`$eq`), so that no name of an owner can be an operator (contract §2).
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

import pymongo
from bson import ObjectId, Regex, json_util
from bson.code import Code
from bson.codec_options import CodecOptions, DatetimeConversion, TypeDecoder, TypeRegistry
from bson.dbref import DBRef
from bson.errors import BSONError
from pymongo import ASCENDING, DESCENDING, TEXT, IndexModel
from pymongo.errors import DuplicateKeyError, OperationFailure, PyMongoError

from nexus.adapters.mongo.client import Calls
from nexus.adapters.mongo.documents import equal
from nexus.adapters.mongo.versions import check_database, mark_database
from nexus.core import recall
from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.models import (
    AGENT_ID,
    DEFAULT_SESSION,
    HANDLE,
    INTERNAL,
    LONG_AGO,
    is_object_id,
    named_agent,
    parse_moment,
    utc_now,
)
from nexus.core.ports import Inventory, Row, RunOrigin


class _NoReferences(TypeDecoder):
    """An object with `$ref` and `$id`, such as a part of a JSON schema, is decoded as an object."""

    @property
    def bson_type(self) -> type[DBRef]:
        return DBRef

    def transform_bson(self, value: DBRef) -> dict[str, Any]:
        return dict(value.as_doc())


class _NoCode(TypeDecoder):
    """JavaScript is decoded as its text: `Code` is a `str` that has no hash and equals no text."""

    @property
    def bson_type(self) -> type[Code]:
        return Code

    def transform_bson(self, value: Code) -> str:
        return str(value)


# Dates that Python cannot hold and text that is not UTF-8 come through changed rather than spoil the rows around them.
EXACT_CODEC: Final[CodecOptions[dict[str, Any]]] = CodecOptions(
    tz_aware=True,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
    unicode_decode_error_handler="replace",
    type_registry=TypeRegistry([_NoReferences()]),
)
CODEC: Final = EXACT_CODEC.with_options(type_registry=TypeRegistry([_NoReferences(), _NoCode()]))
NEWEST_FIRST: Final = [("timestamp", DESCENDING), ("_id", DESCENDING)]
OLDEST_FIRST: Final = [("timestamp", ASCENDING), ("_id", ASCENDING)]


def _spelled(*roles: str) -> list[str]:
    return [form for role in roles for form in (role.upper(), role, role.title())]


_OF_TOOLS: Final = [*_spelled("tool", "function"), "toolMessage"]
NOT_SHOWN: Final = [*_OF_TOOLS, *_spelled("system", "command", "developer")]
TOOL: Final = {"$in": _OF_TOOLS}
HUMAN: Final = {"$in": _spelled("human", "user")}
NOT_INTERNAL: Final = {f"metadata.{INTERNAL}": {"$ne": True}}
ONLY_INTERNAL: Final = {f"metadata.{INTERNAL}": True}
TEXT_TIME: Final = {"timestamp": {"$type": "string"}}
NO_TEXT_TIME: Final = {"timestamp": {"$not": {"$type": "string"}}}

_SESSION: Final = [("owner_key", ASCENDING), ("session_id", ASCENDING)]
# The role stands last so that the sort is served and rows of tools are passed over without being read.
_SORTED: Final = [*NEWEST_FIRST, ("role", ASCENDING)]
OF_OWNER: Final = [("owner_key", ASCENDING), *_SORTED]
OF_SESSION: Final = [*_SESSION, *NEWEST_FIRST]
STORED_IN_SESSION: Final = [*_SESSION, ("_id", ASCENDING)]
INTERNAL_IN_SESSION: Final = [*_SESSION, (f"metadata.{AGENT_ID}", ASCENDING), ("_id", ASCENDING)]
_ANSWERED: Final = [("answered_at", DESCENDING), ("request_id", DESCENDING)]
# Holds no more than the documents on which work is due: no session, however long, makes claiming slower.
_WORK_DUE: Final = {"work": {"$gt": ""}}
# Rows that have a place in the index of long-term memory.
IS_PLACED: Final = {"recall.place": {"$gte": 0}}
# Large results, which have a handle.
HAS_HANDLE: Final = {f"metadata.{HANDLE}": {"$gt": ""}}
INDEXES: Final[dict[str, list[IndexModel]]] = {
    "messages": [
        IndexModel(OF_OWNER, name="newest_of_owner"),
        IndexModel([("owner_key", ASCENDING), ("run_id", ASCENDING), *_SORTED], name="newest_of_run"),
        IndexModel(OF_SESSION, name="newest_of_session"),
        IndexModel(STORED_IN_SESSION, name="stored_in_session"),
        IndexModel(INTERNAL_IN_SESSION, name="internal_in_session", partialFilterExpression=ONLY_INTERNAL),
        # Partial, because rows that others wrote without an id must not stand in each other's way.
        IndexModel(
            [("owner_key", ASCENDING), ("id", ASCENDING)],
            name="one_per_id",
            unique=True,
            partialFilterExpression={"id": {"$gt": ""}},
        ),
        # Empty where Nexus alone writes. It tells at once whether there is any such row.
        IndexModel([("timestamp", ASCENDING)], name="text_times", partialFilterExpression=TEXT_TIME),
        IndexModel(
            [("recall.work", ASCENDING), ("recall.due_at", ASCENDING)],
            name="recall_due",
            partialFilterExpression={"recall.work": {"$gt": ""}},
        ),
        IndexModel(
            [("owner_key", ASCENDING), ("recall.place", ASCENDING)],
            name="recall_place",
            partialFilterExpression=IS_PLACED,
        ),
        IndexModel(
            [("owner_key", ASCENDING), (f"metadata.{HANDLE}", ASCENDING)],
            name="result_of_handle",
            partialFilterExpression=HAS_HANDLE,
        ),
        IndexModel([("recall.generation", ASCENDING)], name="recall_generation", partialFilterExpression=IS_PLACED),
    ],
    "identities": [IndexModel([("public_key", ASCENDING)], name="one_per_key", unique=True)],
    "configurations": [IndexModel([("environment", ASCENDING)], name="one_per_environment", unique=True)],
    "tools": [IndexModel([("name", ASCENDING)], name="one_per_name", unique=True)],
    "session_states": [IndexModel(_SESSION, name="one_per_session", unique=True)],
    "facts": [
        IndexModel([("owner_key", ASCENDING), ("id", ASCENDING)], name="one_per_statement", unique=True),
        IndexModel([("owner_key", ASCENDING), ("said_at", DESCENDING), ("id", DESCENDING)], name="latest_statements"),
    ],
    "constraints": [IndexModel([("owner_key", ASCENDING), ("place", ASCENDING)], name="one_per_place", unique=True)],
    "context_records": [
        IndexModel([("owner_key", ASCENDING), ("request_id", ASCENDING)], name="one_per_request", unique=True),
        IndexModel([("owner_key", ASCENDING), *_ANSWERED], name="newest_of_owner"),
        IndexModel([*_SESSION, *_ANSWERED], name="newest_of_session"),
        IndexModel(_ANSWERED, name="newest_failures", partialFilterExpression={"is_failure": True}),
        IndexModel([("expires_at", ASCENDING)], name="expiry", expireAfterSeconds=0),
    ],
    "context_pieces": [
        IndexModel([("owner_key", ASCENDING)], name="of_owner"),
        IndexModel([("expires_at", ASCENDING)], name="expiry", expireAfterSeconds=0),
    ],
    "tombstones": [
        IndexModel([("owner", ASCENDING), ("session", ASCENDING), ("until", ASCENDING)], name="one_each", unique=True)
    ],
    "replicas": [IndexModel([("expires_at", ASCENDING)], name="expiry", expireAfterSeconds=0)],
    "turns": [
        IndexModel([*_SESSION, ("turn_number", DESCENDING)], name="one_per_number", unique=True),
        # The run comes before the session, because a message of a run need not say where it belongs.
        IndexModel(
            [("owner_key", ASCENDING), ("run_id", ASCENDING), ("session_id", ASCENDING)],
            name="one_per_run",
            unique=True,
        ),
        IndexModel([("work", ASCENDING), ("due_at", DESCENDING)], name="work_due", partialFilterExpression=_WORK_DUE),
    ],
    "working_memory": [IndexModel([*_SESSION, ("revision", DESCENDING)], name="one_per_revision", unique=True)],
    "memory_details": [
        IndexModel([*_SESSION, ("name", ASCENDING), ("version", ASCENDING)], name="one_per_version", unique=True),
        IndexModel(
            [*_SESSION, ("kind", ASCENDING), ("updated_at", DESCENDING), ("name", DESCENDING)], name="newest_of_kind"
        ),
        IndexModel(
            [*_SESSION, ("kind", ASCENDING), ("name", ASCENDING), ("version", ASCENDING)], name="versions_of_kind"
        ),
    ],
    "compactions": [
        IndexModel([*_SESSION, ("number", DESCENDING)], name="one_per_number", unique=True),
        IndexModel([("work", ASCENDING), ("due_at", ASCENDING)], name="work_due", partialFilterExpression=_WORK_DUE),
    ],
}
WORDS: Final = "words"
# Of `memory_details`. It only makes a search faster, and not every server can make it. Words as they are written: no
# language's stems and stop words, and no field that names a language.
WORDS_INDEX: Final = IndexModel(
    [*_SESSION, ("content", TEXT)], name=WORDS, default_language="none", language_override="_language"
)

# The same index exists under another name, or another one under this name.
_CONFLICTS: Final = {85, 86}
# A large collection takes longer to index than a request may take.
_INDEXING_S: Final = 300
_JSON: Final = "{"
_OF_MONGODB: Final = ("admin", "config", "local")


class Indexes:
    """Makes the indexes of one database, once however many ask for it at the same time."""

    def __init__(self, client: Any, database: Any, calls: Calls) -> None:
        self._client = client
        self._database = database
        self._calls = calls
        self._are_made = False
        self._making: asyncio.Task[None] | None = None

    async def ensure(self) -> None:
        """Return once they were made: nothing may be inserted before the index that makes inserting idempotent.

        Raises:
            StoreUnavailableError: stored documents stand in the way, so that nothing can be kept at the moment.
        """
        if self._are_made:
            return
        try:
            await self.make()
        except StoreRejectedError as error:
            raise StoreUnavailableError(str(error)) from error

    async def make(self) -> None:
        """Make what is missing; StoreRejectedError names a collection where documents or an index are in the way.

        So does the version of a newer release.
        """
        if self._making is None:
            self._making = asyncio.create_task(self._calls.run(self._make))
            self._making.add_done_callback(self._ended)
        await asyncio.shield(self._making)

    def _ended(self, making: asyncio.Task[None]) -> None:
        self._making = None
        # Retrieved here, because every caller may have been cancelled.
        self._are_made |= not making.cancelled() and making.exception() is None

    async def _make(self) -> None:
        # The long limit is also one for finding the server, so it is found first.
        server = await self._client.admin.command("hello")
        # Else the server waits until every member has the index, one that is away included.
        quorum = {"commitQuorum": "majority"} if "setName" in server else {}
        with pymongo.timeout(_INDEXING_S):
            is_marked = await check_database(self._database)
            for name, indexes in INDEXES.items():
                await _make_missing(self._database[name], indexes, quorum)
            if not is_marked:
                await mark_database(self._database)
            with suppress(PyMongoError):
                details = self._database["memory_details"]
                if WORDS not in await _existing(details):
                    await details.create_indexes([WORDS_INDEX], **quorum)


async def _make_missing(collection: Any, indexes: Sequence[IndexModel], quorum: Mapping[str, str]) -> None:
    there = await _existing(collection)
    missing = _missing(indexes, there)
    if not missing:
        return
    try:
        await collection.create_indexes(missing, **quorum)
    except OperationFailure:
        # Of several it does not say which one failed.
        for index in missing:
            await _make_index(collection, index, quorum)


async def _existing(collection: Any) -> Mapping[str, Any]:
    """The indexes by name; none where this user may not list them: making one again changes nothing."""
    try:
        there: Mapping[str, Any] = await collection.index_information()
    except OperationFailure:
        return {}
    return there


async def _make_index(collection: Any, index: IndexModel, quorum: Mapping[str, str]) -> None:
    try:
        await collection.create_indexes([index], **quorum)
    except DuplicateKeyError as error:
        fields = ", ".join((error.details or {}).get("keyPattern", ["unique fields"]))
        text = f"collection {collection.name}: several documents have the same {fields}; remove all but one"
        raise StoreRejectedError(text) from error
    except OperationFailure as error:
        if error.code not in _CONFLICTS:
            raise
        if _missing([index], await collection.index_information()):
            text = f"collection {collection.name}: an index stands in the way of {index.document['name']}; drop it"
            raise StoreRejectedError(text) from error


async def inventory(client: Any, database: Any) -> Inventory:
    """What is there of a database, without the index that only makes a search faster."""
    collections = sorted(await database.list_collection_names())
    missing = [
        f"{name}.{index.document['name']}"
        for name, indexes in INDEXES.items()
        for index in _missing(indexes, await database[name].index_information() if name in collections else {})
    ]
    others = []
    # Knowing them is no condition for anything.
    with suppress(OperationFailure):
        others = [name for name in await client.list_database_names() if name not in {*_OF_MONGODB, database.name}]
    return Inventory(database.name, tuple(collections), tuple(sorted(others)), tuple(missing))


def _missing(indexes: Iterable[IndexModel], there: Mapping[str, Any]) -> list[IndexModel]:
    return [index for index in indexes if not any(_is_same_index(index.document, other) for other in there.values())]


def _is_same_index(wanted: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether `other`, from a collection's index information, does the same, whatever its name is."""
    same_keys = list(wanted["key"].items()) == list(other["key"])
    return same_keys and _options(wanted) == _options(other)


def _options(index: Mapping[str, Any]) -> tuple[Any, ...]:
    condition = index.get("partialFilterExpression") or None
    return bool(index.get("unique")), condition, index.get("expireAfterSeconds")


def of_owner(owner_key: str) -> dict[str, Any]:
    """The condition for the documents of an owner."""
    return equal({"owner_key": owner_key})


def of_session(owner_key: str, session_id: str) -> dict[str, Any]:
    """The condition for the documents of a session."""
    return equal({"owner_key": owner_key, "session_id": session_id})


def of_run(owner_key: str, run_id: str) -> dict[str, Any]:
    """The condition for the documents of a run."""
    return equal({"owner_key": owner_key, "run_id": run_id})


def rows_of_session(owner_key: str, session_id: str) -> dict[str, Any]:
    """The condition for the recorded messages of a session; rows that name none are of the default one."""
    session = {"$in": [DEFAULT_SESSION, None, ""]} if session_id == DEFAULT_SESSION else {"$eq": session_id}
    return {**of_owner(owner_key), "session_id": session}


def seen_by(sub_agent: str | None) -> dict[str, Any]:
    """The condition for the rows that this sub-agent sees, None for the main agent; see `Agent.sees`."""
    if sub_agent is None:
        return NOT_INTERNAL
    return {"$or": [NOT_INTERNAL, _names(sub_agent)]}


def internal_to(sub_agent: str) -> dict[str, Any]:
    """The condition for the rows that the main agent does not see, and this sub-agent does."""
    return {**ONLY_INTERNAL, **_names(sub_agent)}


def _names(sub_agent: str) -> dict[str, Any]:
    return {f"metadata.{AGENT_ID}": {"$in": [None, "", sub_agent]}}


def newest_first(rows: Iterable[Row]) -> list[Row]:
    """The rows by moment, whatever form their timestamps have; those without a readable one last."""
    return sorted(rows, key=newest_order, reverse=True)


def newest_order(row: Row) -> tuple[datetime, str]:
    """The place of a row in `newest_first`, of which the last is the smallest."""
    return parse_moment(row.get("timestamp")) or LONG_AGO, row["_id"]


def origin_of(row: Row) -> RunOrigin | None:
    """Where the run of a human's row belongs, read leniently."""
    session, metadata = row.get("session_id"), row.get("metadata")
    if not isinstance(session, str):
        return None
    return RunOrigin(session, named_agent(metadata))


def id_text(value: Any) -> str:
    """An `_id` as a text: hexadecimal digits for an ObjectId, a text as itself where it reads as nothing else, or JSON.

    Every `_id` has a text of its own. That of an ObjectId tells when its row was stored, so an `_id` of another program
    that merely looks like one gets another text.
    """
    if isinstance(value, ObjectId):
        return str(value)
    if isinstance(value, str) and not (is_object_id(value) or value.startswith(_JSON)):
        return value
    return json_util.dumps({"_id": value}, json_options=json_util.CANONICAL_JSON_OPTIONS)


def with_text_id(row: Row) -> Row:
    """The row with a text as its `_id`."""
    return {**row, "_id": id_text(row["_id"])}


def id_of(text: str) -> Any:
    """The `_id` with this text; the text itself where none has it."""
    if is_object_id(text):
        return ObjectId(text)
    if not text.startswith(_JSON):
        return text
    try:
        value = json_util.loads(text, json_options=json_util.CANONICAL_JSON_OPTIONS)["_id"]
    except (BSONError, ValueError, KeyError, TypeError):
        return text
    return text if _is_condition(value) else value


def to_index(row: Row) -> Row:
    """A row as it is inserted, to be indexed for long-term memory."""
    return {**row, "recall": {"work": recall.WORDS, "due_at": utc_now()}}


def due_now(work: str, changes: Mapping[str, Any] = MappingProxyType({})) -> Row:
    """The update by which work of long-term memory becomes due on a row, besides these changes.

    It is done once more where it has been claimed already.
    """
    due = {"recall.work": work, "recall.due_at": utc_now()}
    return {"$set": {**changes, **due}, "$unset": {"recall.claim": ""}}


def _is_condition(value: Any) -> bool:
    # No row has such an `_id`, and in a query it would not stand for itself.
    names = value if isinstance(value, dict) else ()
    return isinstance(value, Regex | list) or any(name.startswith("$") for name in names)
