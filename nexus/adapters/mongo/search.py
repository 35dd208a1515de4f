"""Phrases in documents of MongoDB, taken literally and found whatever their case (contract §7)."""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, TypeAlias

from anyio import to_thread

from nexus.adapters.mongo.schema import NOT_INTERNAL, OF_SESSION, newest_first
from nexus.core.errors import StoreRejectedError
from nexus.core.models import CALL_ARGUMENTS, CALL_NAMES, CALL_WITHIN
from nexus.core.ports import Row
from nexus.core.ports.memory import LONGEST_QUERY
from nexus.core.ports.store import STRUCTURED_SEARCHED, TextsOf

# Reads rows that meet a condition, newest first; see `Rows.newest`.
Newest: TypeAlias = Callable[..., Awaitable[list[Row]]]

_STRUCTURED: Final[Row] = {"$type": ["object", "array"]}
_CALLS: Final = "metadata.tool_calls"
# A call is flat or nested, and rows of other writers have other names than ours (contract §11).
_PLACES: Final = ("", "function.", "custom.")
# Where it hardly ever is.
_WRAPPED: Final = [name for name in CALL_WITHIN if f"{name}." not in _PLACES]
# Where rows of other writers hold what they say.
_BESIDE: Final = ("tool_calls", "parts", "data", "additional_kwargs")
# JSON text that is not what a tool is given.
_ESCAPED: Final[Row] = {"$regex": r"\\"}
_STRUCTURED_PAGE: Final = 100
# Words between blanks in a phrase, which stand whole wherever the phrase stands. Not with K or S: a pattern takes other
# letters for these as well, and an index of words does not.
_INNER_WORD: Final = re.compile(r"(?<=[ \n])[0-9A-JL-RT-Za-jl-rt-z]+(?=[ \n])")


@dataclass(frozen=True, slots=True)
class Search:
    """A search for a phrase among the rows that meet the condition `session`; see `MessageStore.search_messages`."""

    session: Mapping[str, Any]
    text: str
    texts_of: TextsOf
    without_tools: tuple[str, ...] = ()
    without_run: str | None = None

    async def run(self, newest: Newest, *, limit: int) -> list[Row]:
        """The finds, newest first."""
        check_phrase(self.text)
        pattern = containing(self.text)
        in_calls = self._in_calls((*CALL_NAMES, *CALL_ARGUMENTS), [pattern])
        query = {**self._searched(), "$or": [{"content": pattern}, *in_calls]}
        finds = await newest(query, limit=limit, index=OF_SESSION)
        finds += await self._structured(newest, limit)
        # A list of texts may have been found both ways.
        return newest_first({row["_id"]: row for row in finds}.values())[:limit]

    async def _structured(self, newest: Newest, limit: int) -> list[Row]:
        """Finds in objects, lists and escaped JSON, for which the server has no pattern."""
        in_calls = self._in_calls(CALL_ARGUMENTS, [_STRUCTURED, _ESCAPED])
        others = ("content", *_BESIDE, *(f"{_CALLS}.{name}" for name in _WRAPPED))
        query = {**self._searched(), "$or": [*({name: _STRUCTURED} for name in others), *in_calls]}
        phrase = re.compile(re.escape(self.text), re.IGNORECASE)
        finds: list[Row] = []
        for skip in range(0, STRUCTURED_SEARCHED, _STRUCTURED_PAGE):
            page = await newest(query, limit=_STRUCTURED_PAGE, skip=skip, index=OF_SESSION)
            finds += await to_thread.run_sync(self._with_phrase, page, phrase, abandon_on_cancel=True)
            if len(page) < _STRUCTURED_PAGE or len(finds) >= limit:
                break
        return finds[:limit]

    def _with_phrase(self, rows: list[Row], phrase: re.Pattern[str]) -> list[Row]:
        return [row for row in rows if any(phrase.search(text) for _, text in self.texts_of(row, self.without_tools))]

    def _searched(self) -> Row:
        """The condition for the rows that may be finds."""
        condition: Row = {**self.session, **NOT_INTERNAL}
        if self.without_tools:
            condition["metadata.tool_name"] = {"$nin": [*self.without_tools]}
        if self.without_run is not None:
            condition["run_id"] = {"$ne": self.without_run}
        return condition

    def _in_calls(self, names: Sequence[str], conditions: Sequence[Row]) -> Iterator[Row]:
        """Conditions for a row with a call, of a tool that is not left out, that has something like this."""
        for place in _PLACES:
            others: Row = {f"{place}{name}": {"$nin": [*self.without_tools]} for name in CALL_NAMES}
            others = others if self.without_tools else {}
            # Not one condition with an $or in it, which the packaged server does not know.
            for field, condition in product([f"{place}{name}" for name in names], conditions):
                yield {_CALLS: {"$elemMatch": {**others, field: {**others.get(field, {}), **condition}}}}


def check_phrase(text: str) -> None:
    """Refuse a phrase of more than `LONGEST_QUERY` characters, too long for a pattern, by StoreRejectedError."""
    if len(text) > LONGEST_QUERY:
        raise StoreRejectedError(f"no text of more than {LONGEST_QUERY} characters can be searched for")


def inner_word(text: str) -> str | None:
    """The longest word that an index of words has for every text with the phrase; None where there is no such word."""
    return max(_INNER_WORD.findall(text), key=len, default=None)


def containing(text: str) -> dict[str, str]:
    """The condition for a text that has this one in it, whatever the case."""
    # A pattern ends at a NUL, so that is written as its escape.
    return {"$regex": re.escape(text).replace("\x00", r"\x00"), "$options": "i"}
