"""What a provider refuses of a tool is repaired for that provider, and told; nobody else's tool suffers for it."""

import json
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexus.core.models import LeftOut, Why
from nexus.services.context.formats import FORMATS, Converted
from nexus.services.tools.definitions import shown_name
from nexus.services.tools.memory_tools import MEMORY_TOOLS, definitions
from nexus.services.tools.registry import ToolRegistry
from tests.nexus.support.providers import anthropic_faults, gemini_faults, openai_faults
from tests.nexus.unit.services.context.canonical_lists import tool, user

FAULTS: Final[dict[str, Callable[..., list[str]]]] = {
    "openai": openai_faults,
    "anthropic": anthropic_faults,
    "gemini": gemini_faults,
}
EVERY_FORM: Final = pytest.mark.parametrize("form", FORMATS)


def shown(form: str, *tools: dict[str, Any]) -> Converted:
    """The tools in that form, which its provider accepts."""
    converted = FORMATS[form]([user("U")], tools, stable=0)
    assert FAULTS[form](converted) == []
    return converted


def functions(converted: Converted) -> list[dict[str, Any]]:
    """Name, description and schema of each tool, in whatever form."""
    found = []
    for each in converted.tools:
        for item in each.get("function_declarations", [each.get("function", each)]):
            schema = next(
                (item[key] for key in ("parameters", "input_schema", "parameters_json_schema") if key in item), None
            )
            found.append({"name": item["name"], "description": item.get("description"), "schema": schema})
    return found


def registered(*sent: dict[str, Any]) -> list[dict[str, Any]]:
    """The definitions that a registry lists, when these were registered."""
    registry = ToolRegistry()
    registry.set_remote(sent)
    return registry.definitions()


@EVERY_FORM
def test_what_needs_no_repair_stays_as_it_is(form: str) -> None:
    """The tools of the working memory in every form, and for OpenAI to the byte."""
    converted = shown(form, *definitions())
    assert (converted.notes, converted.left_out, converted.renamed) == ([], [], {})
    given = [tool["function"] for tool in definitions()]
    assert functions(converted) == [
        {"name": each["name"], "description": each["description"], "schema": each["parameters"]} for each in given
    ]
    if form == "openai":
        assert json.dumps(converted.tools) == json.dumps(definitions())


@EVERY_FORM
def test_an_array_says_what_its_items_are(form: str) -> None:
    """At any depth, also beside `prefixItems`; anything is allowed where nothing was said."""
    arrays = {
        "a": {"type": ["array", "null"]},
        "b": {"type": "array", "prefixItems": [{"type": "string"}]},
        "c": {"anyOf": [{"type": "array"}, {"type": "null"}]},
        "d": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "array"}}},
        "e": {"$ref": "#/$defs/a"},
    }
    schema = {"type": "object", "properties": arrays, "$defs": {"a": {"type": "array"}}}
    converted = shown(form, *registered(tool("t", schema)))
    assert json.dumps(converted.tools).count('"items": {}') == 5
    assert (converted.notes, converted.left_out) == ([], [])


def test_a_long_description_is_cut_for_openai() -> None:
    """At the end of a word, else anywhere; others get the whole."""
    for text, end in (
        ("word " * 300, "word…"),
        ("x" * 2_000, "x…"),
        ("查找资料。" * 300, "…"),
        ("😀" * 2_000, "😀…"),
    ):
        converted = shown("openai", tool("wordy", None, text))
        description = functions(converted)[0]["description"]
        assert description.endswith(end)
        assert text.startswith(description[:-1])
        assert 1_000 < len(description) <= 1_024
        assert converted.left_out == [LeftOut("tool description", "wordy", Why.TOO_LONG)]
        assert functions(shown("anthropic", tool("wordy", None, text)))[0]["description"] == text
    assert functions(shown("openai", tool("t", None, "x" * 1_024)))[0]["description"] == "x" * 1_024


@pytest.mark.parametrize(("form", "most"), [("openai", 128), ("gemini", 512)])
def test_more_tools_than_there_may_be(form: str, most: int) -> None:
    """The first in their order are kept, the tools of the working memory before all others."""
    others = [tool(f"a{number:04}") for number in range(most + 2)]
    converted = shown(form, *others, *definitions())
    names, kept = [each["name"] for each in functions(converted)], most - len(MEMORY_TOOLS)
    assert names == [*(each["function"]["name"] for each in others[:kept]), *sorted(MEMORY_TOOLS)]
    assert converted.left_out == [LeftOut("tool", each["function"]["name"], Why.TOO_MANY) for each in others[kept:]]
    assert len(functions(shown("anthropic", *others))) == most + 2


