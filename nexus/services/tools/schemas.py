"""The JSON Schemas of tools' parameters: walked, and brought to draft 2020-12. Pure.

People register older drafts, OpenAPI, Google's dialect of it, and slips. A provider refuses the whole request for one
keyword that has not the form of the draft (anthropics/claude-code#86664), so such a keyword is rewritten where its
meaning is certain and left out where it is not: the schema then allows more, never less.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

Schema = dict[str, Any]

# Where schemas stand in schemas.
_IN_PLACE: Final = frozenset(["contains", "else", "if", "not", "propertyNames", "then"])
_ONE: Final = _IN_PLACE | {"additionalProperties", "items", "unevaluatedItems", "unevaluatedProperties"}
_SEVERAL: Final = frozenset(["allOf", "anyOf", "oneOf", "prefixItems"])
_NAMED: Final = frozenset(["$defs", "definitions", "dependentSchemas", "patternProperties", "properties"])

# The values that the draft allows of other keywords.
_VALID: Final[Mapping[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(
        ["exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"], lambda value: type(value) in {int, float}
    ),
    "multipleOf": lambda value: type(value) in {int, float} and value > 0,
    **dict.fromkeys(
        [f"{bound}{what}" for bound in ("max", "min") for what in ("Contains", "Items", "Length", "Properties")],
        lambda value: type(value) is int and value >= 0,
    ),
    **dict.fromkeys(
        ["$anchor", "$comment", "$id", "$ref", "$schema", "description", "format", "pattern", "title"],
        lambda value: isinstance(value, str),
    ),
    **dict.fromkeys(["deprecated", "readOnly", "uniqueItems", "writeOnly"], lambda value: isinstance(value, bool)),
    "enum": lambda value: isinstance(value, list) and bool(value),
    "type": bool,
}
_TYPES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_SNAKE: Final = re.compile("(?<=[a-z])_([a-z])")


def nodes(schema: Schema) -> Iterator[Schema]:
    """`schema` and all schemas in it, without booleans."""
    yield schema
    for key, value in schema.items():
        inner = [value] if key in _ONE else value if key in _SEVERAL else value.values() if key in _NAMED else ()
        for each in inner:
            if isinstance(each, dict):
                yield from nodes(each)


def mapped(schema: Schema, change: Callable[[Schema], Schema]) -> Schema:
    """A copy of `schema` with each schema in it as `change` makes it, the outermost first. Booleans stay."""
    made = dict(change(schema))
    for key, value in made.items():
        if key in _ONE and isinstance(value, dict):
            made[key] = mapped(value, change)
        elif key in _SEVERAL:
            made[key] = [mapped(item, change) for item in value]
        elif key in _NAMED:
            made[key] = {name: mapped(item, change) for name, item in value.items()}
    return made


def modern(schema: Schema) -> tuple[Schema, list[str]]:
    """`schema` in the form of draft 2020-12, without references that lead nowhere; and the keywords that changed."""
    changed: list[str] = []
    whole = mapped(schema, partial(_modern, changed))
    made = without_lost_references(whole)
    return made, changed if made == whole else [*changed, "$ref"]


def _modern(changed: list[str], given: Schema) -> Schema:
    # The SDK of Google writes snake case (google/adk-python#5364), and the fields that are not set.
    node = {
        _SNAKE.sub(lambda found: found[1].upper(), key): value
        for key, value in given.items()
        if value is not None or key == "const"
    }
    if "type" in node:
        # In upper case for Google; `int` is none (can4hou6joeng4/boss-agent-cli#367).
        lowered = [each.lower() for each in listed(node["type"]) if isinstance(each, str)]
        known = [each for each in dict.fromkeys(lowered) if each in _TYPES]
        node["type"] = known[0] if len(known) == 1 else known
    if node.pop("nullable", False) is True:
        # OpenAPI's and Google's word.
        for key, null in (("type", "null"), ("anyOf", {"type": "null"}), ("enum", None)):
            if node.get(key) and null not in listed(node[key]):
                node[key] = [*listed(node[key]), null]
    for bound, exclusive in (("maximum", "exclusiveMaximum"), ("minimum", "exclusiveMinimum")):
        # Draft 4: Dokploy/mcp#74.
        if node.get(exclusive) is True and bound in node:
            node[exclusive] = node.pop(bound)
    if isinstance(node.get("items"), list):
        # A tuple of older drafts: hyperdxio/hyperdx#2925.
        node["prefixItems"], node["items"] = node["items"], node.pop("additionalItems", {})
    if "array" in listed(node.get("type")):
        # OpenAI and Gemini want to be told: PrefectHQ/fastmcp#2464, NousResearch/hermes-agent#69924.
        node.setdefault("items", {})
    made = {key: _value(key, value) for key, value in node.items() if _is_valid(key, value)}
    changed += [key for key in {**given, **made} if given.get(key) != made.get(key)]
    return made


def listed(value: Any) -> list[Any]:
    """A list, or a list of what is none, as of the types of a schema."""
    return value if isinstance(value, list) else [value]


def _is_valid(key: str, value: Any) -> bool:
    if key in _NAMED:
        return isinstance(value, dict)
    if key in _SEVERAL or key == "required":
        # `required` is a boolean in draft 3.
        return isinstance(value, list) and bool(value or key == "required")
    return key not in _VALID or _VALID[key](value)


def _value(key: str, value: Any) -> Any:
    """A value of which the form is right, with a mapping for each schema in it."""
    if key in _ONE:
        return value if key == "additionalProperties" and isinstance(value, bool) else _schema(value)
    if key in _SEVERAL:
        return [_schema(item) for item in value]
    if key in _NAMED:
        return {name: _schema(item) for name, item in value.items()}
    return list(dict.fromkeys(item for item in value if isinstance(item, str))) if key == "required" else value


def _schema(value: Any) -> Schema:
    # A boolean is a schema, but not for every provider.
    return value if isinstance(value, dict) else {"not": {}} if value is False else {}


def without_lost_references(schema: Schema) -> Schema:
    """`schema` without the references that lead nowhere."""
    return without_references(schema, {each for each in references(schema) if target(schema, each) is None})


def without_references(schema: Schema, unwanted: Collection[str]) -> Schema:
    """`schema` without the references that are `unwanted`."""
    if not unwanted:
        return schema
    return mapped(schema, lambda node: {key: node[key] for key in node if key != "$ref" or node[key] not in unwanted})


def references(schema: Schema) -> frozenset[str]:
    """The references in `schema`."""
    return frozenset(node["$ref"] for node in nodes(schema) if "$ref" in node)


def target(schema: Schema, reference: str) -> Schema | None:
    """The schema in `schema` to which a reference such as `#/$defs/Part` leads; None for one of another kind."""
    head, *path = reference.split("/")
    found: Any = schema if head == "#" else None
    for step in path:
        if isinstance(found, list):
            found = {str(index): item for index, item in enumerate(found)}
        found = found.get(unquote(step).replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else None
