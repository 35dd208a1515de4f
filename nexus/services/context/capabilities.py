"""`[CAPABILITIES]`: tool definitions as text (contract §4.2). Pure.

Anybody on the bus may have registered a tool. Everything in its definition is quoted text: whatever it says, there is
one `### ` line for each tool and one line for each parameter.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from nexus.services.text.escape import canonical

_UNNAMED: Final = "unknown"
_UNDESCRIBED: Final = "No description"
_UNTYPED: Final = "any"
_UNION_MEMBERS: Final = 8
_UNION_DEPTH: Final = 3

# Lines that a lenient reader could take for lines of this block, also after spaces; and after backslashes, so that a
# line that came with one gets one more and no two texts come out the same.
_OWN_STRUCTURE: Final = re.compile(
    r"\s*\\*(?:###|parameters\s*:\s*$|[-*+] [^(]*\(.*(?:required|optional)\s*\))",
    re.IGNORECASE,
)


def describe_tools(definitions: Sequence[Mapping[str, Any]], escape: Callable[[str], str]) -> str:
    """The `[CAPABILITIES]` block, without a newline at its end.

    Args:
        definitions: in the OpenAI function form or flat (`name`, `description`, `parameters`), in the order in which
            they are shown. Of a malformed one as much as can be read is shown.
        escape: `escape`, or one that counts.
    """
    tools = "\n\n".join(_tool(definition, escape) for definition in _items(definitions))
    return f"[CAPABILITIES]\nAvailable tools in this conversation:\n\n{tools or '(No tools available)'}"


def _tool(definition: object, escape: Callable[[str], str]) -> str:
    flat = _fields(definition)
    fields = _fields(flat.get("function")) or flat
    lines = [f"### {_line(fields.get('name')) or _UNNAMED}", _description(fields.get("description"))]
    if parameters := _parameters(_fields(fields.get("parameters"))):
        lines += ["Parameters:", *parameters]
    # As a whole, because otherwise the end of a name and the start of a description could make a tag between them.
    return escape("\n".join(lines))


def _parameters(schema: Mapping[Any, Any]) -> list[str]:
    required = _items(schema.get("required"))
    return [_parameter(name, _fields(of), name in required) for name, of in _fields(schema.get("properties")).items()]


def _parameter(name: object, schema: Mapping[Any, Any], required: bool) -> str:
    presence = "required" if required else "optional"
    line = f"- {_line(name) or _UNNAMED} ({_line(_type(schema)) or _UNTYPED}, {presence})"
    description = _line(schema.get("description"))
    return f"{line}: {description}" if description else line


def _type(schema: Mapping[Any, Any], depth: int = _UNION_DEPTH) -> str:
    """A short name for what a JSON schema allows: its `type`, else its values or alternatives, else `any`."""
    declared = schema.get("type")
    if isinstance(declared, str):
        return declared.strip() or _UNTYPED
    if names := [name for name in _items(declared) if isinstance(name, str)]:
        return _union(names)
    if values := _items(schema.get("enum")):
        return _union([_value(value) for value in values])
    alternatives = _items(schema.get("anyOf")) or _items(schema.get("oneOf"))
    if alternatives and depth:
        return _union([_type(_fields(alternative), depth - 1) for alternative in alternatives[:_UNION_MEMBERS]])
    return _UNTYPED


def _union(members: list[str]) -> str:
    distinct = list(dict.fromkeys(members))
    shown = [*distinct[:_UNION_MEMBERS], "..."] if len(distinct) > _UNION_MEMBERS else distinct
    return " | ".join(shown)


def _value(value: object) -> str:
    scalar = value is None or isinstance(value, str | int | float)
    return json.dumps(value, ensure_ascii=False) if scalar else _UNTYPED


def _description(value: object) -> str:
    """A description keeps its lines, but none of them can pass for a line of this block."""
    if not isinstance(value, str):
        return _UNDESCRIBED
    lines = canonical(value).strip().split("\n")
    return "\n".join(map(_guarded, lines)) or _UNDESCRIBED


def _guarded(line: str) -> str:
    if not _OWN_STRUCTURE.match(unicodedata.normalize("NFKC", line)):
        return line
    words = line.lstrip()
    return f"{line[: len(line) - len(words)]}\\{words}"


def _line(value: object) -> str:
    """A name or note as one line; empty for what is no text."""
    return canonical(value).replace("\n", " ").strip() if isinstance(value, str) else ""


def _fields(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _items(value: object) -> Sequence[Any]:
    return value if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray) else []
