"""One list in three forms (docs/decisions/0013-one-list-three-formats.md)."""

import copy
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexus.services.context.formats import FORMATS, Converted
from tests.nexus.support.providers import anthropic_faults, gemini_faults, openai_faults
from tests.nexus.unit.services.context.canonical_lists import (
    OPENING,
    TOOLS,
    Said,
    assistant,
    boundaries,
    call,
    canonical_lists,
    result,
    said,
    said_in_anthropic,
    said_in_gemini,
    system,
    tool,
    tool_lists,
    user,
)

pytestmark = pytest.mark.heavy

FAULTS: dict[str, Callable[..., list[str]]] = {
    "openai": openai_faults,
    "anthropic": anthropic_faults,
    "gemini": gemini_faults,
}
SAID: dict[str, Callable[[Converted], Sequence[Said]]] = {
    "openai": lambda converted: said(converted.messages),
    "anthropic": lambda converted: list(said_in_anthropic(converted)),
    "gemini": lambda converted: list(said_in_gemini(converted)),
}


def as_canonical(spoken: Said, form: str) -> Said:
    """What a format may make of something: the ends of texts differ."""
    if form == "anthropic" and spoken[0] == "assistant":
        return ("assistant", spoken[1].rstrip())
    return spoken


def flat(converted: Converted) -> list[Any]:
    """All blocks in order, each with who says it, without marks; messages of OpenAI have no blocks."""
    blocks: list[Any] = [("system", block) for block in _system_blocks(converted)]
    for message in converted.messages:
        inner = message.get("parts", message["content"] if isinstance(message.get("content"), list) else None)
        blocks += [(message["role"], block) for block in inner] if inner is not None else [message]
    return [
        (who[0], {key: value for key, value in who[1].items() if key != "cache_control"})
        if isinstance(who, tuple)
        else who
        for who in blocks
    ]


def _system_blocks(converted: Converted) -> list[Any]:
    if isinstance(converted.system, dict):
        return list(converted.system["parts"])
    return list(converted.system or ())


@pytest.mark.parametrize("form", FORMATS)
@given(messages=canonical_lists(), tools=tool_lists(), stable=st.integers(-1, 30), goes_on=st.booleans())
@settings(deadline=None)
def test_every_provider_accepts_every_valid_list(
    form: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]], stable: int, *, goes_on: bool
) -> None:
    """By the types of its SDK and by its written rules."""
    assert FAULTS[form](FORMATS[form](messages, tools, stable=stable, goes_on=goes_on)) == []


@pytest.mark.parametrize("form", FORMATS)
@given(messages=canonical_lists(), tools=tool_lists(), stable=st.integers(-1, 30))
def test_the_same_is_said_in_the_same_order(
    form: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]], stable: int
) -> None:
    """Nothing is lost, added, moved or said by somebody else; only an opening may come first."""
    expected = [as_canonical(spoken, form) for spoken in said(messages)]
    spoken = list(SAID[form](FORMATS[form](messages, tools, stable=stable)))
    if len(spoken) > len(expected):
        spoken.remove(OPENING)
    assert spoken == expected


@pytest.mark.parametrize("form", FORMATS)
@given(messages=canonical_lists(), tools=tool_lists(), stable=st.integers(-1, 30), goes_on=st.booleans())
def test_nothing_that_is_given_is_changed_and_the_same_comes_out(
    form: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]], stable: int, *, goes_on: bool
) -> None:
    """Converting twice gives the same bytes."""
    before = copy.deepcopy((messages, tools))
    first, second = (FORMATS[form](messages, tools, stable=stable, goes_on=goes_on) for _ in range(2))
    assert (messages, tools) == before
    assert json.dumps([first.messages, first.tools, first.system]) == json.dumps(
        [second.messages, second.tools, second.system]
    )


