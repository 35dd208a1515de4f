"""What reads of recorded messages ask the server for: rows of bounded size, whatever is stored (contract §2).

Long texts, and values that take long to decode, never leave the server. Most rows are small: they come as they are
(`if_small`) and are cut here. Only large ones are asked for by expressions, since those are 20 KB, which a server reads
anew each time (decision 30).
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from nexus.adapters.mongo.versions import FIELD
from nexus.core.models import ABOUT_RESULT, AGENT_ID, CONDENSED, HANDLE, INTERNAL, SAID_BESIDE, Row
from nexus.core.ports.store import (
    ARGUMENTS_LEFT_OUT,
    CALLS_LEFT_OUT,
    LEFT_OUT,
    LONGEST_CONTENT,
    MOST_CALLS,
    VALUE_LEFT_OUT,
)

Expression = Any

HEADER: Final = dict.fromkeys(("id", "run_id", "owner_key", "session_id", "role", "timestamp", FIELD), 1)
# Of metadata that are too large, what is left besides the tool calls.
_KEPT: Final = (
    *("source", "has_tool_calls", "tool_name", "status", "execution_success", "call_id", "usage", "phase", "left_out"),
    "revision",
    *("tool_call_id", "tool_use_id", "is_error", "name"),
    *(INTERNAL, AGENT_ID),
)
_LARGEST: Final = 1 << 16
_LARGEST_CALL: Final = 1 << 12
_CONTENT: Final = "$content"
_CALLS: Final = "$metadata.tool_calls"


@dataclass(frozen=True, slots=True)
class View:
    """How the rows of a read come.

    Attributes:
        ends: so many code points are left at each end of longer contents; None where texts of any length come whole.
        mark: comes between the two ends, with the number of code points that are left out in the place of `{}`.
        as_shown: a condensed result has the text that contexts show of it for its content, and of its metadata what is
            needed besides, without what was sent.
    """

    ends: int | None
    mark: str = ""
    as_shown: bool = False

    def cut(self, row: Row) -> Row:
        """A row that came whole, as `projection` would have it, or one of which the server could not cut the text."""
        seen = {name: value for name, value in row.items() if name in _FIELDS}
        metadata, content = row.get("metadata"), row.get("content")
        if self.as_shown and isinstance(metadata, dict) and isinstance(text := metadata.get(CONDENSED), str):
            kept = {name: metadata[name] for name in (*_KEPT, HANDLE) if name in metadata}
            return {**seen, "content": text, "metadata": kept}
        if self.ends is not None and isinstance(content, str) and len(content) > 2 * self.ends:
            mark = self.mark.format(len(content) - 2 * self.ends)
            seen["content"] = content[: self.ends] + mark + content[len(content) - self.ends :]
        return seen


def if_small(most: int) -> dict[str, Expression]:
    """Rows of up to so many bytes whole, under the name `SMALL`; of others nothing but the `_id`."""
    return {FIELD: 1, SMALL: _of_large_rows("$$REMOVE", "$$ROOT", most)}


@cache
def projection(view: View) -> dict[str, Expression]:
    """Of rows of any size."""
    content, metadata = _content(view), _METADATA
    if view.as_shown:
        condensed = f"$metadata.{CONDENSED}"
        is_condensed = _is_type(condensed, "string")
        content = _if(is_condensed, condensed, content)
        metadata = _if(is_condensed, {**_bounded_fields(), HANDLE: f"$metadata.{HANDLE}"}, metadata)
    return {**_OTHERS, "content": content, "metadata": metadata}


def _content(view: View) -> Expression:
    if view.ends is None:
        return _of_large_rows(_bounded_value(_CONTENT), _CONTENT, _LARGEST)
    text = _if(_is_type(_CONTENT, "string"), _ends(view.ends, view.mark), _bounded_value(_CONTENT))
    return _of_large_rows(text, _CONTENT, min(2 * view.ends, _LARGEST))


def _ends(chars: int, mark: str) -> Expression:
    first, last = ({"$substrCP": [_CONTENT, start, chars]} for start in (0, {"$subtract": ["$$length", chars]}))
    between = _filled(mark, {"$subtract": ["$$length", 2 * chars]}) if mark else []
    cut = _if({"$gt": ["$$length", 2 * chars]}, {"$concat": [first, *between, last]}, _CONTENT)
    # Only the length in bytes is known without reading the text.
    long = {"$let": {"vars": {"length": {"$strLenCP": _CONTENT}}, "in": cut}}
    return _if({"$gt": [{"$strLenBytes": _CONTENT}, 2 * chars]}, long, _CONTENT)


def _bounded_value(value: str) -> Expression:
    size = _size(value)
    is_large = {"$and": [{"$ne": [{"$type": value}, "string"]}, {"$gt": [size, _LARGEST]}]}
    return _if(is_large, {"$concat": _filled(VALUE_LEFT_OUT, size)}, value)


def _beside(name: str, most: int) -> Expression:
    """What stands beside the content; in a large row what has more than `most` bytes is left out, a text too."""
    return _of_large_rows(_at_most(f"${name}", most), f"${name}", _LARGEST)


def _at_most(value: str, most: int) -> Expression:
    size = _size(value)
    return _if({"$gt": [size, most]}, {"$concat": _filled(VALUE_LEFT_OUT, size)}, value)


def _bounded_fields() -> dict[str, Expression]:
    return {name: _at_most(f"$metadata.{name}", _LARGEST if name == "left_out" else _LARGEST_CALL) for name in _KEPT}


def _bounded_metadata() -> Expression:
    is_large = {"$and": [_is_type("$metadata", "object"), {"$gt": [{"$bsonSize": "$metadata"}, _LARGEST]}]}
    shortened = {
        # What results name, as `read_tool_calls` has it.
        "id": {"$ifNull": ["$$call.call_id", "$$call.id"]},
        "name": {"$ifNull": ["$$call.function.name", {"$ifNull": ["$$call.custom.name", "$$call.name"]}]},
        "arguments": {"$concat": _filled(ARGUMENTS_LEFT_OUT, _size("$$call"))},
    }
    call = _if({"$gt": [_size("$$call"), _LARGEST_CALL]}, shortened, "$$call")
    calls = {"$map": {"input": {"$slice": [_CALLS, MOST_CALLS]}, "as": "call", "in": call}}
    beyond = {"$subtract": [{"$size": _CALLS}, MOST_CALLS]}
    of_calls = {"tool_calls": calls, CALLS_LEFT_OUT: _if({"$gt": [beyond, 0]}, beyond, "$$REMOVE")}
    are_calls = {name: _if({"$isArray": _CALLS}, value, "$$REMOVE") for name, value in of_calls.items()}
    # A message as it came may be what is large, and its calls are not.
    small = {"tool_calls": _CALLS, CALLS_LEFT_OUT: "$$REMOVE"}
    are_calls = {name: _if({"$gt": [_size(_CALLS), _LARGEST]}, value, small[name]) for name, value in are_calls.items()}
    return _if(is_large, {**_bounded_fields(), **are_calls}, "$metadata")


def _of_large_rows(shortened: Expression, whole: Expression, most: int) -> Expression:
    """The value shortened in rows of more than `most` bytes."""
    return _if({"$gt": [{"$bsonSize": "$$ROOT"}, most]}, shortened, whole)


def _if(condition: Expression, then: Expression, otherwise: Expression) -> Expression:
    return {"$cond": [condition, then, otherwise]}


def _is_type(value: Expression, name: str) -> Expression:
    return {"$eq": [{"$type": value}, name]}


def _size(value: Expression) -> Expression:
    return {"$bsonSize": {"value": value}}


def _filled(mark: str, count: Expression) -> list[Expression]:
    before, after = mark.format("\0").split("\0")
    return [before, {"$toString": count}, after]


_METADATA: Final = _of_large_rows(_bounded_metadata(), "$metadata", _LARGEST)
_OTHERS: Final = {
    **HEADER,
    **{name: _beside(name, _LARGEST_CALL) for name in ("type", *sorted(ABOUT_RESULT))},
    **{name: _beside(name, _LARGEST) for name in sorted(SAID_BESIDE)},
}
_FIELDS: Final = {"_id", *_OTHERS, "content", "metadata"} - {FIELD}
# A small row comes under this name.
SMALL: Final = "small"
# Rows as `MessageStore` gives them, and with texts of any length.
BOUNDED: Final = View(LONGEST_CONTENT // 2, LEFT_OUT)
SHOWN: Final = View(LONGEST_CONTENT // 2, LEFT_OUT, as_shown=True)
WHOLE_TEXTS: Final = View(None)
