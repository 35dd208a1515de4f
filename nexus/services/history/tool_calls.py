r"""Tool calls as they are stored, and the annotation that stands for them in the memory (contract §2, §4.3). Pure.

    [tool_use:web_search, query:AI development 2025]
    [tool_use:web_search, query:AI; tool_use:calculator, expression:1+1]

In an annotation the first `]` without a backslash before it closes it, `, ` ends a name, `:` ends a key and
`; tool_use:` begins the next call. None of these can come out of a value: they get a backslash there, and a value never
ends in one.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from pydantic_core import from_json

from nexus.services.text.content import compact_json
from nexus.services.text.escape import TOOL_USE, canonical, escape_within_line, fold, with_marks

_VALUE_CHARS: Final = 100
_NAME_CHARS: Final = 64
_UNNAMED: Final = "unknown"
_NO_ARGUMENTS: Final = frozenset({"", "{}", "null"})
_MAIN_PARAMETER: Final = {"web_search": "query"}
_CLOSES_NAME = re.compile(r"[\]］﹈,:;]")
_CLOSES_VALUE = re.compile(r"[\]］﹈]")
_NEXT_CALL = re.compile(r";(?=[ _\\]*+t[ _]*+o[ _]*+o[ _]*+i[ _]*+u[ _]*+s[ _]*+e)")


class ToolCall(NamedTuple):
    """One call that a model declared.

    Attributes:
        id: the provider's call id, `""` when none was stored.
        name: as stored, `"unknown"` when missing.
        arguments: parsed arguments, in the order in which they were written.
        raw_arguments: the arguments as the JSON text that a provider expects.
        unread: the text that was given for arguments, where it is no JSON object.
    """

    id: str
    name: str
    arguments: Mapping[str, Any]
    raw_arguments: str
    unread: str = ""


def read_tool_calls(stored: Any) -> tuple[ToolCall, ...]:
    """The calls in `tool_calls` as stored, nested or flat. Anything else is left out; `None` holds none."""
    if not isinstance(stored, list | tuple):
        return ()
    return tuple([_read_call(call) for call in stored if isinstance(call, Mapping)])


def _read_call(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function")
    source = function if isinstance(function, Mapping) else call
    name, given = source.get("name"), source.get("arguments")
    arguments, raw = _read_arguments(given)
    unread = given if not arguments and isinstance(given, str) and given.strip() not in _NO_ARGUMENTS else ""
    named = name if isinstance(name, str) and name.strip() else _UNNAMED
    return ToolCall(as_id(call.get("id")), named, arguments, raw, unread)


def as_id(value: Any) -> str:
    """The id of a call as text, for some servers number their calls; `""` for none."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def _read_arguments(given: Any) -> tuple[Mapping[str, Any], str]:
    """The arguments, and the JSON text of an object that says the same."""
    parsed, complete = _parse(given) if isinstance(given, str) else (given, False)
    arguments: Mapping[str, Any] = parsed if isinstance(parsed, Mapping) else {}
    return arguments, given if complete and parsed is arguments else compact_json(arguments)


def _parse(text: str) -> tuple[Any, bool]:
    try:
        return from_json(text, allow_inf_nan=False), True
    except TypeError:
        # Half a surrogate pair.
        return None, False
    except ValueError:
        pass
    # A model that hit its token limit leaves its arguments unfinished, and some write NaN; it is still worth showing.
    try:
        return from_json(text, allow_partial="trailing-strings"), False
    except ValueError:
        return None, False


def annotate_stored(stored: Any, escape: Callable[[str], str]) -> str:
    """The annotation of the calls of one message, as stored; `""` for none."""
    calls = [_annotated(call, escape) for call in read_tool_calls(stored)]
    return f"[{'; '.join(calls)}]" if calls else ""


def _annotated(call: ToolCall, escape: Callable[[str], str]) -> str:
    head = f"{TOOL_USE}:{_name(call.name, escape) or _UNNAMED}"
    if not call.arguments:
        return head
    key = _MAIN_PARAMETER.get(call.name)
    if key is None or key not in call.arguments:
        key = next(iter(call.arguments))
    value = call.arguments[key]
    line = "" if value is None else _one_line(value if isinstance(value, str) else compact_json(value), _VALUE_CHARS)
    return f"{head}, {_name(str(key), escape, ':')}:{_value(line, escape)}" if line else head


def _name(text: str, escape: Callable[[str], str], before: str = "") -> str:
    """A name as it is shown before a text that could complete a tag."""
    line = escape_within_line(_one_line(text, _NAME_CHARS) + before, escape).removesuffix(before)
    return _not_ending_in_backslash(_CLOSES_NAME.sub(r"\\\g<0>", line))


def _value(line: str, escape: Callable[[str], str]) -> str:
    text = _CLOSES_VALUE.sub(r"\\\g<0>", escape_within_line(line, escape))
    # No other ASCII character passes for a semicolon.
    if ";" in text or not text.isascii():
        text = with_marks(text, [match.start() for match in _NEXT_CALL.finditer(fold(text))])
    return _not_ending_in_backslash(text)


def _not_ending_in_backslash(text: str) -> str:
    # A last backslash would take the closing mark along.
    return f"{text} " if text.endswith("\\") else text


def _one_line(text: str, limit: int) -> str:
    # Canonical first, so that what is removed later leaves no double space behind.
    line = " ".join(canonical(text[: limit * 4]).split())
    return line if len(line) <= limit and len(text) <= limit * 4 else f"{line[: limit - 3]}..."
