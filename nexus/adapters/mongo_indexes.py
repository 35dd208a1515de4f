"""The indexes that the promises of the store rest on, made where they are missing (CONTRACT §2)."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import pymongo
from pymongo.errors import DuplicateKeyError, OperationFailure, PyMongoError

from nexus.adapters.mongo_schema import INDEXES, WELCOME, is_same_index
from nexus.core.errors import StoreRejectedError

# The same index exists under another name, or another one under this name.
_CONFLICTS: Final = {85, 86}
# A large collection takes longer to index than a request may take.
_INDEXING_S: Final = 300


class Indexes:
    """Makes the indexes of one database; whoever asks for it while that is under way waits for the same.

    Attributes:
        are_made: whether they were made.

    Args:
        client: of motor or of pymongo's asyncio client.
        database: of that client.
    """

    def __init__(self, client: Any, database: Any) -> None:
        self.are_made = False
        self._client = client
        self._database = database
        self._making: asyncio.Task[None] | None = None

    async def make(self) -> None:
        """Make what is missing.

        Raises:
            StoreRejectedError: what is stored stands in the way; says where.
        """
        if self._making is None:
            self._making = asyncio.create_task(self._make())
        await self._making

    async def _make(self) -> None:
        try:
            await make_indexes(self._client, self._database)
            self.are_made = True
        finally:
            self._making = None


async def make_indexes(client: Any, database: Any) -> None:
    """Make what is missing of `INDEXES`, and of `WELCOME` what can be made. May be repeated and run by many at once.

    Args:
        client: of motor or of pymongo's asyncio client.
        database: of that client.

    Raises:
        StoreRejectedError: what is stored stands in the way; says where.
    """
    # The long limit is also one for finding the server, so it is found first.
    await client.admin.command("ping")
    with pymongo.timeout(_INDEXING_S):
        for collection, indexes in INDEXES.items():
            await _make_missing(collection, database[collection], indexes)
        for collection, indexes in WELCOME.items():
            with suppress(PyMongoError):
                await _make_welcome(database[collection], indexes)


async def _make_missing(collection: str, rows: Any, indexes: Sequence[pymongo.IndexModel]) -> None:
    """One command where nothing is missing, two where something is, and more where that stands in the way."""
    there = await _there(rows)
    missing = [index for index in indexes if not any(is_same_index(index.document, other) for other in there.values())]
    if not missing:
        return
    try:
        await rows.create_indexes(missing)
    except OperationFailure:
        # Of several it does not say which one failed.
        for index in missing:
            await _make_index(collection, rows, index)


async def _make_welcome(rows: Any, indexes: Sequence[pymongo.IndexModel]) -> None:
    there = await _there(rows)
    if missing := [index for index in indexes if index.document["name"] not in there]:
        await rows.create_indexes(missing)


async def _there(rows: Any) -> Mapping[str, Any]:
    """What indexes a collection has, by name; none where this user may not look: making one again changes nothing."""
    try:
        there: Mapping[str, Any] = await rows.index_information()
    except OperationFailure:
        return {}
    return there


async def _make_index(collection: str, rows: Any, index: pymongo.IndexModel) -> None:
    try:
        await rows.create_indexes([index])
    except DuplicateKeyError as error:
        fields = ", ".join((error.details or {}).get("keyPattern", ["unique fields"]))
        text = f"collection {collection}: several documents have the same {fields}; remove all but one"
        raise StoreRejectedError(text) from error
    except OperationFailure as error:
        if error.code not in _CONFLICTS:
            raise
        existing = (await rows.index_information()).values()
        if not any(is_same_index(index.document, other) for other in existing):
            text = f"collection {collection}: an index stands in the way of {index.document['name']}; drop it"
            raise StoreRejectedError(text) from error
