r"""Tool calls as they are stored, and the annotation that stands for them in the memory (CONTRACT §2, §4.3).

    [tool_use:web_search, query:AI development 2025]
    [tool_use:web_search, query:AI; tool_use:calculator, expression:1+1]

In an annotation the first `]` without a backslash before it closes it, `, ` ends a name, `:` ends a key and
`; tool_use:` begins the next call. None of these can come out of a value: they get a backslash there, and a value never
ends in one.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from pydantic_core import from_json, to_json

from nexus.services.context.escape import TOOL_USE, canonical, escape_counted, with_marks
from nexus.services.context.lookalikes import fold

_VALUE_CHARS: Final = 100
_NAME_CHARS: Final = 64
_UNNAMED: Final = "unknown"
# Nearly all are dictionaries, and that is found out sooner than that something is a mapping.
_STORED: Final = (dict, Mapping)
_MAIN_PARAMETER: Final = {"web_search": "query"}
_CLOSES_NAME = re.compile(r"[\]］﹈,:;]")
_CLOSES_VALUE = re.compile(r"[\]］﹈]")
# What is shown as it is: one line of ASCII in which nothing has to be marked. Others are looked at more closely.
_WORD = r"[A-Za-z0-9.,!?'()/_+%-]++"
_WORDS = re.compile(rf"{_WORD}(?: {_WORD})*+")
_NEXT_CALL = re.compile(r";(?=[ _\\]*+t[ _]*+o[ _]*+o[ _]*+i[ _]*+u[ _]*+s[ _]*+e)")


class ToolCall(NamedTuple):
    """One call that a model declared.

    Attributes:
        id: the provider's call id, `""` when none was stored.
        name: as stored, `"unknown"` when missing.
        arguments: parsed arguments, in the order in which they were written.
        raw_arguments: the arguments as the JSON text that a provider expects.
    """

    id: str
    name: str
    arguments: Mapping[str, Any]
    raw_arguments: str


def read_tool_calls(stored: Any) -> tuple[ToolCall, ...]:
    """The calls in `tool_calls` as stored, nested or flat; what is no call is left out, `None` holds none."""
    if not isinstance(stored, list | tuple):
        return ()
    return tuple([_read_call(call) for call in stored if isinstance(call, _STORED)])


def _read_call(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function")
    source = function if isinstance(function, _STORED) else call
    name, call_id = source.get("name"), call.get("id")
    arguments, raw = _read_arguments(source.get("arguments"))
    return ToolCall(as_id(call_id), _named(name), arguments, raw)


def _named(name: Any) -> str:
    return name if isinstance(name, str) and name.strip() else _UNNAMED


def as_id(value: Any) -> str:
    """The id of a call as text, for some servers number their calls; `""` for none."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def _read_arguments(given: Any) -> tuple[Mapping[str, Any], str]:
    """The arguments, and the JSON text of an object that says the same."""
    parsed, complete = _parse(given) if isinstance(given, str) else (given, False)
    arguments: Mapping[str, Any] = parsed if isinstance(parsed, _STORED) else {}
    return arguments, given if complete and parsed is arguments else as_json(arguments)


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


def annotate(calls: tuple[ToolCall, ...], escape: Callable[[str], str]) -> str:
    """The annotation of the calls of one message; `""` for none."""
    if not calls:
        return ""
    return f"[{'; '.join([_annotated(call.name, call.arguments, escape) for call in calls])}]"


def annotate_stored(stored: Any, escape: Callable[[str], str]) -> str:
    """`annotate(read_tool_calls(stored), escape)`, in fewer steps where it is one call, as it is for most messages."""
    call = stored[0] if type(stored) is list and len(stored) == 1 else None
    function = call.get("function") if type(call) is dict else None
    if type(function) is dict:
        name, given = function.get("name"), function.get("arguments")
        if type(name) is str and type(given) is str:
            arguments, _ = _parse(given)
            return f"[{_annotated(_named(name), arguments if isinstance(arguments, _STORED) else {}, escape)}]"
    return annotate(read_tool_calls(stored), escape)


def _annotated(name: str, arguments: Mapping[str, Any], escape: Callable[[str], str]) -> str:
    head = f"{TOOL_USE}:{_name(name, escape) or _UNNAMED}"
    if not arguments:
        return head
    key = _MAIN_PARAMETER.get(name)
    if key is None or key not in arguments:
        key = next(iter(arguments))
    value = arguments[key]
    if type(value) is str and len(value) <= _VALUE_CHARS and _WORDS.fullmatch(value):
        return f"{head}, {_name(str(key), escape, ':')}:{value}"
    line = "" if value is None else _one_line(value if isinstance(value, str) else as_json(value), _VALUE_CHARS)
    return f"{head}, {_name(str(key), escape, ':')}:{_value(line, escape)}" if line else head


def _name(text: str, escape: Callable[[str], str], before: str = "") -> str:
    """A name as it is shown before a text that could complete a tag."""
    if len(text) <= _NAME_CHARS and (plain := _plain(text, before)) is not None:
        return plain
    return _closed(escape(_one_line(text, _NAME_CHARS) + before).removesuffix(before))


@lru_cache(maxsize=1_024)
def _plain(text: str, before: str) -> str | None:
    """What is shown of a name in which nothing is marked: those of tools and parameters come again and again."""
    line = _one_line(text, _NAME_CHARS)
    return _closed(line) if escape_counted(line + before) == (line + before, 0) else None


def _closed(line: str) -> str:
    return _not_ending_in_backslash(_CLOSES_NAME.sub(r"\\\g<0>", line))


def _value(line: str, escape: Callable[[str], str]) -> str:
    text, is_ascii = escape(line), line.isascii()
    if "]" in text or not is_ascii:
        text = _CLOSES_VALUE.sub(r"\\\g<0>", text)
    # No other ASCII character passes for a semicolon.
    if ";" in text or not is_ascii:
        text = with_marks(text, [match.start() for match in _NEXT_CALL.finditer(fold(text))])
    return _not_ending_in_backslash(text)


def _not_ending_in_backslash(text: str) -> str:
    # A last backslash would take the closing mark along.
    return f"{text} " if text.endswith("\\") else text


def _one_line(text: str, limit: int) -> str:
    # Canonical first, so that what is removed later leaves no double space behind.
    line = " ".join(canonical(text[: limit * 4]).split())
    return line if len(line) <= limit and len(text) <= limit * 4 else f"{line[: limit - 3]}..."


def as_json(value: Any) -> str:
    """`value` as compact JSON text; what JSON has no form for is told as text, and `{}` if even that fails."""
    try:
        return to_json(value, inf_nan_mode="null", bytes_mode="base64", fallback=str).decode()
    except ValueError:
        return "{}"
