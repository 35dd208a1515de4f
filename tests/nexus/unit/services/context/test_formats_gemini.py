"""The form of Gemini's generateContent."""

import json
from typing import Any

import pytest
from google.genai.types import GenerateContentConfig, Part

from nexus.services.context.formats import Converted, convert
from tests.nexus.support.providers import gemini_faults
from tests.nexus.unit.services.context.canonical_lists import assistant, call, result, system, tool, user

UNSIGNED = {"thought_signature": "skip_thought_signature_validator"}


def converted(*messages: dict[str, Any], tools: tuple[dict[str, Any], ...] = ()) -> Converted:
    """The messages in Gemini's form, which its API accepts."""
    found = convert("gemini", messages, tools, stable=len(messages))
    assert gemini_faults(found) == []
    return found


def calling(call_id: str, name: str, args: Any) -> dict[str, Any]:
    """A part that calls."""
    return {"function_call": {"name": name, "args": args, "id": call_id}}


def answering(call_id: str, name: str, output: str) -> dict[str, Any]:
    """A part that answers."""
    return {"function_response": {"name": name, "id": call_id, "response": {"output": output}}}


def test_what_stands_where() -> None:
    """Text beside results becomes a content of its own; only the first of two calls has a signature."""
    found = converted(
        system("S1"),
        system("S2"),
        user("U1"),
        user("U2"),
        assistant("A1"),
        assistant("A2", call("c1", "search", '{"q": "x"}'), call("c2", "look")),
        result("c1", "R1"),
        result("c2", "R2"),
        user("pinned"),
        system("META"),
    )
    assert found.system == {"parts": [{"text": "S1"}, {"text": "S2"}]}
    assert found.messages == [
        {"role": "user", "parts": [{"text": "U1"}, {"text": "U2"}]},
        {
            "role": "model",
            "parts": [
                {"text": "A1"},
                {"text": "A2"},
                {**calling("c1", "search", {"q": "x"}), **UNSIGNED},
                calling("c2", "look", {}),
            ],
        },
        {"role": "user", "parts": [answering("c1", "search", "R1"), answering("c2", "look", "R2")]},
        {"role": "user", "parts": [{"text": "pinned"}, {"text": "META"}]},
    ]
    assert found.places == [None, None, (0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("1st", "_1st"),
        ("_1st", "__1st"),
        ("__1st", "___1st"),
        ("-x", "_-x"),
        ("9" * 64, "_" + "9" * 64),
        ("_x1", "_x1"),
        ("a-1", "a-1"),
        ("_", "_"),
    ],
)
def test_a_name_begins_with_a_letter_or_an_underscore(name: str, shown: str) -> None:
    """The same in call, response and declaration; one underscore less is the name again, so none becomes another's."""
    found = converted(user("U"), assistant(None, call("c1", name)), result("c1", "R"), tools=(tool(name),))
    assert found.messages[1]["parts"] == [{**calling("c1", shown, {}), **UNSIGNED}]
    assert found.messages[2]["parts"] == [answering("c1", shown, "R")]
    assert found.tools[0]["function_declarations"][0]["name"] == shown
    assert len(found.notes) == (name != shown)


def test_names_are_counted_once() -> None:
    """Two calls of one tool and its declaration change one name."""
    found = converted(
        user("U"), assistant(None, call("c1", "1"), call("c2", "1")), result("c1"), result("c2"), tools=(tool("1"),)
    )
    assert found.notes == ["1 tool name begins with no letter and has one more underscore before it"]


def test_tools_are_declared_in_one() -> None:
    """A tool without parameters has no schema, one that is not described is described by its name."""
    schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    found = converted(
        user("U"), tools=(tool("search", schema), tool("now", {"type": "object", "properties": {}}, description=""))
    )
    assert found.tools == [
        {
            "function_declarations": [
                {"name": "search", "description": "It helps.", "parameters_json_schema": schema},
                {"name": "now", "description": "now"},
            ]
        }
    ]


def test_a_tool_that_takes_anything_has_a_schema() -> None:
    """Parameters without names are parameters too."""
    found = converted(user("U"), tools=(tool("any", {"additionalProperties": {"type": "string"}}),))
    assert found.tools[0]["function_declarations"][0]["parameters_json_schema"] == {
        "type": "object",
        "properties": {},
        "additionalProperties": {"type": "string"},
    }


def test_without_tools_there_are_none() -> None:
    """A declaration of nothing would be refused."""
    assert converted(user("U")).tools == []


def test_without_a_system_message_there_is_no_system() -> None:
    """An instruction without text would be refused."""
    assert converted(user("U")).system is None


def test_the_sdk_takes_what_is_given_as_it_is() -> None:
    """In Python, as an orchestrator would hand it over, and it sends the signature unchanged."""
    found = converted(system("S"), user("U"), assistant(None, call("c1")), result("c1"), tools=(tool("search"),))
    config = GenerateContentConfig.model_validate({"system_instruction": found.system, "tools": found.tools})
    assert config.tools
    part = Part.model_validate(found.messages[1]["parts"][0])
    sent = json.loads(part.model_dump_json(by_alias=True, exclude_none=True))
    assert sent["thoughtSignature"] == UNSIGNED["thought_signature"]
