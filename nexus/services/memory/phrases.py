"""In which texts of a recorded message a phrase is looked for (CONTRACT §7). Pure."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from nexus.core.ports import Row
from nexus.services.context.annotations import ToolCall, as_json, read_tool_calls
from nexus.services.context.memory import as_text

# Of texts within arguments within arguments no more is looked at.
_DEEPEST: Final = 20


def texts_of(row: Row, without_tools: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Each text of a row, with the name of the tool that it is given to by a call, `""` where it is the content.

    A call has its name and its arguments as JSON, the texts in these as the tool gets them, and the arguments as they
    were written, which need be no JSON.

    Args:
        row: as it is stored, whatever it is.
        without_tools: names of tools whose calls have none.
    """
    content = row.get("content")
    if isinstance(content, str | list | dict):
        yield "", as_text(content)
    metadata = row.get("metadata")
    stored = metadata.get("tool_calls") if isinstance(metadata, Mapping) else None
    for given in stored if isinstance(stored, list | tuple) else ():
        for call in read_tool_calls([given]):
            if call.name not in without_tools:
                yield from ((call.name, text) for text in _texts_of_call(call, given))


def tool_of(row: Row) -> str:
    """The name of the tool whose result the row is; `""` for none."""
    metadata = row.get("metadata")
    name = metadata.get("tool_name") if isinstance(metadata, Mapping) else None
    return name if isinstance(name, str) else ""


def place_of(text: str, phrase: str) -> int | None:
    """Where the phrase begins, whatever its case; None where it is not."""
    match = re.search(re.escape(phrase), text, re.IGNORECASE)
    return match.start() if match else None


def _texts_of_call(call: ToolCall, given: Mapping[str, Any]) -> Iterator[str]:
    yield f"{call.name} {as_json(call.arguments)}"
    yield from _texts_in(call.arguments, _DEEPEST)
    function = given.get("function")
    written = (function if isinstance(function, Mapping) else given).get("arguments")
    if isinstance(written, str):
        yield written


def _texts_in(value: Any, deepest: int) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif deepest and isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _texts_in(each, deepest - 1)
