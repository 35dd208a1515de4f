"""Definitions of tools, brought from every form in which they are sent to OpenAI's function form. Pure (contract §3).

| form | told by |
|---|---|
| OpenAI, chat completions | `function` |
| OpenAI, Responses API, and Anthropic | `name` with `parameters`, `input_schema` or nothing |
| MCP | `name` with `inputSchema` |
| Gemini | `functionDeclarations`, or a declaration by itself with `parametersJsonSchema` |

Several come as a list, as Gemini's list or as `{"tools": […]}`, the answer of an MCP server.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from nexus.core.models import AMBIGUOUS_ID, MAX_ID_CHARS, is_ambiguous
from nexus.core.wire import is_deeper
from nexus.services.tools.schemas import modern, target

# Gemini takes no digit or dash at the beginning: GitHubSecurityLab/seclab-taskflow-agent#287.
_REFUSED: Final = re.compile(r"[^A-Za-z0-9_-]|^(?=[0-9-])")
_NAME_CHARS: Final = 64
_DIGEST_CHARS: Final = 8
_MOST_BYTES: Final = 65_536
# An answer carries definitions three levels down, and may be 64 deep itself (contract §1.6).
_DEEPEST: Final = 32

_LISTS: Final = ("functionDeclarations", "function_declarations", "tools")
_SCHEMAS: Final = ("parameters", "parametersJsonSchema", "parameters_json_schema", "input_schema", "inputSchema")
# `custom` is Anthropic's word for a function that somebody else runs.
_TYPES: Final = ("function", "custom")
_TAKEN: Final = frozenset({"type", "name", "title", "description", "strict", *_SCHEMAS})


ToolName = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS)]


class Parameters(TypedDict, total=False):
    """The JSON Schema of a tool's parameters, as far as it is checked."""

    type: str | list[str]
    properties: dict[str, dict[str, Any] | bool] | None


class Function(TypedDict):
    """The part of a definition that a model sees."""

    name: ToolName
    description: NotRequired[str | None]
    parameters: NotRequired[Parameters | None]


class ToolDefinition(TypedDict):
    """A definition in the OpenAI function form; at most 64 KiB of JSON, 32 deep."""

    type: NotRequired[Literal["function"]]
    function: Function


class FlatDefinition(TypedDict):
    """A definition as others write it; one with a name alone is none."""

    name: ToolName
    type: NotRequired[Literal["function", "custom"]]
    title: NotRequired[str | None]
    description: NotRequired[str | None]
    parameters: NotRequired[Parameters | None]
    parametersJsonSchema: NotRequired[Parameters | None]
    parameters_json_schema: NotRequired[Parameters | None]
    input_schema: NotRequired[Parameters | None]
    inputSchema: NotRequired[Parameters | None]


class DeclaredFunctions(TypedDict):
    """Gemini's tools."""

    functionDeclarations: list[FlatDefinition]


class DeclaredFunctionsInPython(TypedDict):
    """Gemini's tools as its SDK writes them."""

    function_declarations: list[FlatDefinition]


OneOrDeclared = ToolDefinition | FlatDefinition | DeclaredFunctions | DeclaredFunctionsInPython


class ListedTools(TypedDict):
    """The answer of an MCP server that lists its tools."""

    tools: list[OneOrDeclared]


Registration = OneOrDeclared | ListedTools | list[OneOrDeclared]


class NamedTool(TypedDict):
    """The tool to unregister."""

    name: ToolName


class Definition(NamedTuple):
    """A definition in OpenAI's function form, and the keywords of its schema that were changed."""

    checked: dict[str, Any]
    changed: list[str]

    @property
    def name(self) -> str:
        """The name under which it is registered; it may be one that no provider takes."""
        name: str = self.checked["function"]["name"]
        return name


def read_definitions(given: Any) -> tuple[list[Definition], list[str]]:
    """The definitions in what was sent, and why each of the others is refused, with its place in a list."""
    read, faults = [], []
    for where, item in _items(given, ""):
        try:
            read.append(read_definition(item))
        except ValueError as error:
            faults.append(f"{where}{': ' if where else ''}{error}")
    return read, faults


def _items(given: Any, where: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Each thing that should be a definition, and its place."""
    key = next((key for key in _LISTS if isinstance(given, Mapping) and isinstance(given.get(key), list)), "")
    items = given[key] if key else given
    if not isinstance(items, list) or not items or depth > 1:
        yield where, given
        return
    for index, item in enumerate(items):
        yield from _items(item, f"{where}{'.' if where and key else ''}{key}[{index}]", depth + 1)


def read_definition(given: Any) -> Definition:
    """A copy of one definition, complete and in the OpenAI function form.

    Raises:
        ValueError: what is wrong, where, and what is allowed.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"definition: a mapping is needed, not {type(given).__name__}")
    nested = given.get("function")
    source, at = (nested, "function.") if isinstance(nested, Mapping) else (given, "")
    if given.get("type", "function") not in _TYPES:
        raise ValueError("type: 'function' is the only type of tool")
    if source is given and not _is_flat(given):
        raise ValueError("function: a mapping with name, description and parameters is needed")
    name = check_name(source.get("name"), f"{at}name")
    function = {"name": name, "description": source.get("description") or source.get("title") or ""}
    if not isinstance(function["description"], str):
        raise ValueError(f"{at}description of {name!r}: a text is needed")
    schema = next((source[key] for key in _SCHEMAS if source.get(key) is not None), None)
    further = {"parameters": schema, "strict": source.get("strict")}
    function |= {key: value for key, value in further.items() if value is not None}
    checked = _checked_json({"type": "function", "function": function}, name)
    left_out = [str(key) for key, value in source.items() if key not in _TAKEN and value is not None]
    return Definition(checked, left_out + _read_parameters(checked["function"], f"{at}parameters of {name!r}"))


