"""Definitions of tools in every form in which they are sent (contract §3, §11)."""

import re
from typing import Any, Final

import pytest
from google.genai import types as google
from hypothesis import example, given
from hypothesis import strategies as st

from nexus.services.tools.definitions import logged_name, read_definition, read_definitions, shown_name, shown_names
from nexus.services.tools.schemas import modern

SCHEMA: Final = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Where"}, "days": {"type": ["integer", "null"]}},
    "required": ["city"],
}
FUNCTION: Final = {"name": "weather", "description": "The weather", "parameters": SCHEMA}
INSIDE: Final = {"type": "function", "function": FUNCTION}
GOOGLE: Final = {
    "type": "OBJECT",
    "properties": {
        "city": {"type": "STRING", "description": "Where"},
        "days": {"type": "INTEGER", "nullable": True},
    },
    "required": ["city"],
}
DESCRIBED: Final = {"name": "weather", "description": "The weather"}


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(INSIDE, id="chat completions"),
        pytest.param({"function": FUNCTION}, id="without type"),
        pytest.param({"type": "function", **FUNCTION}, id="Responses API"),
        pytest.param(FUNCTION, id="chat completions before tools"),
        pytest.param({**DESCRIBED, "input_schema": SCHEMA}, id="Anthropic"),
        pytest.param({**DESCRIBED, "type": "custom", "input_schema": SCHEMA}, id="Anthropic with type"),
        pytest.param({**DESCRIBED, "inputSchema": SCHEMA, "annotations": {"readOnlyHint": True}}, id="MCP"),
        pytest.param({"name": "weather", "title": "The weather", "inputSchema": SCHEMA}, id="MCP with a title alone"),
        pytest.param({**DESCRIBED, "parametersJsonSchema": SCHEMA}, id="Gemini, JSON schema"),
        pytest.param({**DESCRIBED, "parameters": GOOGLE}, id="Gemini"),
        pytest.param({"functionDeclarations": [{**DESCRIBED, "parameters": GOOGLE}]}, id="Gemini, a list"),
        pytest.param({"function_declarations": [{**DESCRIBED, "parameters": GOOGLE}]}, id="Gemini, Python"),
        pytest.param([{"functionDeclarations": [{**DESCRIBED, "parameters": GOOGLE}]}], id="Gemini, tools"),
        pytest.param({"tools": [{**DESCRIBED, "inputSchema": SCHEMA}], "nextCursor": None}, id="the list of a server"),
        pytest.param([INSIDE], id="a list"),
    ],
)
def test_every_form_becomes_the_one_inside(sent: Any) -> None:
    """Names, descriptions, parameters and which of them are needed stay."""
    read, faults = read_definitions(sent)
    assert ([each.checked for each in read], faults) == ([INSIDE], [])


def test_what_the_sdk_of_google_makes_is_understood() -> None:
    """With all its empty fields."""
    schema = google.Schema(
        type=google.Type.OBJECT,
        properties={
            "tags": google.Schema(type=google.Type.ARRAY, items=google.Schema(type=google.Type.STRING), min_items=1)
        },
    )
    declared = google.FunctionDeclaration(name="tag", description="Tags", parameters=schema)
    made = google.Tool(function_declarations=[declared]).model_dump(mode="json")
    read, faults = read_definitions(made)
    assert faults == []
    assert read[0].checked["function"] == {
        "name": "tag",
        "description": "Tags",
        "parameters": {
            "type": "object",
            "properties": {"tags": {"type": "array", "items": {"type": "string"}, "minItems": 1}},
        },
    }


