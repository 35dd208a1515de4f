"""Tools from their registration on the bus to what a provider is given of them (contract §3, §11)."""

import json
from functools import partial
from typing import Any

import pytest

from nexus.services.context.formats import Converted
from tests.nexus.e2e.harness import Document, Environment, a_message, a_request, requesting, serving
from tests.nexus.support.desk import Desk
from tests.nexus.support.providers import anthropic_faults, gemini_faults, openai_faults

FAULTS = {"openai": openai_faults, "anthropic": anthropic_faults, "gemini": gemini_faults}

SENT: list[Any] = [
    {"name": "files.read/text", "description": "Reads", "inputSchema": {"properties": {"lines": {"type": "array"}}}},
    {"name": "broken", "description": "Broken", "inputSchema": {"type": "string"}},
    {"name": "find", "description": "Finds. " * 200, "input_schema": {"properties": {"$top": {"type": "integer"}}}},
    {"functionDeclarations": [{"name": "look", "parameters": {"type": "OBJECT", "required": []}}]},
    {"type": "function", "name": "ask", "parameters": {"type": "object", "properties": {}}, "strict": True},
]
FILES = "files_read_text"
TOP = "_top"
SHOWN = ["ask", FILES, "find", "look"]


def names_of(content: Document, form: str) -> list[str]:
    """The names of the tools in an answer."""
    if form == "gemini":
        return [each["name"] for tool in content["tools"] for each in tool["function_declarations"]]
    return [tool["function"]["name"] if form == "openai" else tool["name"] for tool in content["tools"]]


def has_all_tools(content: Document, form: str) -> bool:
    """Whether it has all tools that could be understood."""
    return names_of(content, form) == SHOWN


@pytest.mark.once
@pytest.mark.usefixtures("mode")
async def test_tools_in_every_form_are_shown_in_every_form(environment: Environment) -> None:
    """One that cannot be understood is a dead letter with the reason, and refuses neither the others nor a request."""
    async with serving(environment), requesting(environment) as requester:
        await requester.publish("tools.register", a_message(SENT, role="SYSTEM"))
        for form, faults in FAULTS.items():
            content = await requester.ask_until(
                partial(a_request, run_metadata={"format": form}), partial(has_all_tools, form=form)
            )
            assert faults(Converted(content["messages"], content["tools"], [], [], content.get("system"))) == []
            parameters = {} if form != "anthropic" else {"parameters": {"find": {TOP: "$top"}}}
            assert content["context"]["renamed"] == {"tools": {FILES: "files.read/text"}, **parameters}
            cut = {"what": "tool description", "where": "find", "why": "is longer than a provider or a setting allows"}
            assert (cut in content["context"]["left_out"]) == (form == "openai")
        letters = json.loads(await Desk("dead-letters", environment).said("list", "--json"))["letters"]
    assert [letter["reason"] for letter in letters] == [
        "[1]: parameters of 'broken': a JSON schema of type 'object' is needed"
    ]