@EVERY_FORM
def test_names_are_told_with_those_that_were_registered(form: str) -> None:
    """So that an orchestrator finds the tool that a model calls."""
    converted = shown(form, *registered(tool("files.read/text"), tool("3d_view"), tool("plain"), tool("x" * 70)))
    names = [each["name"] for each in functions(converted)]
    expected = {shown_name(name): name for name in ("files.read/text", "x" * 70, "3d_view")}
    assert converted.renamed == {"tools": expected}
    assert {*names} == {*expected, "plain"}


def test_parameters_that_anthropic_refuses_have_other_names() -> None:
    """Each its own, also in `required`; what refers to them leads nowhere and is left out. Others keep them."""
    schema = {
        "type": "object",
        "properties": {
            "$top": {"type": "integer"},
            "filter[id]": {"type": "object", "properties": {"$inner": {}}},
            "filter_id_": {"type": "string"},
            "a.b-c": {"$ref": "#/properties/filter[id]"},
            "n" * 65: {"type": "string"},
            "": {},
        },
        "required": ["$top", "filter[id]", "a.b-c"],
    }
    converted = shown("anthropic", tool("search", schema))
    made = functions(converted)[0]["schema"]
    names = converted.renamed["parameters"]["search"]
    other = {name: shown_as for shown_as, name in names.items()}
    assert {*other} == {"$top", "filter[id]", "n" * 65, ""}
    assert [*made["properties"]] == [other.get(name, name) for name in schema["properties"]]
    assert made["required"] == [other["$top"], other["filter[id]"], "a.b-c"]
    assert made["properties"][other["filter[id]"]] == {"type": "object", "properties": {"$inner": {}}}
    assert made["properties"]["a.b-c"] == {}
    assert functions(shown("openai", tool("search", schema)))[0]["schema"] == schema


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (
            {
                "properties": {"root": {"$ref": "#/$defs/Node"}},
                "$defs": {"Node": {"properties": {"next": {"$ref": "#/$defs/Node", "description": "D"}}}},
            },
            {
                "properties": {"root": {"$ref": "#/$defs/Node"}},
                "$defs": {"Node": {"properties": {"next": {"description": "D"}}}},
            },
        ),
        (
            {
                "properties": {"a": {"$ref": "#/$defs/A"}, "c": {"$ref": "#/$defs/C", "title": "", "default": 1}},
                "$defs": {"A": {"items": {"$ref": "#/$defs/B"}}, "B": {"not": {"$ref": "#/$defs/A"}}, "C": {}},
            },
            {
                "properties": {"a": {"$ref": "#/$defs/A"}, "c": {"$ref": "#/$defs/C", "default": 1}},
                "$defs": {"A": {"items": {}}, "B": {"not": {}}, "C": {}},
            },
        ),
        (
            {"properties": {"data": {"items": {"properties": {"child": {"$ref": "#/properties/data/items"}}}}}},
            {"properties": {"data": {"items": {"properties": {"child": {}}}}}},
        ),
        ({"properties": {"all": {"$ref": "#"}}}, {"properties": {"all": {}}}),
    ],
)  # fmt: skip
def test_a_schema_that_refers_to_itself_is_cut_for_gemini(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    """To one level. Others take it as it is."""
    whole = {"type": "object", **schema}
    converted = shown("gemini", tool("t", whole))
    assert functions(converted)[0]["schema"] == {"type": "object", **expected}
    assert converted.notes == ["tools whose schema refers to itself, and is shown to one level: 1"]
    assert functions(shown("openai", tool("t", whole)))[0]["schema"] == whole


def test_gemini_is_shown_no_property_as_required_that_is_not_there() -> None:
    """At any depth. Others take it as it is."""
    inner = {"type": "array", "items": {"type": "object", "required": ["b"]}}
    schema = {"type": "object", "properties": {"a": inner}, "required": ["a", "c"]}
    made = functions(shown("gemini", tool("t", schema)))[0]["schema"]
    assert (made["required"], made["properties"]["a"]["items"]["required"]) == (["a"], [])
    assert functions(shown("openai", tool("t", schema)))[0]["schema"] == schema


def test_a_schema_that_combines_others_at_its_top_is_one_for_openai_as_well() -> None:
    """And `enum` and `not` are refused there too."""
    schema = {
        "type": "object",
        "properties": {"a": {}},
        "oneOf": [{"properties": {"b": {}}}],
        "not": {},
        "enum": [{}],
    }
    converted = shown("openai", tool("t", schema))
    assert functions(converted)[0]["schema"] == {"type": "object", "properties": {"a": {}, "b": {}}}
    assert converted.notes == ["tools whose schema combines others at its top, and is shown as one: 1"]


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        ({"properties": {"a": {"type": "null"}}, "required": ["a"], "additionalProperties": False}, True),
        ({"properties": {"a": {"type": "null"}}, "additionalProperties": False}, False),
        ({"properties": {"a": {"type": "null"}}, "required": ["a"]}, False),
        ({"properties": {"a": {}}, "required": ["a"], "additionalProperties": False}, False),
        ({"properties": {"a": {"type": ["object", "null"]}}, "required": ["a"], "additionalProperties": False}, False),
    ],
)
def test_a_tool_is_strict_where_its_schema_allows_it(schema: dict[str, Any], *, strict: bool) -> None:
    """Openai refuses a strict tool whose objects are open; the others do not ask for it."""
    definition = tool("t", {"type": "object", **schema})
    definition["function"]["strict"] = True
    converted = shown("openai", definition)
    assert converted.tools[0]["function"]["strict"] is strict
    assert ("tools that are not strict, since their schema does not allow it: 1" in converted.notes) is not strict


