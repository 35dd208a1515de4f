"""Rows whose contents may be long, without what nobody is shown (CONTRACT §2). Pure.

Rules of this module:

- Rows that are all small are asked for as they are, since any projection has the server build every row anew: for 60
  rows that takes half as long again as reading them. The condition `all_small` has the server refuse the query at the
  first row that is not, and only then its contents are cut there.
- The server cuts by bytes, and only near enough: an operator that takes a long text copies it, and one that counts its
  characters reads all of it. Characters are counted here, in what is left.
- Where the last bytes begin within a character, the server refuses the query: for such owners a place to cut at is
  looked for, which copies each text once more.
"""

from datetime import datetime
from typing import Any, Final

from bson import ObjectId

from nexus.adapters.mongo_ids import id_text
from nexus.adapters.mongo_replies import EPOCH, NAIVE_EPOCH, restored
from nexus.adapters.mongo_schema import HEADER
from nexus.core.ports import Row
from nexus.services.context.agents import INTERNAL

# What an excerpt needs of a row's metadata.
_KEPT: Final = ("tool_calls", INTERNAL)
# Rows of so many bytes are not worth cutting.
_SMALL: Final = 4_096
_LONGEST_CHAR: Final = 4
# Before a character of one of these a text can be cut by bytes: they are looked for in so many bytes.
_LANDMARKS: Final = (" ", "e", "，")
_LOOKED_IN: Final = 128


def all_small(chars: int) -> dict[str, Any]:
    """The condition with which the server refuses a query as it comes upon a row of which contents are to be cut."""
    is_small = {"$lte": [{"$bsonSize": "$$ROOT"}, _small(chars)]}
    # Nothing but an error ends a query. That of a division by zero is as old as its operators.
    return {"$expr": {"$divide": [1, {"$cond": [is_small, 1, 0]}]}}


def excerpt(chars: int, *, anywhere: bool = False) -> dict[str, Any]:
    """The projection that leaves out most of contents that may be longer than twice `chars`, and of the metadata.

    Their first `chars` characters are left, and at least their last: `show` does the rest.

    Args:
        chars: what is left of a long content at both ends, at least.
        anywhere: contents are cut at a byte, whatever it is. The server fails where that is within a character.
    """
    # The length in bytes is known without reading the text; conditions stand inside each other because a length can
    # only be asked of a text.
    is_long = {"$gt": [{"$strLenBytes": "$content"}, 2 * _LONGEST_CHAR * chars]}
    ends = {"$concat": [{"$substrCP": ["$content", 0, chars]}, _end(chars, anywhere=anywhere)]}
    is_text = {"$eq": [{"$type": "$content"}, "string"]}
    is_object = {"$eq": [{"$type": "$metadata"}, "object"]}
    return {
        **HEADER,
        "content": {"$cond": [is_text, {"$cond": [is_long, ends, "$content"]}, "$content"]},
        "metadata": {"$cond": [is_object, {name: f"$metadata.{name}" for name in _KEPT}, "$metadata"]},
    }


def _end(chars: int, *, anywhere: bool) -> dict[str, Any]:
    """The last `chars` characters, or a few more."""
    length = {"$strLenBytes": "$content"}
    latest = {"$subtract": [length, _LONGEST_CHAR * chars]}
    if anywhere:
        return {"$substrBytes": ["$content", latest, -1]}
    first = {"$subtract": [latest, min(_LOOKED_IN, _LONGEST_CHAR * chars)]}
    end: dict[str, Any] = {"$substrCP": ["$content", {"$subtract": [{"$strLenCP": "$content"}, chars]}, chars]}
    for landmark in reversed(_LANDMARKS):
        found = {"$indexOfBytes": ["$content", landmark, first, latest]}
        rest = {"$substrBytes": ["$content", "$$at", -1]}
        end = {"$let": {"vars": {"at": found}, "in": {"$cond": [{"$gte": ["$$at", 0]}, rest, end]}}}
    return end


def show(rows: list[Row], chars: int) -> bool:
    """Make what is shown of rows, in place. Returns whether all contents are so short that they are not worth cutting.

    They get the text of their `_id`s, and lose the middle of contents longer than twice `chars`. What replies to
    commands lack is restored wherever it may be shown: in contents, times and tool calls.

    Args:
        rows: as a cursor gives them, or a reply to a command.
        chars: what is left of a long content at both ends.
    """
    longest, are_small = 2 * chars, True
    for row in rows:
        row_id, content, moment, metadata = row["_id"], row.get("content"), row.get("timestamp"), row.get("metadata")
        row["_id"] = row_id.binary.hex() if type(row_id) is ObjectId else id_text(row_id)
        if type(moment) is datetime and type(metadata) is dict and type(content) is str:
            # Nearly all are such rows.
            if moment.tzinfo is None:
                row["timestamp"] = EPOCH + (moment - NAIVE_EPOCH)
            if calls := metadata.get("tool_calls"):
                metadata["tool_calls"] = restored(calls)
        else:
            restored(row)
        if isinstance(content, str) and len(content) > longest:
            row["content"] = content[:chars] + content[len(content) - chars :]
            are_small = are_small and _size(content) <= _small(chars)
    return are_small


def _small(chars: int) -> int:
    """Of how many bytes a row is small of whose contents so many characters are left at both ends."""
    return max(_SMALL, 2 * _LONGEST_CHAR * chars)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