@pytest.mark.parametrize("missing", [{}, {"parameters": None}, {"inputSchema": None}])
def test_a_tool_without_parameters(missing: dict[str, Any]) -> None:
    """It has none, whatever stands for that."""
    assert read_definition({**DESCRIBED, **missing}).checked["function"] == DESCRIBED


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"name": "a"}, "function: a mapping with name, description and parameters is needed"),
        ({"type": "web_search_20250305", "name": "web_search"}, "type: 'function' is the only type of tool"),
        ({"type": "custom", "custom": {"name": "sql"}}, "function: a mapping with name"),
        ({"name": "", "description": "d"}, "name: a text of 1 to 256 characters is needed"),
        ({"name": 5, "inputSchema": {}}, "name: a text of 1 to 256 characters is needed"),
        ({"name": "a", "inputSchema": {"type": "array"}}, "parameters of 'a': a JSON schema of type 'object'"),
        ({"name": "a", "parameters": {"type": "STRING"}}, "parameters of 'a': a JSON schema of type 'object'"),
        ({"name": "a", "inputSchema": {"type": ["string", "null"]}}, "parameters of 'a': a JSON schema of type"),
        ({"name": "a", "inputSchema": False}, "parameters of 'a': a JSON schema of type 'object' is needed"),
        ({"name": "a", "inputSchema": {"properties": {"x": "number"}}}, "parameters of 'a': properties must map"),
        ([], "definition: a mapping is needed, not list"),
        ({"tools": []}, "function: a mapping with name"),
        ([{"function_declarations": [DESCRIBED, 5]}], "[0].function_declarations[1]: definition: a mapping is needed"),
    ],
)
def test_what_cannot_be_understood_is_refused_with_the_reason(wrong: Any, said: str) -> None:
    """And with its place in a list."""
    _, faults = read_definitions(wrong)
    assert len(faults) == 1
    assert faults[0].startswith(said)


@pytest.mark.parametrize(
    ("older", "draft_2020_12"),
    [
        pytest.param({"type": "STRING"}, {"type": "string"}, id="Google's types"),
        pytest.param({"type": "int"}, {}, id="types of Python"),
        pytest.param({"type": "string", "nullable": True}, {"type": ["string", "null"]}, id="OpenAPI"),
        pytest.param({"type": "array"}, {"type": "array", "items": {}}, id="an array of anything"),
        pytest.param({"any_of": [{"min_items": 1}]}, {"anyOf": [{"minItems": 1}]}, id="names of Python"),
        pytest.param({"type": "any"}, {}, id="a type that there is not"),
        pytest.param({"type": ["string", "any", "null"]}, {"type": ["string", "null"]}, id="one of several"),
        pytest.param({"type": "string", "required": True}, {"type": "string"}, id="required of draft 3"),
        pytest.param({"minimum": 1, "exclusiveMinimum": True}, {"exclusiveMinimum": 1}, id="draft 4"),
        pytest.param({"minimum": 1, "exclusiveMinimum": False}, {"minimum": 1}, id="draft 4, inclusive"),
        pytest.param(
            {"items": [{"type": "string"}, True]}, {"prefixItems": [{"type": "string"}, {}], "items": {}}, id="tuple"
        ),
        pytest.param(
            {"items": [{}], "additionalItems": False},
            {"prefixItems": [{}], "items": {"not": {}}},
            id="closed tuple",
        ),
        pytest.param({"items": True}, {"items": {}}, id="anything"),
        pytest.param({"anyOf": [True, False]}, {"anyOf": [{}, {"not": {}}]}, id="booleans"),
        pytest.param({"additionalProperties": False}, {"additionalProperties": False}, id="a boolean that stays"),
        pytest.param({"anyOf": [], "enum": [], "oneOf": None, "enums": []}, {"enums": []}, id="empty"),
        pytest.param({"minLength": "2", "maxItems": -1, "maximum": "x", "minItems": 1}, {"minItems": 1}, id="counts"),
        pytest.param({"multipleOf": 0, "uniqueItems": "yes", "title": None}, {}, id="values of other types"),
        pytest.param({"$ref": "#/$defs/none"}, {}, id="a reference to nothing"),
        pytest.param({"$ref": "https://example.com/s.json", "title": "s"}, {"title": "s"}, id="a reference elsewhere"),
        pytest.param(
            {"properties": {"items": {"items": [{}]}}},
            {"properties": {"items": {"prefixItems": [{}], "items": {}}}},
            id="a property of that name",
        ),
        pytest.param(
            {"default": {"items": [True]}, "enum": [{"type": "X"}]},
            {"default": {"items": [True]}, "enum": [{"type": "X"}]},
            id="values",
        ),
    ],
)
def test_older_forms_of_schemas(older: dict[str, Any], draft_2020_12: dict[str, Any]) -> None:
    """At any depth, and each change is told."""
    assert modern({"properties": {"a": {"items": older}}})[0] == {"properties": {"a": {"items": draft_2020_12}}}
    made, changed = modern(older)
    assert made == draft_2020_12
    assert bool(changed) == (made != older)