@pytest.mark.parametrize("form", FORMATS)
@given(messages=canonical_lists(), data=st.data())
def test_what_comes_later_does_not_change_what_came_before(
    form: str, messages: list[dict[str, Any]], data: st.DataObject
) -> None:
    """Otherwise a cache would not hold in this format where it holds in OpenAI's."""
    count = data.draw(st.sampled_from(boundaries(messages)))
    beginning, whole = (flat(FORMATS[form](part, [], stable=0)) for part in (messages[:count], messages))
    if all(message["role"] == "system" for message in messages[:count]):
        beginning = [block for block in beginning if block[0] == "system"] if form != "openai" else beginning
    assert whole[: len(beginning)] == beginning


@pytest.mark.parametrize("form", FORMATS)
@given(messages=canonical_lists(), stable=st.integers(-1, 30))
def test_that_a_run_goes_on_changes_marks_alone(form: str, messages: list[dict[str, Any]], stable: int) -> None:
    """Nothing is said in another way; one of the four marks that Anthropic allows is left."""
    ends, goes_on = (FORMATS[form](messages, TOOLS, stable=stable, goes_on=value) for value in (False, True))
    assert flat(ends) == flat(goes_on)
    assert (ends.tools, ends.places, ends.notes) == (goes_on.tools, goes_on.places, goes_on.notes)
    assert (
        len(re.findall(r'"cache_control": \{"type": "ephemeral"\}', json.dumps([goes_on.system, goes_on.messages])))
        <= 3
    )


@pytest.mark.parametrize("form", FORMATS)
@given(messages=canonical_lists())
def test_a_place_says_where_a_message_went(form: str, messages: list[dict[str, Any]]) -> None:
    """At each place stands the first thing that the message says; None is for what `system` holds."""
    converted = FORMATS[form](messages, [], stable=0)
    assert len(converted.places) == len(messages)
    for message, place in zip(messages, converted.places, strict=True):
        if place is None:
            assert message["role"] == "system"
            continue
        found = converted.messages[place[0]]
        if form != "openai":
            key = "content" if form == "anthropic" else "parts"
            found = {**found, key: [found[key][place[1]]]}
        once = Converted(messages=[found], tools=[], places=[], notes=[])
        late = message if message["role"] != "system" or form == "openai" else user(message["content"])
        assert SAID[form](once)[0] == as_canonical(said([late])[0], form)


@pytest.mark.parametrize("form", ["anthropic", "gemini"])
@pytest.mark.parametrize("messages", [[system("S")], [assistant("A"), user("U")], [system("S"), assistant("A")]])
def test_where_no_user_speaks_first_an_opening_is_put(form: str, messages: list[dict[str, Any]]) -> None:
    """And a note says so."""
    converted = FORMATS[form](messages, [], stable=0)
    assert FAULTS[form](converted) == []
    assert "user texts that were put before the first message: 1" in converted.notes
    assert OPENING in SAID[form](converted)


def test_that_a_call_failed_is_said_in_the_form_of_the_provider() -> None:
    """OpenAI has no field for it: there the text says it."""
    messages = [
        user("U"),
        assistant(None, call("c1"), call("c2")),
        result("c1", "no", failed=True),
        result("c2", "yes"),
    ]
    found = {form: FORMATS[form](messages, [], stable=0) for form in FORMATS}
    assert all(FAULTS[form](converted) == [] for form, converted in found.items())
    assert found["openai"].messages[2] == {"role": "tool", "tool_call_id": "c1", "content": "no"}
    assert [block.get("is_error") for block in found["anthropic"].messages[2]["content"]] == [True, None]
    answers = [part["function_response"]["response"] for part in found["gemini"].messages[2]["parts"]]
    assert answers == [{"error": "no"}, {"output": "yes"}]


