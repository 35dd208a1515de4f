"""Large results of tools, and the short texts that stand for them in contexts (contract §15). Pure.

    {"items":[{"id":1,"name":"Ada"},
    (left out here: 50340 of 51234 characters; read_tool_result(handle="result_0123456789abcdef", from=31) shows them)
    (all of it is JSON: {"items": [200 of {"id": number, "name": text}], "next": null})
    (line 412 of 812: ValueError: no such city)
    {"id":200,"name":"Grace"}],"next":null}

- It is made once, when the result becomes a row, and kept beside the whole result: what was shown once is shown in the
  same bytes later, whatever this module does by then.
- The handle says which result it is: a run may use the id of a call twice, so the text has a part in it.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final

from pydantic_core import from_json

from nexus.core.models import CONDENSED, HANDLE, metadata_of
from nexus.core.ports import Row
from nexus.core.wire import compact
from nexus.services.history.messages import HistoryMessage, messages_of
from nexus.services.text.sentences import beginning, break_near, weight
from nexus.services.tools.memory_tools import MEMORY_TOOLS

# Bytes of UTF-8 of the parts. With what stands between them they are 1.5 KiB at most.
_HEAD: Final = 560
_TAIL: Final = 260
_SHAPE: Final = 260
_ERROR: Final = 140
_HANDLE_CHARS: Final = 16
# Of a JSON value, how deep and how much of each object is told.
_DEPTH: Final = 4
_KEYS: Final = 12
_KEY_CHARS: Final = 40
_LONG_TEXT: Final = 200
# Words of an error, but for the name of a field that says there was none.
_SIGN_OF_ERROR: Final = re.compile(
    r"(?:(?:error|exception|traceback|fatal|panic|failed|failure)(?![a-z])|错误|异常|失败)"
    r"""(?!["']?\s{0,4}[:=]\s{0,4}(?:null|none|false|0\b|""|''|\[\]|\{\}))""",
    re.IGNORECASE,
)


def handle_of(run_id: str, result: HistoryMessage) -> str:
    """The handle of a run's result: `result_` and a digest of run, call (without one the message) and text."""
    identity = [run_id, result.call_id or result.source, result.text]
    return f"result_{hashlib.sha256(compact(identity)).hexdigest()[:_HANDLE_CHARS]}"


def is_large(result: HistoryMessage, above: int) -> bool:
    """Whether a message is a result with more than `above` bytes of text; never where that is 0."""
    # No character takes more than 4 bytes: most texts need not be encoded.
    if result.role != "tool" or above <= 0 or 4 * len(result.text) <= above:
        return False
    return weight(result.text) > above


def with_condensed(row: Row, above: int) -> Row:
    """The row of a result of more than `above` bytes with its handle and the text that contexts show; else the row.

    Results of the memory tools stay whole, and so does a message of several results.
    """
    if above <= 0 or row["role"] != "TOOL":
        return row
    said = messages_of([row])
    if len(said) != 1 or said[0].tool_name in MEMORY_TOOLS or not is_large(said[0], above):
        return row
    handle = handle_of(row["run_id"], said[0])
    shown = {CONDENSED: condensed(said[0].text, handle), HANDLE: handle}
    return {**row, "metadata": {**row["metadata"], **shown}}


def is_condensed(row: Row) -> bool:
    """Whether a row of a session, as contexts show it, has a large result in short."""
    return isinstance(metadata_of(row).get(HANDLE), str)


def large_handles(run_id: str, messages: Iterable[HistoryMessage], above: int) -> list[str]:
    """The handles of the large results of a run, each once."""
    return [*dict.fromkeys(handle_of(run_id, item) for item in messages if is_large(item, above))]


def with_shown(messages: Iterable[HistoryMessage], run_id: str, shown: Mapping[str, str]) -> list[HistoryMessage]:
    """Messages of a run with the texts that are `shown`, by handle, in the place of those of its large results."""
    if not shown:
        return [*messages]
    texts = ((item, shown.get(handle_of(run_id, item)) if item.role == "tool" else None) for item in messages)
    return [item if text is None else item._replace(text=text) for item, text in texts]


def condensed(text: str, handle: str) -> str:
    """The beginning and the end of a long text, and between them what it is and how the rest is read; 1.5 KiB at most.

    Takes time in the length of the text.
    """
    head = text[: break_near(text, beginning(text, _HEAD))]
    tail = _end_of(text[len(head) :])
    missing = len(text) - len(head) - len(tail)
    call = f'read_tool_result(handle="{handle}", from={len(head)})'
    notes = [f"left out here: {missing} of {len(text)} characters; {call} shows them"]
    if shape := _shape_of(text):
        notes.append(f"all of it is {_clipped(shape, _SHAPE)}")
    if error := _first_error(text, len(head), len(text) - len(tail)):
        notes.append(error)
    return "\n".join([head.removesuffix("\n"), *(f"({note})" for note in notes), tail])


def _end_of(text: str) -> str:
    """The end of a text, from the beginning of a line if one is near."""
    size = len(text[-_TAIL:].encode("utf-8", "replace")[-_TAIL:].decode("utf-8", "ignore"))
    window = text[-(size + size // 4) :]
    return window[break_near(window, len(window) - size) :]


def _clipped(text: str, room: int) -> str:
    if weight(text) <= room:
        return text
    return f"{text[: break_near(text, beginning(text, room - 3))]}…"


def _shape_of(text: str) -> str:
    """What JSON, or a JSON value on each line, consists of; `""` for any other text."""
    value = _parsed(text)
    if value is not None:
        return f"JSON: {_shape(value, _DEPTH)}"
    lines = text.strip().split("\n", 2)
    first, second = (_parsed(line) for line in (*lines, "", "")[:2])
    if first is None or second is None:
        return ""
    return f"{text.count(chr(10), 0, len(text.rstrip())) + 1} lines of JSON, the first {_shape(first, _DEPTH)}"


def _parsed(text: str) -> Any:
    """The object or the list that a text is; None for any other."""
    if text.lstrip()[:1] not in {"{", "["}:
        return None
    try:
        return from_json(text, cache_strings="keys")
    except ValueError:
        return None


def _shape(value: Any, depth: int) -> str:
    match value:
        case dict():
            return _shape_of_object(value, depth)
        case list():
            return f"[{len(value)} of {_shape(value[0], depth - 1) if depth else '…'}]" if value else "[]"
        case str():
            return "text" if len(value) < _LONG_TEXT else f"text of {len(value)} characters"
        case bool():
            return "true or false"
        case None:
            return "null"
        case _:
            return "number"


def _shape_of_object(value: dict[str, Any], depth: int) -> str:
    if not value:
        return "{}"
    if not depth:
        return "{…}"
    fields = [
        f"{json.dumps(name[:_KEY_CHARS], ensure_ascii=False)}: {_shape(each, depth - 1)}"
        for name, each in islice(value.items(), _KEYS)
    ]
    others = [f"{len(value) - _KEYS} others"] if len(value) > _KEYS else []
    return f"{{{', '.join([*fields, *others])}}}"


def _first_error(text: str, start: int, end: int) -> str:
    """The first line that looks like an error, where that is between these places; `""` for none."""
    found = _SIGN_OF_ERROR.search(text)
    if found is None or not start <= found.start() < end:
        return ""
    number, every = text.count("\n", 0, found.start()) + 1, text.count("\n") + 1
    begin = max(text.rfind("\n", 0, found.start()) + 1, found.start() - _ERROR // 2)
    line = text[begin : begin + _ERROR].split("\n", 1)[0].strip()
    return f"line {number} of {every}: {_clipped(line, _ERROR)}"