_NAMES: Final = st.sampled_from(["a", "b", "$top", "filter[id]", "天气", "n" * 70, "a.b", "items", "type", "$ref"])
_REFERENCES: Final = st.sampled_from(["#", "#/$defs/a", "#/$defs/b", "#/properties/a", "#/none", "https://x.example/s"])
_TYPES: Final = st.sampled_from(["string", "array", "object", "ARRAY", "int", "any", ["array", "null"], None, 5])
_SCHEMAS: Final = st.recursive(
    st.booleans() | st.fixed_dictionaries({}, optional={"type": _TYPES, "$ref": _REFERENCES}),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "type": _TYPES,
            "items": inner | st.lists(inner, max_size=2),
            "properties": st.dictionaries(_NAMES, inner, max_size=3),
            "required": st.lists(_NAMES, max_size=2) | st.booleans(),
            "anyOf": st.lists(inner, max_size=2),
            "allOf": st.lists(inner, max_size=2),
            "prefixItems": st.lists(inner, max_size=2),
            "additionalProperties": inner,
            "not": inner,
            "enum": st.lists(st.none() | st.integers(), max_size=2) | st.none(),
            "minItems": st.sampled_from([1, "1", -1, True]),
            "exclusiveMinimum": st.booleans(),
            "description": st.sampled_from(["D", None]),
            "$ref": _REFERENCES,
        },
    ),
    max_leaves=12,
)
WHOLE_SCHEMAS: Final = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["object", "OBJECT", ["object", "null"]]),
        "properties": st.dictionaries(_NAMES, _SCHEMAS, max_size=4),
        "$defs": st.dictionaries(st.sampled_from("ab"), _SCHEMAS, max_size=2),
        "anyOf": st.lists(_SCHEMAS, max_size=2),
        "allOf": st.lists(_SCHEMAS, max_size=2),
        "oneOf": st.lists(_SCHEMAS, max_size=2),
        "additionalProperties": _SCHEMAS,
        "$ref": _REFERENCES,
        "not": _SCHEMAS,
        "$schema": st.just("http://json-schema.org/draft-07/schema#"),
    },
)
_SENT: Final = st.fixed_dictionaries(
    {"name": st.text(max_size=70) | _NAMES, "description": st.text(max_size=20) | st.just("It is long. " * 200)},
    optional={"inputSchema": WHOLE_SCHEMAS | st.booleans() | st.none(), "strict": st.booleans()},
)


@pytest.mark.heavy
@EVERY_FORM
@given(sent=st.lists(_SENT, max_size=5))
@settings(deadline=None)
def test_whatever_was_registered_every_provider_accepts_the_tools(form: str, sent: list[dict[str, Any]]) -> None:
    """Each tool is there, and each of its parameters under its name or the one that `renamed` has."""
    tools = registered(*sent)
    before = json.dumps(tools)
    converted = shown(form, *tools)
    assert json.dumps(tools) == before
    assert converted == FORMATS[form]([user("U")], tools, stable=0)
    names = converted.renamed.get("tools", {})
    made = functions(converted)
    assert sorted(names.get(each["name"], each["name"]) for each in made) == sorted(
        tool.get("registered_as", tool["function"]["name"]) for tool in tools
    )
    for each, given_tool in zip(made, tools, strict=True):
        parameters = converted.renamed.get("parameters", {}).get(each["name"], {})
        declared = {parameters.get(name, name) for name in (each["schema"] or {}).get("properties", {})}
        assert declared >= {*((given_tool["function"].get("parameters") or {}).get("properties") or {})}
