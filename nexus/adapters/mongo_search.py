"""What a phrase stands in, in MongoDB: it is taken literally and found whatever its case (CONTRACT §7)."""

import re
from collections.abc import Mapping
from typing import Any, Final

from nexus.adapters.mongo_messages import MongoMessages
from nexus.adapters.mongo_schema import NOT_INTERNAL, OF_SESSION, containing, newest_first
from nexus.core.errors import StoreRejectedError
from nexus.core.ports import Row
from nexus.core.ports.memory import LONGEST_QUERY
from nexus.core.ports.stores import STRUCTURED_SEARCHED
from nexus.services.context.memory import as_text

_STRUCTURED: Final = {"$type": ["object", "array"]}
_PAGE: Final = 200
# Words that stand whole wherever the phrase stands, since it has what is before and after them. Not with K or S: of
# these a pattern takes other signs for the same letter, and an index of words does not.
_INNER: Final = re.compile(r"(?<=[ \n])[0-9A-JL-RT-Za-jl-rt-z]+(?=[ \n])")


def check_phrase(text: str) -> None:
    """See that the phrase is one that can be searched for.

    Raises:
        StoreRejectedError: it is too long.
    """
    if len(text) > LONGEST_QUERY:
        raise StoreRejectedError(f"no text of more than {LONGEST_QUERY} characters can be searched for")


def inner_word(text: str) -> str | None:
    """The longest word that is one of the words of whatever the phrase stands in, if there is such a word."""
    return max(_INNER.findall(text), key=len, default=None)


async def search_rows(rows: MongoMessages, session: Mapping[str, Any], text: str, *, limit: int) -> list[Row]:
    """The rows of a session, as `MessageStore.search_messages` has them."""
    check_phrase(text)
    shown = {**session, **NOT_INTERNAL}
    hits = await rows.newest({**shown, "content": containing(text)}, limit=limit, index=OF_SESSION)
    hits += await _structured(rows, shown, text, limit)
    # A list of texts may have been found both ways.
    return newest_first({row["_id"]: row for row in hits}.values())[:limit]


async def _structured(rows: MongoMessages, shown: Mapping[str, Any], text: str, limit: int) -> list[Row]:
    """The rows in whose objects and lists the phrase stands. The server has no pattern for these."""
    phrase = re.compile(re.escape(text), re.IGNORECASE)
    hits: list[Row] = []
    for skip in range(0, STRUCTURED_SEARCHED, _PAGE):
        page = await rows.newest({**shown, "content": _STRUCTURED}, limit=_PAGE, skip=skip, index=OF_SESSION)
        hits += [row for row in page if phrase.search(as_text(row.get("content")))]
        if len(page) < _PAGE or len(hits) >= limit:
            break
    return hits[:limit]