@pytest.mark.parametrize("form", ["anthropic", "gemini"])
def test_a_list_that_ends_with_an_assistant_is_noted(form: str) -> None:
    """Newer models refuse it, older ones go on from there, so it is left as it is."""
    converted = FORMATS[form]([user("U"), assistant("It is")], [], stable=0)
    assert converted.notes == ["the list ends with an assistant message, which newer models refuse"]
    assert list(SAID[form](converted))[-1] == ("assistant", "It is")


@pytest.mark.parametrize("form", ["anthropic", "gemini"])
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param('{"n": 1e999}', id="a number beyond all bounds"),
        pytest.param('{"deep": [{"n": -1e999}]}', id="one further down"),
        pytest.param('{"a": "\\ud800"}', id="half a surrogate pair"),
        pytest.param('{"a": ' + "[" * 40 + "]" * 40 + "}", id="deeper than an answer may be"),
        pytest.param('{"a": ' + "[" * 5000 + "]" * 5000 + "}", id="deeper than anything"),
    ],
)
def test_arguments_that_cannot_be_sent_as_an_object_are_given_as_text(form: str, arguments: str) -> None:
    """What the requester could not read is not put into an answer, and nothing of it is lost."""
    messages = [user("U"), assistant(None, call("c1", "search", arguments)), result("c1")]
    converted = FORMATS[form](messages, [], stable=0)
    assert FAULTS[form](converted) == []
    assert ("call", "c1", "search", json.dumps({"arguments": arguments})) in SAID[form](converted)
    assert converted.notes == ["calls with arguments that cannot be sent as an object: 1"]


def test_the_page_shows_what_comes_out() -> None:
    """The three examples of docs/orchestrators.md are one list in three forms."""
    page = (Path(__file__).parents[5] / "docs" / "orchestrators.md").read_text(encoding="utf-8")
    shown = re.findall(r"```json [a-z.-]+\n(.*?)```", page.partition("\n## One list in three forms\n")[2], re.DOTALL)
    given = json.loads(shown[0])
    for form, example in zip(("openai", "anthropic", "gemini"), shown, strict=True):
        converted = FORMATS[form](given["messages"], given["tools"], stable=2)
        system = {} if converted.system is None else {"system": converted.system}
        assert json.loads(example) == {"messages": converted.messages, "tools": converted.tools, **system}
        assert FAULTS[form](converted) == []


MARK = {"cache_control": {"type": "ephemeral"}}

# Each message has something of its own in its last block, by which a mark is told.
MARKED = [
    system("system 0"),
    system("system 1"),
    user("user 2"),
    user("user 3"),
    assistant("assistant 4", call("call_a"), call("call_4")),
    result("call_a", "result 5"),
    result("call_4", "result 6"),
    user("user 7"),
    assistant("assistant 8"),
    system("system 9"),
]
LAST_OF = [
    "system 0",
    "system 1",
    "user 2",
    "user 3",
    "call_4",
    "result 5",
    "result 6",
    "user 7",
    "assistant 8",
    "system 9",
]
# How many of these are a list by themselves: none that ends before a result.
ENDS = [1, 2, 3, 4, 7, 8, 9, 10]


def text_block(words: str) -> dict[str, Any]:
    """A block of text."""
    return {"type": "text", "text": words}


def in_anthropic(
    *messages: dict[str, Any], tools: tuple[dict[str, Any], ...] = (), stable: int = 0, goes_on: bool = False
) -> Converted:
    """The messages in Anthropic's form, which its API accepts."""
    found = FORMATS["anthropic"](messages, tools, stable=stable, goes_on=goes_on)
    assert anthropic_faults(found) == []
    return found


def blocks_of(found: Converted) -> list[dict[str, Any]]:
    """All blocks in order, those of `system` first."""
    return [*(found.system or ()), *(block for message in found.messages for block in message["content"])]


