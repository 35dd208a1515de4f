r"""Tool calls as they are stored, and the annotations that stand for them in the memory (contract §2, §4.3). Pure.

    [tool_use:web_search, query:AI development 2025]
    [tool_use:web_search, query:AI; tool_use:calculator, expression:1+1]
    [tool_result:web_search, Two papers were found; tool_result:calculator, 2]

In an annotation the first `]` without a backslash before it closes it, `, ` ends a name, `:` ends a key and
`; tool_use:`, or `; tool_result:`, begins the next call. None of these can come out of a value: they get a backslash
there, and a value never ends in one.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from json import JSONDecoder
from typing import Any, Final, NamedTuple

from pydantic_core import from_json

from nexus.core.models import CALL_ARGUMENTS, CALL_IDS, CALL_NAMES, CALL_WITHIN
from nexus.services.text.content import compact_json
from nexus.services.text.escape import TOOL_RESULT, TOOL_USE, canonical, escape_within_line, fold, with_marks

_VALUE_CHARS: Final = 100
_NAME_CHARS: Final = 64
_UNNAMED: Final = "unknown"
# PHP has one form for an empty object and an empty list.
_NO_ARGUMENTS: Final = frozenset({"", "{}", "[]", "null"})
_NO_ARGUMENT: Final = frozenset({"id", "call_id", "index", "type", "name", "status"})
# The key of arguments that are no JSON object.
_AS_TEXT: Final = "arguments"
_FENCED: Final = re.compile(r"\s*```(?:json)?\s*(.*?)\s*```\s*", re.DOTALL)
_TRAILING_COMMA: Final = re.compile(r",(\s*[}\]]\s*)\Z")
_MAIN_PARAMETER: Final = {"web_search": "query"}
_CLOSES_NAME = re.compile(r"[\]］﹈,:;]")
_CLOSES_VALUE = re.compile(r"[\]］﹈]")


def _next(name: str) -> re.Pattern[str]:
    """What would begin the next call in an annotation of this kind, in a folded text."""
    return re.compile(rf";(?=[ _\\]*+{'[ _]*+'.join(fold(name.replace('_', '')))})")


_NEXT_CALL: Final = _next(TOOL_USE)
_NEXT_RESULT: Final = _next(TOOL_RESULT)


class ToolCall(NamedTuple):
    """One call that a model declared.

    Attributes:
        id: the provider's call id, `""` when none was stored.
        name: as stored, `"unknown"` when missing.
        arguments: parsed arguments, in the order in which they were written; what is no JSON object stands under the
            name `arguments`, as its text.
        raw_arguments: the arguments as the JSON text that a provider expects.
    """

    id: str
    name: str
    arguments: Mapping[str, Any]
    raw_arguments: str


def read_tool_calls(stored: Any) -> tuple[ToolCall, ...]:
    """The calls in `tool_calls`, in any form of contract §11. What is no object is left out; `None` holds none."""
    if not isinstance(stored, list | tuple):
        return ()
    return tuple([_read_call(call) for call in stored if isinstance(call, Mapping)])


def _read_call(call: Mapping[str, Any]) -> ToolCall:
    inner, given = described(call), given_arguments(call)
    name = next((inner[key] for key in CALL_NAMES if inner.get(key) is not None), None)
    is_named = isinstance(name, str) and bool(name.strip())
    if not is_named and given is None:
        # What is not understood is shown as it is.
        given = {key: value for key, value in inner.items() if key not in _NO_ARGUMENT}
    arguments, raw = _read_arguments(given)
    # An item of OpenAI's Responses API has an id of its own, and results name the other.
    ids = (as_id(each.get(key)) for each in (inner, call) for key in (*CALL_IDS, "id"))
    return ToolCall(next(filter(None, ids), ""), str(name) if is_named else _UNNAMED, arguments, raw)


def given_arguments(call: Mapping[str, Any]) -> Any:
    """The arguments of a call as they were given."""
    source = described(call)
    given = [source[key] for key in CALL_ARGUMENTS if source.get(key) is not None]
    return next((each for each in given if each != ""), "" if given else None)


def described(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """What has name and arguments: the call itself, or an object in it."""
    for key in CALL_WITHIN:
        # What is beside a call may have one of these names, too.
        if isinstance(inner := call.get(key), Mapping) and (
            call.get("type") == key or not inner.keys().isdisjoint({*CALL_NAMES, *CALL_ARGUMENTS})
        ):
            return inner
    return call


def as_id(value: Any) -> str:
    """The id of a call as text, for some servers number their calls; `""` for none."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def _read_arguments(given: Any) -> tuple[Mapping[str, Any], str]:
    """The arguments, and the JSON text of an object that says the same."""
    if given is None or given == [] or (isinstance(given, str) and given.strip() in _NO_ARGUMENTS):
        return {}, "{}"
    if isinstance(given, str) and not given.isascii():
        # Half a surrogate pair is no JSON.
        given = given.encode("utf-8", "replace").decode()
    parsed, complete = _parse(given) if isinstance(given, str) else (given, False)
    if isinstance(parsed, str):
        # Some servers encode the JSON text once more.
        parsed, complete = _parse(parsed)[0], False
    if not isinstance(parsed, Mapping) or (not parsed and not complete and isinstance(given, str)):
        parsed, complete = {_AS_TEXT: given if isinstance(given, str) else compact_json(given)}, False
    return parsed, given if complete else compact_json(parsed)


