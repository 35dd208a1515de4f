"""Tools as one provider takes them: what it would refuse is repaired, or left out and told. Pure (contract §11).

One tool that a provider refuses would have it refuse the whole request, and with that the tools of everybody else.
What is refused by several is repaired when a tool is registered (`nexus/services/tools/schemas.py`).
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nexus.core.models import LeftOut, Why
from nexus.services.context.formats.rules import Rules
from nexus.services.text.sentences import between_words
from nexus.services.tools.definitions import shown_names
from nexus.services.tools.memory_tools import MEMORY_TOOLS
from nexus.services.tools.registry import REGISTERED_AS
from nexus.services.tools.schemas import (
    Schema,
    listed,
    mapped,
    nodes,
    references,
    target,
    without_lost_references,
    without_references,
)

_MARK: Final = "…"
_SHOWN: Final = ("name", "description", "parameters", "strict")
_BESIDE_REFERENCE: Final = frozenset({"$ref", "default", "description"})
_WITH_PROPERTIES: Final = ("allOf", "anyOf", "oneOf")
_DEFINITIONS: Final = ("$defs", "definitions")
_TYPED_BY: Final = frozenset({"$ref", "anyOf", "type"})

_COMBINES: Final = "tools whose schema combines others at its top, and is shown as one"
_RECURS: Final = "tools whose schema refers to itself, and is shown to one level"
_NOT_STRICT: Final = "tools that are not strict, since their schema does not allow it"


@dataclass(slots=True)
class ShownTools:
    """Tools with what a provider takes of them.

    Attributes:
        functions: each with `name`, `description`, and `parameters` and `strict` where it has them.
        left_out: what is not shown of them.
        renamed: `tools` and `parameters`: registered names by the names that are shown, those of parameters by tool.
        repaired: how many were changed in a way that neither of these two tells, by what was done.
    """

    functions: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    renamed: dict[str, dict[str, Any]] = field(default_factory=dict)
    repaired: Counter[str] = field(default_factory=Counter)


def shown_tools(tools: Sequence[Mapping[str, Any]], rules: Rules) -> ShownTools:
    """`tools`, in their order, as the provider with these rules takes them."""
    shown = ShownTools()
    kept, others = first_tools(tools, rules)
    shown.left_out += [LeftOut("tool", name, Why.TOO_MANY) for name in others]
    for tool in kept:
        function = {key: tool["function"][key] for key in _SHOWN if tool["function"].get(key) is not None}
        name = function["name"]
        if REGISTERED_AS in tool:
            shown.renamed.setdefault("tools", {})[name] = tool[REGISTERED_AS]
        if rules.description is not None and len(function["description"]) > rules.description:
            at = between_words(function["description"], rules.description - len(_MARK))
            function["description"] = function["description"][:at].rstrip() + _MARK
            shown.left_out.append(LeftOut("tool description", name, Why.TOO_LONG))
        if "parameters" in function:
            function["parameters"], names = _repaired(function["parameters"], rules, shown.repaired)
            if names:
                shown.renamed.setdefault("parameters", {})[name] = {other: given for given, other in names.items()}
        if "strict" in function and not (function["strict"] is True and _is_strict(function.get("parameters", {}))):
            shown.repaired[_NOT_STRICT] += bool(function["strict"])
            function["strict"] = False
        shown.functions.append(function)
    return shown


def first_tools(tools: Sequence[Mapping[str, Any]], rules: Rules) -> tuple[list[Mapping[str, Any]], list[str]]:
    """The tools that a provider has room for, those of the working memory before others; and the names of the rest."""
    names = [tool["function"]["name"] for tool in tools]
    kept = {*sorted(names, key=lambda name: name not in MEMORY_TOOLS)[: rules.tools]}
    return [tool for tool in tools if tool["function"]["name"] in kept], [name for name in names if name not in kept]


def _repaired(given: Schema, rules: Rules, repaired: Counter[str]) -> tuple[Schema, dict[str, str]]:
    """The schema that a provider takes, and the other names of its parameters by those that were registered."""
    schema, names = given, dict[str, str]()
    if not rules.recursion:
        schema = mapped(schema, _plain)
    if rules.top & schema.keys():
        schema = _as_one(schema, rules.top)
        repaired[_COMBINES] += 1
    if rules.parameter is not None:
        names = shown_names(schema["properties"], rules.parameter)
        if any(other != name for name, other in names.items()):
            properties = {names[name]: described for name, described in schema["properties"].items()}
            required = [names.get(name, name) for name in schema.get("required", ())]
            schema = {**schema, "properties": properties, "required": required}
    if schema is not given:
        # Some may have led into what is gone.
        schema = without_lost_references(schema)
    if not rules.recursion and (own := _recursive(schema)):
        schema = _to_one_level(schema, own)
        repaired[_RECURS] += 1
    return schema, {name: other for name, other in names.items() if other != name}


def _as_one(schema: Schema, refused: Collection[str]) -> Schema:
    """`schema` without the keywords that are refused at its top.

    Parameters that only those keywords name are kept. Which of them go together is lost: the tool has to check that.
    """
    options = [option for word in _WITH_PROPERTIES if word in refused for option in schema.get(word, ())]
    named = {name: of for option in reversed(options) for name, of in option.get("properties", {}).items()}
    plain = {key: value for key, value in schema.items() if key not in refused}
    return {**plain, "properties": named | schema["properties"]}


def _plain(node: Schema) -> Schema:
    """`node` with nothing beside a reference that may not stand there, and no property required that it has not."""
    if "$ref" in node:
        return {key: value for key, value in node.items() if key in _BESIDE_REFERENCE}
    required = [name for name in node.get("required", ()) if name in node.get("properties", ())]
    return {**node, "required": required} if "required" in node else node


def _recursive(schema: Schema) -> set[str]:
    """The references in `schema` that lead to themselves."""
    leads_to = {reference: references(target(schema, reference) or {}) for reference in references(schema)}
    own = set[str]()
    for reference, first in leads_to.items():
        found, new = set[str](), first
        while new:
            found |= new
            new = frozenset().union(*(leads_to.get(each, ()) for each in new)) - found
        if reference in found:
            own.add(reference)
    return own


def _to_one_level(schema: Schema, own: Collection[str]) -> Schema:
    """`schema` where no definition leads to itself by the references `own`."""
    definitions = without_references({key: schema[key] for key in _DEFINITIONS if key in schema}, own)
    elsewhere = {reference for reference in own if not reference.startswith(tuple(f"#/{key}/" for key in _DEFINITIONS))}
    return without_references({**schema, **definitions}, elsewhere)


def _is_strict(schema: Schema) -> bool:
    """Whether a schema has what OpenAI demands of strict ones (bytedance/trae-agent#173, can1357/oh-my-pi#211).

    Objects are closed, all their properties needed, and all types said.
    """
    return all(
        node.keys() & _TYPED_BY
        and ("object" not in listed(node.get("type")) or node.get("additionalProperties") is False)
        and sorted(node.get("required", ())) == sorted(node.get("properties", ()))
        for node in nodes(schema)
    )
