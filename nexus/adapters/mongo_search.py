"""What a phrase stands in, in MongoDB: it is taken literally and found whatever its case (CONTRACT §7)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from nexus.adapters.mongo_messages import MongoMessages
from nexus.adapters.mongo_schema import NOT_INTERNAL, OF_SESSION, containing, newest_first
from nexus.core.errors import StoreRejectedError
from nexus.core.ports import Row
from nexus.core.ports.memory import LONGEST_QUERY
from nexus.core.ports.stores import STRUCTURED_SEARCHED
from nexus.services.memory.phrases import texts_of

_STRUCTURED: Final[Row] = {"$type": ["object", "array"]}
_CALLS: Final = "metadata.tool_calls"
# Calls are stored flat or nested.
_NAMES: Final = ("name", "function.name")
_ARGUMENTS: Final = ("arguments", "function.arguments")
# JSON text that is not what a tool is given.
_ESCAPED: Final[Row] = {"$regex": r"\\"}
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


@dataclass(frozen=True, slots=True)
class Searched:
    """What is looked for, where, and what is no find; see `MessageStore.search_messages`."""

    session: Mapping[str, Any]
    text: str
    without_tools: tuple[str, ...] = ()
    without_run: str | None = None

    @property
    def rows(self) -> Row:
        """The condition for the rows that may be finds."""
        condition: Row = {**self.session, **NOT_INTERNAL}
        if self.without_tools:
            condition["metadata.tool_name"] = {"$nin": [*self.without_tools]}
        if self.without_run is not None:
            condition["run_id"] = {"$ne": self.without_run}
        return condition


async def search_rows(rows: MongoMessages, searched: Searched, *, limit: int) -> list[Row]:
    """The rows of a session, as `MessageStore.search_messages` has them."""
    check_phrase(searched.text)
    pattern = containing(searched.text)
    in_calls = [_in_a_call(searched, field, pattern) for field in (*_NAMES, *_ARGUMENTS)]
    query = {**searched.rows, "$or": [{"content": pattern}, *in_calls]}
    hits = await rows.newest(query, limit=limit, index=OF_SESSION)
    hits += await _structured(rows, searched, limit)
    # A list of texts may have been found both ways.
    return newest_first({row["_id"]: row for row in hits}.values())[:limit]


def _in_a_call(searched: Searched, field: str, condition: Row) -> Row:
    """The condition for a row with a call, of a tool that is not left out, whose field is like this."""
    others: Row = {name: {"$nin": [*searched.without_tools]} for name in _NAMES} if searched.without_tools else {}
    return {_CALLS: {"$elemMatch": {**others, field: {**others.get(field, {}), **condition}}}}


async def _structured(rows: MongoMessages, searched: Searched, limit: int) -> list[Row]:
    """The rows with the phrase in an object, a list or what is escaped. The server has no pattern for these."""
    in_calls = [_in_a_call(searched, field, each) for field in _ARGUMENTS for each in (_STRUCTURED, _ESCAPED)]
    query = {**searched.rows, "$or": [{"content": _STRUCTURED}, *in_calls]}
    phrase = re.compile(re.escape(searched.text), re.IGNORECASE)
    hits: list[Row] = []
    for skip in range(0, STRUCTURED_SEARCHED, _PAGE):
        page = await rows.newest(query, limit=_PAGE, skip=skip, index=OF_SESSION)
        hits += [row for row in page if any(phrase.search(text) for _, text in texts_of(row, searched.without_tools))]
        if len(page) < _PAGE or len(hits) >= limit:
            break
    return hits[:limit]
