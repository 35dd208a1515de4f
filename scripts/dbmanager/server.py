"""The way to a MongoDB server, and the errors an operator sees.

    Refusal              exit code 1: the server or the data said no
    └── WrongUsage       exit code 2: the command cannot be meant that way
        └── NobodyToAskError     a question without a terminal to ask it at

The URI may hold a password: only `address_of` it is ever shown.
"""

import warnings
from collections.abc import Mapping
from typing import Any

from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import InvalidName, OperationFailure, PyMongoError, ServerSelectionTimeoutError

SELECTION_MS = 2_000
SYSTEM_DATABASES = ("admin", "config", "local")

Document = dict[str, Any]
Client = MongoClient[Document]
Rows = Collection[Document]
Store = Database[Document]

_MAX_NAME_BYTES = 63
_NOT_IN_NAMES = frozenset('/\\. "$*<>:|?\0')


class Refusal(Exception):  # noqa: N818  # the name says what happens to the operator, an outcome of the program
    """What was asked for cannot be done. The message is one line for the operator, without credentials."""

    exit_code = 1


class WrongUsage(Refusal):
    """The command itself is wrong; the message says what is allowed."""

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
                retryReads=True,
                retryWrites=True,
                tz_aware=True,
                datetime_conversion="DATETIME_AUTO",
                unicode_decode_error_handler="replace",
                appname="nexus-database-manager",
            )
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
    """What a driver's error means, in one line."""
    if isinstance(error, ServerSelectionTimeoutError):
        reason = str(error).split(", Timeout:")[0].split(" (configured timeouts")[0]
        return one_line(f"no usable MongoDB server answered within {SELECTION_MS // 1000} s: {reason}")
    if isinstance(error, OperationFailure):
        details = error.details if isinstance(error.details, Mapping) else {}
        return one_line(str(details.get("errmsg") or error).split(", full error:")[0])
    return one_line(str(error).split(" (configured timeouts")[0])


def one_line(text: str) -> str:
    """`text` without line ends."""
    return " ".join(text.split())


def checked_database_name(name: str) -> str:
    """`name`, if MongoDB allows it.

    Raises:
        WrongUsage: it does not.
    """
    if not name or len(name.encode()) > _MAX_NAME_BYTES or _NOT_IN_NAMES.intersection(name):
        raise WrongUsage(f'{name!r} is no database name: 1 to 63 bytes, without / \\ . " $ * < > : | ? and spaces')
    return name


def writable(store: Store) -> Store:
    """`store`, if it is not one of the server's own.

    Raises:
        WrongUsage: it is.
    """
    if store.name in SYSTEM_DATABASES:
        raise WrongUsage(f"{store.name} belongs to the MongoDB server: select another database")
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
