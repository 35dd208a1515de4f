"""The form of Anthropic's Messages API."""

import copy
from typing import Any

import pytest

from nexus.services.context.formats import Converted, convert
from tests.nexus.support.providers import anthropic_faults
from tests.nexus.unit.services.context.canonical_lists import assistant, call, result, system, tool, user

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


def text(words: str) -> dict[str, Any]:
    """A block of text."""
    return {"type": "text", "text": words}


def converted(
    *messages: dict[str, Any], tools: tuple[dict[str, Any], ...] = (), stable: int = 0, goes_on: bool = False
) -> Converted:
    """The messages in Anthropic's form, which its API accepts."""
    found = convert("anthropic", messages, tools, stable=stable, goes_on=goes_on)
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


def test_what_stands_where() -> None:
    """A short list with two calls at once, pinned text after the results and a system message at the end."""
    found = converted(
        system("S"),
        user("U1"),
        user("U2"),
        assistant("A", call("c1", "search", '{"q": "x"}'), call("c2", "2nd")),
        result("c1", "R1"),
        result("c2", "R2"),
        user("pinned"),
        system("META"),
        stable=3,
    )
    assert found.system == [text("S") | MARK]
    assert found.messages == [
        {"role": "user", "content": [text("U1"), text("U2") | MARK]},
        {
            "role": "assistant",
            "content": [
                text("A"),
                {"type": "tool_use", "id": "c1", "name": "search", "input": {"q": "x"}},
                {"type": "tool_use", "id": "c2", "name": "2nd", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "R1"},
                {"type": "tool_result", "tool_use_id": "c2", "content": "R2"},
                text("pinned"),
                text("META"),
            ],
        },
    ]
    assert found.places == [None, (0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2), (2, 3)]


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("length", ENDS)
@pytest.mark.parametrize("stable", range(-1, len(MARKED) + 2))
def test_marks_stand_on_the_last_stable_block_on_the_system_and_on_the_end_of_a_run_that_goes_on(
    stable: int, length: int, *, goes_on: bool
) -> None:
    """At most three, none on another block or behind it, and none twice where two of these are one."""
    found = converted(*MARKED[:length], stable=stable, goes_on=goes_on)
    # What the list ends with as the system is about this list alone.
    end = length - (length == len(MARKED))
    count = min(stable, end)
    expected = [] if count < 1 else [LAST_OF[count - 1]] if count <= 2 else ["system 1", LAST_OF[count - 1]]
    if goes_on and LAST_OF[end - 1] not in expected:
        expected.append(LAST_OF[end - 1])
    assert marked(found) == expected


@pytest.mark.parametrize(("length", "last"), [(7, "tool_result"), (8, "text"), (9, "text")])
def test_the_last_block_of_a_run_that_goes_on_is_of_any_kind(length: int, last: str) -> None:
    """A result as a rule: that is what a tool loop sends."""
    found = converted(*MARKED[:length], goes_on=True).messages[-1]["content"][-1]
    assert (found["type"], found["cache_control"]) == (last, {"type": "ephemeral"})


def test_the_next_call_of_a_run_repeats_what_was_marked() -> None:
    """With the same bytes but for the marks, which the provider does not count: it finds what it has written."""
    calls = [blocks_of(converted(*MARKED[:length], stable=4, goes_on=True)) for length in (7, 8, 9)]
    unmarked = [[{**block, "cache_control": None} for block in blocks] for blocks in calls]
    for index, sent in enumerate(calls[:-1]):
        assert sent[-1]["cache_control"]
        assert unmarked[index + 1][: len(sent)] == unmarked[index]
        assert "cache_control" not in calls[index + 1][len(sent) - 1]


@pytest.mark.parametrize(("stable", "expected"), [(0, []), (1, ["U1"]), (2, ["U2"])])
def test_without_a_system_there_is_one_mark(stable: int, expected: list[str]) -> None:
    """On the last stable block."""
    assert marked(converted(user("U1"), user("U2"), stable=stable)) == expected


def test_only_system_messages_are_all_system() -> None:
    """A user has to speak, so the opening does; it is not what a mark is on, for it goes when somebody speaks."""
    found = converted(system("S1"), system("S2"), stable=2)
    assert found.system == [text("S1"), text("S2") | MARK]
    assert [message["role"] for message in found.messages] == ["user"]
    assert found.places == [None, None]
    assert converted(system("S1"), system("S2"), stable=2, goes_on=True) == found


def test_without_a_system_message_there_is_no_system() -> None:
    """An empty list would be refused."""
    assert converted(user("U")).system is None


def test_places_count_the_opening() -> None:
    """The first message that was given stands in the second."""
    assert converted(assistant("A"), user("U")).places == [(1, 0), (2, 0)]


@pytest.mark.parametrize("end", ["\n", " ", "\t\r\n", "\u3000", "\x1f"])
def test_the_text_of_an_assistant_does_not_end_in_white_space(end: str) -> None:
    """Neither at the end, where it is refused, nor before, so that it stays the same; a user's text may."""
    found = converted(user("U\n"), assistant(f"A1{end}"), user("U"), assistant(f" A2{end}"))
    assert [message["content"] for message in found.messages] == [
        [text("U\n")],
        [text("A1")],
        [text("U")],
        [text(" A2")],
    ]
    assert found.notes[0] == "2 assistant texts ended in white space, which was cut"


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object"}, {"properties": {}}])
def test_a_tool_without_parameters_has_the_schema_of_an_object(parameters: Any) -> None:
    """The API needs one."""
    found = converted(user("U"), tools=(tool("now", parameters),))
    assert found.tools == [
        {"name": "now", "description": "It helps.", "input_schema": {"type": "object", "properties": {}}}
    ]


def test_a_blank_description_is_left_out() -> None:
    """It says nothing, and is not needed."""
    assert "description" not in converted(user("U"), tools=(tool("now", description=" "),)).tools[0]


def test_a_schema_that_combines_others_at_its_top_becomes_one() -> None:
    """Parameters are kept, of two of one name the first; what one of several needs is not needed."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "anyOf": [{"required": ["a"]}, {"properties": {"a": {}, "b": {"anyOf": [{}]}}, "required": ["b"]}, True],
        "allOf": [{"properties": {"c": {}}, "required": ["c", "a"]}, {"properties": None}],
        "oneOf": None,
    }
    before = copy.deepcopy(schema)
    found = converted(user("U"), tools=(tool("act", schema),))
    assert schema == before
    assert found.tools[0]["input_schema"] == {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"anyOf": [{}]}, "c": {}},
        "required": ["a", "c"],
    }
    assert found.notes == ["1 tool schema combines others at its top and is shown as one"]