def test_the_reference_of_a_whole_schema_is_followed() -> None:
    """Generators that know no other way put the object itself among the definitions."""
    whole = {
        "$ref": "#/$defs/Args",
        "$defs": {"Args": {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}}, "A": {}},
    }
    read = read_definition({"name": "f", "inputSchema": whole})
    parameters = read.checked["function"]["parameters"]
    assert parameters == {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": whole["$defs"]}
    assert read.changed == []


def test_the_reference_of_a_whole_schema_leads_anywhere() -> None:
    """Also to what is no schema, and then it is brought into the form of one."""
    referred = {"type": 5, "properties": {"a": {"type": "STRING"}}, "required": ["a", []], "minProperties": 10**400}
    read = read_definition({"name": "f", "inputSchema": {"$ref": "#/x/1", "x": [5, referred]}})
    parameters = read.checked["function"]["parameters"]
    assert {name: parameters[name] for name in parameters if name != "x"} == {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
    }
    assert {*read.changed} == {"type", "required", "minProperties"}
    nowhere = {"properties": {"a": {"$ref": f"#/allOf/{'9' * 5_000}"}}, "allOf": [{}]}
    assert read_definition({"name": "f", "inputSchema": nowhere}).changed == ["$ref"]


def test_integers_beyond_those_of_stores() -> None:
    """Schemas of other languages have them as bounds; they are kept as floats."""
    largest = {"maximum": 2**64 - 1, "minimum": -(10**400), "default": 2**63, "const": 2**63 - 1}
    read = read_definition({"name": "f", "inputSchema": {"properties": {"a": largest}}})
    bounds = read.checked["function"]["parameters"]["properties"]["a"]
    assert bounds == {"maximum": 2.0**64, "default": 2.0**63, "const": 2**63 - 1}
    assert {name for name, bound in bounds.items() if isinstance(bound, float)} == {"maximum", "default"}


_VALUES: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.sampled_from(["object", "ARRAY", "#/$defs/a", "#/a", "#/enum/0", "#", "1", "", 10**400, "1e999"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "items",
                    "properties",
                    "a",
                    "anyOf",
                    "$ref",
                    "$defs",
                    "required",
                    "minimum",
                    "exclusiveMinimum",
                    "additionalItems",
                    "prefixItems",
                    "enum",
                    "nullable",
                    "maxItems",
                    "not",
                    "additionalProperties",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["type", "properties", "$ref", "$defs", "required", "anyOf", "a"]), _VALUES))
@example({"$ref": "#/a", "a": {"type": None}})
@example({"$ref": "#/a", "a": {"maximum": 10**400}})
@example({"$ref": None, "required": ["object"]})
def test_what_was_read_is_read_again_as_it_is(schema: dict[str, Any]) -> None:
    """Stored definitions are read again and again; nothing else than a ValueError comes out."""
    try:
        read = read_definition({"name": "f", "inputSchema": schema})
    except ValueError:
        return
    again = read_definition(read.checked)
    assert again.checked == read.checked
    assert again.changed == []


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("web_search", "web_search"),
        ("my secret plan", "(a name of 14 characters)"),
        ("x" * 65, "(a name of 65 characters)"),
    ],
)
def test_a_name_that_may_be_any_text_is_not_logged(name: str, shown: str) -> None:
    """Tools may have any name, and logs hold no text of anybody."""
    assert logged_name(name) == shown


@given(
    st.sets(
        st.text(min_size=1, max_size=80) | st.sampled_from(["a.b", "a/b", "a_b", "a b", "1_b", "-b", "_1_b"]),
        max_size=12,
    )
)
def test_shown_names_are_valid_and_differ(names: set[str]) -> None:
    """Whatever the names are; those that providers take stay."""
    shown = shown_names(names)
    assert len(set(shown.values())) == len(names)
    for name, other in shown.items():
        assert re.fullmatch("[A-Za-z_][A-Za-z0-9_-]{0,63}", other)
        assert shown_name(other) == other
        assert other.startswith(shown_name(name)[:55])
        assert other == name or not re.fullmatch("[A-Za-z_][A-Za-z0-9_-]{0,63}", name)
