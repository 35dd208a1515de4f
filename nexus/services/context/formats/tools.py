"""Tools as one provider takes them: what it would refuse is repaired, or left out and told. Pure (contract §11).

One tool that a provider refuses would have it refuse the whole request, and with that the tools of everybody else.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nexus.core.models import LeftOut, Why
from nexus.services.context.formats.base import counted, object_schema
from nexus.services.context.formats.rules import Rules
from nexus.services.text.sentences import between_words
from nexus.services.tools.definitions import shown_names
from nexus.services.tools.memory_tools import MEMORY_TOOLS
from nexus.services.tools.registry import REGISTERED_AS
from nexus.services.tools.schemas import (
    Schema,
    mapped,
    nodes,
    references,
    target,
    without_references,
)

_ENDS: Final = (". ", ".\n", "! ", "? ", "。", "！", "？", "\n")
_MARK: Final = "…"
_BESIDE_REFERENCE: Final = frozenset({"$ref", "default", "description"})
_WITH_PROPERTIES: Final = ("oneOf", "allOf", "anyOf")
_DEFINITIONS: Final = ("#/$defs/", "#/definitions/")

# What is said of each repair: of one tool, and of several.
_NOTES: Final[Mapping[str, tuple[str, str]]] = {
    "name": ("tool is registered under another name", "tools are registered under other names"),
    "description": ("tool description is cut", "tool descriptions are cut"),
    "top": (
        "tool schema combines others at its top and is shown as one",
        "tool schemas combine others at their top and are shown as one",
    ),
    "items": (
        "tool schema has an array that did not say what its items are",
        "tool schemas have arrays that did not say what their items are",
    ),
    "parameter": ("tool has parameters under other names", "tools have parameters under other names"),
    "reference": (
        "tool schema refers to itself, which is shown to one level",
        "tool schemas refer to themselves, which is shown to one level",
    ),
    "strict": (
        "tool is not strict: its schema does not allow it",
        "tools are not strict: their schemas do not allow it",
    ),
    "too many": ("tool is left out: there are too many", "tools are left out: there are too many"),
}


@dataclass(slots=True)
class ShownTools:
    """Tools with what a provider takes of them.

    Attributes:
        functions: each with `name`, `description`, and `parameters` and `strict` where it has them.
        left_out: what is not shown of them.
        renamed: `tools` and `parameters`: registered names by the names that are shown, those of parameters by tool.
    """

    functions: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    renamed: dict[str, dict[str, Any]] = field(default_factory=dict)
    repaired: Counter[str] = field(default_factory=Counter)

    def notes(self) -> list[str]:
        """How many tools were repaired in which way."""
        return [note for kind, texts in _NOTES.items() for note in counted(self.repaired[kind], *texts)]


def shown_tools(
    tools: Sequence[Mapping[str, Any]], rules: Rules, named: Callable[[str], str] = lambda name: name
) -> ShownTools:
    """`tools`, in their order, as the provider with these rules takes them; `named` gives the name that it is shown."""
    shown = ShownTools()
    for tool in _first(tools, rules.tools, shown):
        function = tool["function"]
        name = named(function["name"])
        registered = tool.get(REGISTERED_AS, function["name"])
        if name != registered:
            shown.renamed.setdefault("tools", {})[name] = registered
        shown.repaired["name"] += registered != function["name"]
        made: dict[str, Any] = {"name": name, "description": _cut(function.get("description") or "", rules.description)}
        if made["description"] != (function.get("description") or ""):
            shown.repaired["description"] += 1
            shown.left_out.append(LeftOut("tool description", name, Why.TOO_LONG))
        repaired: set[str] = set()
        if function.get("parameters") is not None:
            made["parameters"], names = _repaired(function["parameters"], rules, repaired)
            if names:
                shown.renamed.setdefault("parameters", {})[name] = names
        if isinstance(function.get("strict"), bool):
            made["strict"] = function["strict"] and not repaired and _is_strict(made.get("parameters", {}))
            repaired |= {"strict"} if made["strict"] != function["strict"] else set()
        shown.repaired.update(repaired)
        shown.functions.append({key: made[key] for key in (*function, *made) if key in made})
    return shown


def _first(tools: Sequence[Mapping[str, Any]], most: int | None, shown: ShownTools) -> list[Mapping[str, Any]]:
    """The tools that there is room for: those of the working memory before others."""
    if most is None or len(tools) <= most:
        return list(tools)
    names = [tool["function"]["name"] for tool in tools]
    own = [name for name in names if name in MEMORY_TOOLS]
    kept = {*own, *[name for name in names if name not in MEMORY_TOOLS][: most - len(own)]}
    shown.left_out += [LeftOut("tool", name, Why.TOO_MANY) for name in names if name not in kept]
    shown.repaired["too many"] += len(tools) - len(kept)
    return [tool for tool in tools if tool["function"]["name"] in kept]


def _cut(text: str, most: int | None) -> str:
    """`text`, or its beginning and `…`: to the end of a sentence if one is in the second half, else of a word."""
    if most is None or len(text) <= most:
        return text
    room = text[: most - 1]
    end = max(room.rfind(mark) + len(mark.rstrip()) for mark in _ENDS)
    at = end if end > most // 2 else between_words(text, most - 1)
    return text[:at].rstrip() + _MARK


def _repaired(parameters: Mapping[str, Any], rules: Rules, repaired: set[str]) -> tuple[Schema, dict[str, str]]:
    """The schema that a provider takes, and the registered names of parameters by other ones; adds to `repaired`."""
    schema = dict(parameters)
    if schema.get("type") != "object" or not isinstance(schema.get("properties"), Mapping):
        schema = object_schema(schema)
    if rules.top & schema.keys():
        schema = _as_one(schema, rules.top)
        repaired.add("top")
    if rules.array_items and any(map(_lacks_items, nodes(schema))):
        schema = mapped(schema, lambda node: {**node, "items": {}} if _lacks_items(node) else node)
        repaired.add("items")
    if not rules.own_references and references(schema):
        schema = _without_own_references(schema, repaired)
    names: dict[str, str] = {}
    if rules.parameter is not None:
        shown = shown_names(schema["properties"], rules.parameter)
        names = {other: name for name, other in shown.items() if other != name}
        if names:
            schema = _with_parameters_renamed(schema, shown)
            repaired.add("parameter")
    if "top" in repaired or names:
        # They may have led into what is gone.
        whole = schema
        schema = without_references(schema, lambda reference: target(whole, reference) is None, [])
    return schema, names


def _as_one(schema: Schema, refused: Collection[str]) -> Schema:
    """`schema` without the keywords that are refused at its top.

    Parameters that only those keywords name are kept. Which of them go together is lost: the tool has to check that.
    """
    plain = {key: value for key, value in schema.items() if key not in refused}
    plain["properties"] = dict(plain["properties"])
    for option in (option for word in _WITH_PROPERTIES if word in refused for option in _list(schema.get(word))):
        named = _get(option, "properties")
        for name, described in named.items() if isinstance(named, Mapping) else ():
            plain["properties"].setdefault(name, described)
    needed = [name for option in _list(schema.get("allOf")) for name in _list(_get(option, "required"))]
    if needed:
        plain["required"] = list(dict.fromkeys([*plain.get("required", ()), *needed]))
    return plain


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else None


def _lacks_items(node: Schema) -> bool:
    kind = node.get("type")
    return (kind == "array" or (isinstance(kind, list) and "array" in kind)) and not isinstance(node.get("items"), dict)


def _without_own_references(schema: Schema, repaired: set[str]) -> Schema:
    """`schema` where no definition leads to itself, and a reference has only beside it what may stand there."""
    leads_to = {reference: _led_to(schema, reference) for reference in references(schema)}
    own = {reference for reference, others in leads_to.items() if reference in others}

    changed: list[str] = []
    parts = {
        key: {
            name: without_references(part, own.__contains__, changed) if isinstance(part, dict) else part
            for name, part in value.items()
        }
        if key in {"$defs", "definitions"}
        else value
        for key, value in schema.items()
    }
    elsewhere = {reference for reference in own if not reference.startswith(_DEFINITIONS)}
    schema = without_references(parts, elsewhere.__contains__, changed)
    if changed:
        repaired.add("reference")
    return mapped(schema, _bare_reference)


def _led_to(schema: Schema, reference: str) -> set[str]:
    """The references in the schema to which `reference` leads, in those to which these lead, and so on."""
    found: set[str] = set()
    new = {reference}
    while new:
        inner = {other for each in new for other in references(target(schema, each) or {})}
        new = inner - found
        found |= inner
    return found


def _bare_reference(node: Schema) -> Schema:
    if "$ref" not in node:
        return node
    return {key: value for key, value in node.items() if key in _BESIDE_REFERENCE}


def _with_parameters_renamed(schema: Schema, shown: Mapping[str, str]) -> Schema:
    renamed = {**schema, "properties": {shown[name]: described for name, described in schema["properties"].items()}}
    if "required" in schema:
        renamed["required"] = [shown.get(name, name) for name in schema["required"]]
    return renamed


def _is_strict(schema: Schema) -> bool:
    """Whether a schema has what OpenAI demands of strict ones: objects are closed, and all their properties needed."""
    return all(
        node.get("additionalProperties") is False
        and sorted(node.get("required", ())) == sorted(node.get("properties", ()))
        for node in nodes(schema)
        if "properties" in node or node.get("type") == "object"
    )
