"""The schema version of what is stored in MongoDB, and the refusal of what a newer release has stored (decision 29).

- A document says in `nexus_schema` which version a reader has to know; without it, it is of version 1. The field is
  this adapter's own: it is added to what is written, and taken off what is read.
- The collection `schema` has one document, with the highest version that a release which wrote here has known.
- What is newer is never passed over and never changed: reading it is an error, and work on it is left to its release.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from pymongo.errors import DuplicateKeyError

from nexus.core.errors import NewerDocumentError, StoreRejectedError
from nexus.core.models import Row

# Raised by a release whose documents an older one would misread; docs/upgrading.md has a row for each.
SCHEMA_VERSION: Final = 2
FIELD: Final = "nexus_schema"
# The condition for documents that this release can read.
NOT_NEWER: Final[Row] = {FIELD: {"$not": {"$gt": SCHEMA_VERSION}}}
DATABASE: Final = {"_id": "database"}
KNOWN: Final = f"this release knows versions up to {SCHEMA_VERSION}: see docs/upgrading.md"


def written(fields: Mapping[str, Any]) -> Row:
    """A document, or changes of one, as this release writes it."""
    return {**fields, FIELD: SCHEMA_VERSION}


def readable(collection: str, rows: Iterable[Row]) -> list[Row]:
    """Documents that were read from a collection, without their version.

    Raises:
        NewerDocumentError: one of them is of a version that this release does not know.
    """
    found = [*rows]
    for row in found:
        if is_newer(version := row.pop(FIELD, None)):
            raise NewerDocumentError(f"collection {collection}: a document has the schema version {version}; {KNOWN}")
    return found


async def check_database(database: Any) -> bool:
    """Whether the database says that this release, or one that knows its version, writes to it.

    StoreRejectedError where one does that knows a newer version.
    """
    found: Row = await database["schema"].find_one(DATABASE) or {}
    if is_newer(version := found.get(FIELD)):
        raise StoreRejectedError(f"database {database.name} has the schema version {version}; {KNOWN}")
    return version == SCHEMA_VERSION


async def mark_database(database: Any) -> None:
    """Have the database say that this release writes to it."""
    lower = {**DATABASE, FIELD: {"$not": {"$gte": SCHEMA_VERSION}}}
    # Where it says so already, another document of this name is refused.
    with suppress(DuplicateKeyError):
        await database["schema"].update_one(lower, {"$set": written({})}, upsert=True)


def is_newer(version: Any) -> bool:
    """Whether a stored version is one that this release does not know."""
    return isinstance(version, int | float) and version > SCHEMA_VERSION