def marked(found: Converted) -> list[str]:
    """What stands in the blocks that carry a mark."""
    return [
        block.get("text") or block.get("content") or block["id"]
        for block in blocks_of(found)
        if block.get("cache_control") == {"type": "ephemeral"}
    ]


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("length", ENDS)
@pytest.mark.parametrize("stable", range(-1, len(MARKED) + 2))
def test_marks_stand_on_the_last_stable_block_on_the_system_and_on_the_end_of_a_run_that_goes_on(
    stable: int, length: int, *, goes_on: bool
) -> None:
    """At most three, none on another block or behind it, and none twice where two of these are one."""
    found = in_anthropic(*MARKED[:length], stable=stable, goes_on=goes_on)
    # What the list ends with as the system is about this list alone.
    end = length - (length == len(MARKED))
    count = min(stable, end)
    expected = [] if count < 1 else [LAST_OF[count - 1]] if count <= 2 else ["system 1", LAST_OF[count - 1]]
    if goes_on and LAST_OF[end - 1] not in expected:
        expected.append(LAST_OF[end - 1])
    assert marked(found) == expected


def test_the_next_call_of_a_run_repeats_what_was_marked() -> None:
    """With the same bytes but for the marks, which the provider does not count: it finds what it has written."""
    calls = [blocks_of(in_anthropic(*MARKED[:length], stable=4, goes_on=True)) for length in (7, 8, 9)]
    unmarked = [[{**block, "cache_control": None} for block in blocks] for blocks in calls]
    for index, sent in enumerate(calls[:-1]):
        assert sent[-1]["cache_control"]
        assert unmarked[index + 1][: len(sent)] == unmarked[index]
        assert "cache_control" not in calls[index + 1][len(sent) - 1]


@pytest.mark.parametrize("end", ["\n", " ", "\t\r\n", "\u3000", "\x1f"])
def test_the_text_of_an_assistant_does_not_end_in_white_space(end: str) -> None:
    """Neither at the end, where it is refused, nor before, so that it stays the same; a user's text may."""
    found = in_anthropic(user("U\n"), assistant(f"A1{end}"), user("U"), assistant(f" A2{end}"))
    assert [message["content"] for message in found.messages] == [
        [text_block("U\n")],
        [text_block("A1")],
        [text_block("U")],
        [text_block(" A2")],
    ]
    assert found.notes[0] == "assistant texts that ended in white space, which was cut: 2"


def test_a_schema_that_combines_others_at_its_top_becomes_one() -> None:
    """Parameters are kept, of two of one name the first; what only the others need is not needed."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "anyOf": [{"required": ["a"]}, {"properties": {"a": {}, "b": {"anyOf": [{}]}}, "required": ["b"]}, {}],
        "allOf": [{"properties": {"c": {}}, "required": ["c", "a"]}, {"properties": {"c": {"type": "null"}}}],
    }
    before = copy.deepcopy(schema)
    found = in_anthropic(user("U"), tools=(tool("act", schema),))
    assert schema == before
    assert found.tools[0]["input_schema"] == {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"anyOf": [{}]}, "c": {}},
        "required": ["a"],
    }
    assert found.notes == ["tools whose schema combines others at its top, and is shown as one: 1"]


UNSIGNED = {"thought_signature": "skip_thought_signature_validator"}


def in_gemini(*messages: dict[str, Any], tools: tuple[dict[str, Any], ...] = ()) -> Converted:
    """The messages in Gemini's form, which its API accepts."""
    found = FORMATS["gemini"](messages, tools, stable=len(messages))
    assert gemini_faults(found) == []
    return found


def calling(call_id: str, name: str, args: Any) -> dict[str, Any]:
    """A part that calls."""
    return {"function_call": {"name": name, "args": args, "id": call_id}}


def answering(call_id: str, name: str, output: str) -> dict[str, Any]:
    """A part that answers."""
    return {"function_response": {"name": name, "id": call_id, "response": {"output": output}}}


def test_tools_are_declared_in_one() -> None:
    """A tool without parameters has no schema, one that is not described is described by its name."""
    schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    found = in_gemini(
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
