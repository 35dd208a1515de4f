"""How many tokens messages and tools take as they are sent (contract §7)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.adapters.tokenizer import open_tokenizer
from nexus.cli.demo import load_sample
from nexus.services.context.formats import FORMATS
from nexus.services.text.tokens import Measure
from tests.nexus.support.fake_counter import FakeCounter

FAKE = Measure(FakeCounter())
ESTIMATED = {"anthropic": (2, 1), "gemini": (3, 2)}
TEXTS = st.text(st.characters(exclude_categories=[]), max_size=40)
CALLS = st.builds(lambda name, arguments: {"id": "c", "function": {"name": name, "arguments": arguments}}, TEXTS, TEXTS)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": TEXTS | st.none()},
    optional={"tool_calls": st.lists(CALLS, max_size=3), "tool_call_id": TEXTS, "name": TEXTS},
)


def call(name: str, arguments: str, call_id: str = "call_1") -> dict[str, Any]:
    """A call as it stands in a message."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("message", "taken"),
    [
        ({"role": "user", "content": ""}, 3 + 1),
        ({"role": "user", "content": "a bc"}, 3 + 1 + 2),
        ({"role": "system", "content": "a"}, 3 + 2 + 1),
        ({"role": "user", "content": "a", "name": "ada"}, 3 + 1 + 1 + 1 + 1),
        ({"role": "assistant", "content": None, "tool_calls": [call("f", "{}")]}, 3 + 3 + 12 + 2),
        ({"role": "assistant", "tool_calls": [call("f", "{}")]}, 3 + 3 + 12 + 2),
        ({"role": "assistant", "content": "a", "tool_calls": [call("f", "{}"), call("g", "")]}, 3 + 3 + 1 + 26 + 1),
        ({"role": "tool", "content": "a", "tool_call_id": "call_of_some_length"}, 3 + 1 + 8 + 1),
        ({"role": "user", "content": [{"type": "text", "text": "a"}]}, 3 + 1 + 7),
        ({}, 3),
    ],
)
def test_a_message(message: dict[str, Any], taken: int) -> None:
    """It takes what its texts take, and what is documented to stand around them; ids take nothing."""
    assert FAKE.message(message) == taken


def test_tools() -> None:
    """None take nothing; others take their compact JSON, letters as they are."""
    tool = {"type": "function", "function": {"name": "wetter", "description": "Für Städte", "parameters": {}}}
    shown = '{"type":"function","function":{"name":"wetter","description":"Für Städte","parameters":{}}}'
    assert FAKE.tools([]) == 0
    assert FAKE.tools([tool]) == FakeCounter().count(shown)
    assert FAKE.tools([tool, tool]) == 2 * FAKE.tools([tool])


def test_tools_are_not_taken_for_too_few() -> None:
    """The estimate is above the recipe that OpenAI's cookbook gives for definitions of a gpt-4o."""
    measure, tools = Measure(open_tokenizer("o200k_base")), load_sample("tools")
    assert len(tools) > 1
    for tool in tools:
        function = tool["function"]
        recipe = 7 + 12 + measure.text(f"{function['name']}:{function['description']}")
        properties = function["parameters"].get("properties", {})
        recipe += 3 if properties else 0
        for name, described in properties.items():
            recipe += 3 + measure.text(f"{name}:{described.get('type', '')}:{described.get('description', '')}")
            options = described.get("enum", [])
            recipe += sum(3 + measure.text(str(option)) for option in options) - (3 if options else 0)
        assert measure.tools([tool]) >= recipe


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_exact(form: str) -> None:
    """Every form can be counted for, and says whether it is counted or estimated."""
    assert Measure(FakeCounter(), form).exact is (form not in ESTIMATED)


@pytest.mark.parametrize("form", ESTIMATED)
@given(text=TEXTS, message=MESSAGES)
def test_estimates(form: str, text: str, message: dict[str, Any]) -> None:
    """They are the count times the factor of the form, rounded up."""
    times, of = ESTIMATED[form]
    measure = Measure(FakeCounter(), form)
    told = [measure.text(text), measure.message(message), measure.scaled(len(text))]
    counted = [FAKE.text(text), FAKE.message(message), len(text)]
    assert told == [-(-times * tokens // of) for tokens in counted]


def test_what_a_provider_adds() -> None:
    """Where there are tools Anthropic adds a text of its own, and says of at most how many tokens."""
    tools = load_sample("tools")
    measure = Measure(FakeCounter(), "anthropic")
    assert measure.tools([]) == 0
    assert measure.tools(tools) == 2 * FAKE.tools(tools) + 530


def test_the_texts_of_a_real_list() -> None:
    """By far most of what a list takes are its texts, which are counted exactly."""
    counter = open_tokenizer("o200k_base")
    messages = [{"role": "user", "content": json.dumps(row)} for row in load_sample("conversation")]
    texts = sum(counter.count(message["content"]) for message in messages)
    assert Measure(counter).messages(messages) == texts + 4 * len(messages) + 3
