"""Documents as MongoDB would keep them, for the stores in memory."""

from typing import Any, Final

import bson
from bson.errors import BSONError

from nexus.adapters.mongo.schema import CODEC
from nexus.core.errors import StoreRejectedError
from nexus.core.ports import Row

_LARGEST: Final = 16 << 20


def stored(document: Row) -> Row:
    """A copy of the document, as it comes back: refused if it cannot be kept, its times in UTC, to the millisecond."""
    try:
        encoded = bson.encode(document)
    except (BSONError, OverflowError, UnicodeEncodeError) as error:
        raise StoreRejectedError(type(error).__name__) from error
    if len(encoded) > _LARGEST:
        raise StoreRejectedError("too large")
    found: dict[str, Any] = bson.decode(encoded, CODEC)
    return found
