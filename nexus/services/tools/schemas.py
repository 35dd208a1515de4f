"""The JSON Schemas of tools' parameters: walked, and brought to draft 2020-12. Pure.

What people register is often of an older draft, of OpenAPI or of Google's dialect of it, or written by hand. A provider
refuses the whole request for one keyword whose value has not the form that the draft says. So such a keyword is
rewritten where its meaning is certain and left out where it is not: the schema then allows more, never less.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

Schema = dict[str, Any]

_NOTHING: Final = object()
# From here on no store holds an integer.
_LARGEST: Final = 2**63
_TYPES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_OTHER_TYPES: Final[Mapping[str, str]] = {
    "bool": "boolean",
    "dict": "object",
    "double": "number",
    "float": "number",
    "int": "integer",
    "list": "array",
    "none": "null",
    "str": "string",
}
_BOUNDS: Final = (("maximum", "exclusiveMaximum"), ("minimum", "exclusiveMinimum"))


def _schema(value: Any) -> Any:
    # A boolean is a schema, but not for every provider.
    return value if isinstance(value, dict) else {"not": {}} if value is False else {}


def _schema_or_boolean(value: Any) -> Any:
    return value if isinstance(value, bool) else _schema(value)


def _schemas(value: Any) -> Any:
    return [_schema(item) for item in value] if isinstance(value, list) and value else _NOTHING


def _named_schemas(value: Any) -> Any:
    return {name: _schema(item) for name, item in value.items()} if isinstance(value, dict) else _NOTHING


def _number(value: Any) -> Any:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return _NOTHING
        value = int(value) if value.is_integer() and abs(value) < _LARGEST else value
    # Not `math.isfinite`, which refuses an integer that is larger.
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return value if is_number else _NOTHING


def _positive(value: Any) -> Any:
    number = _number(value)
    return number if number is not _NOTHING and number > 0 else _NOTHING


def _count(value: Any) -> Any:
    number = _number(value)
    return number if number is not _NOTHING and number >= 0 and number == int(number) else _NOTHING


def _text(value: Any) -> Any:
    return value if isinstance(value, str) else _NOTHING


def _flag(value: Any) -> Any:
    return value if isinstance(value, bool) else _NOTHING


def _values(value: Any) -> Any:
    return value if isinstance(value, list) and value else _NOTHING


def _names(value: Any) -> Any:
    # In draft 3 it is a boolean.
    is_list = isinstance(value, list)
    return list(dict.fromkeys(item for item in value if isinstance(item, str))) if is_list else _NOTHING


def _type(value: Any) -> Any:
    if isinstance(value, str):
        lowered = value.strip().lower()
        return lowered if lowered in _TYPES else _OTHER_TYPES.get(lowered, _NOTHING)
    known = [_type(item) for item in value] if isinstance(value, list) else []
    return list(dict.fromkeys(item for item in known if isinstance(item, str))) or _NOTHING


# Where schemas stand in schemas, and the form of each keyword whose form matters.
_ONE: Final = frozenset(
    [
        "additionalItems",
        "additionalProperties",
        "contains",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    ]
)
_SEVERAL: Final = frozenset(["allOf", "anyOf", "oneOf", "prefixItems"])
_NAMED: Final = frozenset(["$defs", "definitions", "dependentSchemas", "patternProperties", "properties"])
_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(_ONE, _schema),
    **dict.fromkeys(("additionalProperties", "unevaluatedItems", "unevaluatedProperties"), _schema_or_boolean),
    **dict.fromkeys(_SEVERAL, _schemas),
    **dict.fromkeys(_NAMED, _named_schemas),
    **dict.fromkeys(["exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"], _number),
    **dict.fromkeys(["maxContains", "maxItems", "maxLength", "maxProperties"], _count),
    **dict.fromkeys(["minContains", "minItems", "minLength", "minProperties"], _count),
    **dict.fromkeys(
        ["$anchor", "$comment", "$id", "$ref", "$schema", "description", "format", "pattern", "title"], _text
    ),
    **dict.fromkeys(["deprecated", "readOnly", "uniqueItems", "writeOnly"], _flag),
    "enum": _values,
    "multipleOf": _positive,
    "required": _names,
    "type": _type,
}


def nodes(schema: Schema) -> list[Schema]:
    """`schema` and all schemas in it, without booleans."""
    found = [schema]
    for node in found:
        for key, value in node.items():
            if key in _ONE:
                inner: Iterable[Any] = (value,)
            elif key in _NAMED and isinstance(value, dict):
                inner = value.values()
            elif key in _SEVERAL and isinstance(value, list):
                inner = value
            else:
                continue
            found.extend([item for item in inner if isinstance(item, dict)])
    return found


def mapped(schema: Schema, change: Callable[[Schema], Schema]) -> Schema:
    """A copy of `schema` with `change` applied to each schema in it, the innermost first. Booleans stay."""
    return change({key: _mapped_value(key, value, change) for key, value in schema.items()})


def _mapped_value(key: str, value: Any, change: Callable[[Schema], Schema]) -> Any:
    if key in _ONE and isinstance(value, dict):
        return mapped(value, change)
    if (key in _SEVERAL or key == "items") and isinstance(value, list):
        return [mapped(item, change) if isinstance(item, dict) else item for item in value]
    if key in _NAMED and isinstance(value, dict):
        return {name: mapped(item, change) if isinstance(item, dict) else item for name, item in value.items()}
    return value


def modern(schema: Schema) -> tuple[Schema, list[str]]:
    """`schema` in the form of draft 2020-12, without references that lead nowhere; and the keywords that changed."""
    changed: list[str] = []
    whole = mapped(schema, partial(_modern, changed))
    whole = without_references(whole, lambda reference: target(whole, reference) is None, changed)
    return whole, changed


def _modern(changed: list[str], node: Schema) -> Schema:
    node = _without_older_forms(changed, node)
    made: Schema = {}
    for key, value in node.items():
        reader = _READERS.get(key)
        read = reader(value) if reader else value
        if read is not _NOTHING:
            made[key] = read
        if read != value:
            changed.append(key)
    return made


def _without_older_forms(changed: list[str], node: Schema) -> Schema:
    """Without `items: […]` and `exclusiveMinimum: true`, which draft 2020-12 says in another way."""
    for bound, exclusive in _BOUNDS:
        if isinstance(node.get(exclusive), bool):
            changed.append(exclusive)
            if node.pop(exclusive) and bound in node:
                node[exclusive] = node.pop(bound)
    if isinstance(node.get("items"), list):
        changed.append("items")
        node.setdefault("prefixItems", node.pop("items"))
        node["items"] = node.pop("additionalItems", {})
    if node.get("items") is False:
        # What a provider takes instead: there are no more than the ones before.
        changed.append("items")
        before = node.get("prefixItems")
        node["items"] = {}
        node.setdefault("maxItems", len(before) if isinstance(before, list) else 0)
    return node


def without_references(schema: Schema, unwanted: Callable[[str], bool], changed: list[str]) -> Schema:
    """`schema` without the references that are `unwanted`; `changed` gets `$ref` for each."""

    def change(node: Schema) -> Schema:
        if isinstance(node.get("$ref"), str) and unwanted(node["$ref"]):
            changed.append("$ref")
            del node["$ref"]
        return node

    return mapped(schema, change)


def references(schema: Schema) -> frozenset[str]:
    """The references in `schema`."""
    return frozenset(node["$ref"] for node in nodes(schema) if isinstance(node.get("$ref"), str))


def target(schema: Any, reference: str) -> Schema | None:
    """The schema in `schema` to which a reference such as `#/$defs/Part` leads; None for one of another kind."""
    head, *path = reference.split("/")
    if head != "#":
        return None
    for step in path:
        key = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list):
            schema = {str(index): item for index, item in enumerate(schema)}
        schema = schema.get(key) if isinstance(schema, dict) else None
    return schema if isinstance(schema, dict) else None


def from_google(schema: Schema) -> Schema:
    """A schema of Gemini's `parameters` as JSON Schema: there `nullable` stands for the type `null`."""
    return mapped(schema, _from_google)


def _from_google(node: Schema) -> Schema:
    # The SDK writes out fields that are not set.
    node = {key: value for key, value in node.items() if value is not None}
    for other, name in (("any_of", "anyOf"), ("min_items", "minItems"), ("max_items", "maxItems")):
        if other in node:
            node.setdefault(name, node.pop(other))
    for word in ("propertyOrdering", "property_ordering"):
        node.pop(word, None)
    if node.pop("nullable", False) is not True:
        return node
    if isinstance(node.get("type"), str):
        node["type"] = [node["type"], "null"]
    if isinstance(node.get("anyOf"), list):
        node["anyOf"] = [*node["anyOf"], {"type": "null"}]
    if isinstance(node.get("enum"), list):
        node["enum"] = [*node["enum"], None]
    return node