def _is_flat(given: Mapping[str, Any]) -> bool:
    """Whether this is a definition whose function is not apart; a name alone is none."""
    return "name" in given and any(given.get(key) is not None for key in ("description", "type", *_SCHEMAS))


def _checked_json(whole: Mapping[str, Any], name: str) -> dict[str, Any]:
    try:
        text = json.dumps(whole, allow_nan=False, ensure_ascii=False).encode()
        checked: dict[str, Any] = json.loads(text, parse_int=_storable_integer)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"definition of {name!r}: is not JSON: {error}") from None
    if len(text) > _MOST_BYTES:
        raise ValueError(f"definition of {name!r}: {len(text)} bytes of JSON, at most {_MOST_BYTES} are allowed")
    if is_deeper(checked, _DEEPEST):
        raise ValueError(f"definition of {name!r}: nested deeper than {_DEEPEST}")
    return checked


def _storable_integer(digits: str) -> int | float | str:
    """The integer as a document store can hold it: beyond 64 bits as a float, beyond a float as its digits."""
    number, fraction = int(digits), float(digits)
    if -(2**63) <= number < 2**63:
        return number
    return fraction if math.isfinite(fraction) else digits


def check_name(name: Any, where: str) -> str:
    """`name`, if a tool can be registered under it; else a ValueError says what is allowed at the place `where`."""
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_ID_CHARS:
        raise ValueError(f"{where}: a text of 1 to {MAX_ID_CHARS} characters is needed")
    if is_ambiguous(name):
        raise ValueError(f"{where}: {AMBIGUOUS_ID}")
    return name


def logged_name(name: str) -> str:
    """The name as a log may show it: one that no provider would take may be any text."""
    return f"(a name of {len(name)} characters)" if _REFUSED.search(name) or len(name) > _NAME_CHARS else name


def shown_name(name: str, refused: re.Pattern[str] = _REFUSED) -> str:
    """The name that models are shown: of at most 64 characters, with `_` for those that are `refused`.

    What is not `refused` by default is taken by all providers as a character of the name of a tool. A name that is too
    long, or not in ASCII, ends in a digest of it.
    """
    plain = refused.sub("_", name)
    return plain if name.isascii() and 1 <= len(plain) <= _NAME_CHARS else _with_digest(plain, name)


def shown_names(names: Iterable[str], refused: re.Pattern[str] = _REFUSED) -> dict[str, str]:
    """The `shown_name` of each; of several that would be the same, one alone is without a digest."""
    names_by_shown: dict[str, str] = {}
    # Those that need not be changed first: no other may have theirs.
    for changed, name in sorted((shown_name(name, refused) != name, name) for name in names):
        other = shown_name(name, refused)
        names_by_shown[_with_digest(other, name) if changed and other in names_by_shown else other] = name
    return {name: other for other, name in names_by_shown.items()}


def _with_digest(plain: str, name: str) -> str:
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
    return f"{plain[: _NAME_CHARS - _DIGEST_CHARS - 1]}_{digest}"


def _read_parameters(function: dict[str, Any], where: str) -> list[str]:
    """Bring `parameters` of `function` into the form of JSON Schema. Returns the keywords that were changed."""
    given = function.get("parameters")
    if given is None:
        return []
    if not isinstance(given, dict):
        raise ValueError(f"{where}: a JSON schema of type 'object' is needed")
    if isinstance(given.get("$ref"), str):
        # No provider follows the reference of a whole schema.
        given = {**(target(given, given["$ref"]) or {}), **given}
        del given["$ref"]
    properties = {} if given.get("properties") is None else given["properties"]
    if not isinstance(properties, dict) or not all(isinstance(each, dict | bool) for each in properties.values()):
        raise ValueError(f"{where}: properties must map each parameter to its schema")
    schema, changed = modern(given)
    if isinstance(schema.get("type"), list) and "object" in schema["type"]:
        schema["type"] = "object"
        changed.append("type")
    if schema.setdefault("type", "object") != "object":
        raise ValueError(f"{where}: a JSON schema of type 'object' is needed")
    # OpenAI wants them said: langchain-ai/langchain-mcp-adapters#137.
    schema.setdefault("properties", {})
    function["parameters"] = schema
    return changed