def _parse(text: str) -> tuple[Any, bool]:
    """What the text says, and whether it is strict JSON; None where that is not certain."""
    try:
        return from_json(text, allow_inf_nan=False), True
    except ValueError:
        pass
    if fenced := _FENCED.fullmatch(text):
        text = fenced[1]
    text = _TRAILING_COMMA.sub(r"\1", text)
    # A model that hit its token limit leaves its arguments unfinished, and some write NaN; it is still worth showing.
    if _is_two_objects(text.strip()):
        return None, False
    try:
        return from_json(text, allow_partial="trailing-strings"), False
    except ValueError:
        return None, False


def _is_two_objects(text: str) -> bool:
    """Whether it is one object after another, such as the arguments of two streamed calls."""
    try:
        _, end = JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return False
    return text[end:].lstrip().startswith("{")


def annotate(calls: Iterable[ToolCall], escape: Callable[[str], str]) -> str:
    """The annotation of the calls of one message; `""` for none."""
    annotated = [_annotated(call, escape) for call in calls]
    return f"[{'; '.join(annotated)}]" if annotated else ""


def annotate_results(results: Iterable[tuple[str, str]], escape: Callable[[str], str]) -> str:
    """The annotation of what came of the calls of one message: of each its tool and a text; `""` for none."""
    annotated = []
    for name, text in results:
        head, line = f"{TOOL_RESULT}:{_name(name, escape) or _UNNAMED}", _one_line(text, _VALUE_CHARS)
        annotated.append(f"{head}, {_value(line, escape, _NEXT_RESULT)}" if line else head)
    return f"[{'; '.join(annotated)}]" if annotated else ""


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


def _value(line: str, escape: Callable[[str], str], following: re.Pattern[str] = _NEXT_CALL) -> str:
    text = _CLOSES_VALUE.sub(r"\\\g<0>", escape_within_line(line, escape))
    # No other ASCII character passes for a semicolon.
    if ";" in text or not text.isascii():
        text = with_marks(text, [match.start() for match in following.finditer(fold(text))])
    return _not_ending_in_backslash(text)


def _not_ending_in_backslash(text: str) -> str:
    # A last backslash would take the closing mark along.
    return f"{text} " if text.endswith("\\") else text


def _one_line(text: str, limit: int) -> str:
    # Canonical first, so that what is removed later leaves no double space behind. JSON of arguments may escape NUL.
    line = " ".join(canonical(text[: limit * 4].replace("\x00", "\ufffd")).split())
    return line if len(line) <= limit and len(text) <= limit * 4 else f"{line[: limit - 3]}..."
