"""One list in three forms: what holds of all of them (docs/decisions/0013-one-list-three-formats.md)."""

import copy
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexus.services.context.formats import FORMATS, Converted, convert
from tests.nexus.support.providers import anthropic_faults, gemini_faults, openai_faults
from tests.nexus.unit.services.context.canonical_lists import (
    AGENT,
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
    """What a format may make of something: the ends of texts and the beginnings of names differ."""
    if form == "anthropic" and spoken[0] == "assistant":
        return ("assistant", spoken[1].rstrip())
    if form == "gemini" and spoken[0] == "call" and re.match("_*[0-9-]", spoken[2]):
        return ("call", spoken[1], "_" + spoken[2], spoken[3])
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
    assert FAULTS[form](convert(form, messages, tools, stable=stable, goes_on=goes_on)) == []


@pytest.mark.parametrize("form", FORMATS)
@given(messages=canonical_lists(), tools=tool_lists(), stable=st.integers(-1, 30))
def test_the_same_is_said_in_the_same_order(
    form: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]], stable: int
) -> None:
    """Nothing is lost, added, moved or said by somebody else; only an opening may come first."""
    expected = [as_canonical(spoken, form) for spoken in said(messages)]
    spoken = list(SAID[form](convert(form, messages, tools, stable=stable)))
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
    first, second = (convert(form, messages, tools, stable=stable, goes_on=goes_on) for _ in range(2))
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
    beginning, whole = (flat(convert(form, part, [], stable=0)) for part in (messages[:count], messages))
    if all(message["role"] == "system" for message in messages[:count]):
        beginning = [block for block in beginning if block[0] == "system"] if form != "openai" else beginning
    assert whole[: len(beginning)] == beginning


@pytest.mark.parametrize("form", FORMATS)
@given(messages=canonical_lists(), stable=st.integers(-1, 30))
def test_that_a_run_goes_on_changes_marks_alone(form: str, messages: list[dict[str, Any]], stable: int) -> None:
    """Nothing is said in another way; one of the four marks that Anthropic allows is left."""
    ends, goes_on = (convert(form, messages, TOOLS, stable=stable, goes_on=value) for value in (False, True))
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
    converted = convert(form, messages, [], stable=0)
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


@pytest.mark.parametrize("form", FORMATS)
def test_an_agents_context(form: str) -> None:
    """Parallel calls, pinned texts after results, several users in a row, a system message at the end."""
    converted = convert(form, AGENT, TOOLS, stable=3)
    assert FAULTS[form](converted) == []
    assert [as_canonical(spoken, form) for spoken in said(AGENT)] == list(SAID[form](converted))


@pytest.mark.parametrize("form", FORMATS)
def test_an_empty_list_stays_empty(form: str) -> None:
    """No provider accepts one, and nothing is made up for it."""
    assert convert(form, [], [], stable=0) == Converted(messages=[], tools=[], places=[], notes=[])


@pytest.mark.parametrize("form", ["anthropic", "gemini"])
@pytest.mark.parametrize("messages", [[system("S")], [assistant("A"), user("U")], [system("S"), assistant("A")]])
def test_where_no_user_speaks_first_an_opening_is_put(form: str, messages: list[dict[str, Any]]) -> None:
    """And a note says so."""
    converted = convert(form, messages, [], stable=0)
    assert FAULTS[form](converted) == []
    assert "1 user text was put before the first message" in converted.notes
    assert OPENING in SAID[form](converted)


@pytest.mark.parametrize("form", ["anthropic", "gemini"])
def test_notes_count_and_hold_no_content(form: str) -> None:
    """A system message in the middle and one at the end are shown as text of the user."""
    converted = convert(form, [user("secret"), system("hidden"), user("U"), system("private")], [], stable=0)
    assert converted.notes == ["2 system messages after the first others are shown as text of the user"]


@pytest.mark.parametrize("form", ["anthropic", "gemini"])
def test_a_list_that_ends_with_an_assistant_is_noted(form: str) -> None:
    """Newer models refuse it, older ones go on from there, so it is left as it is."""
    converted = convert(form, [user("U"), assistant("It is")], [], stable=0)
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
    converted = convert(form, messages, [], stable=0)
    assert FAULTS[form](converted) == []
    assert ("call", "c1", "search", json.dumps({"arguments": arguments})) in SAID[form](converted)
    assert converted.notes == ["1 call has arguments that cannot be sent as an object"]


def test_the_contract_shows_what_comes_out() -> None:
    """The three examples of docs/contract.md are one list in three forms."""
    page = (Path(__file__).parents[5] / "docs" / "contract.md").read_text(encoding="utf-8")
    shown = re.findall(r"```json\n(.*?)```", page.partition("\n## Formats\n")[2].partition("\n## ")[0], re.DOTALL)
    given = json.loads(shown[0])
    for form, example in zip(("openai", "anthropic", "gemini"), shown, strict=True):
        converted = convert(form, given["messages"], given["tools"], stable=2)
        system = {} if converted.system is None else {"system": converted.system}
        assert json.loads(example) == {"messages": converted.messages, "tools": converted.tools, **system}
        assert FAULTS[form](converted) == []


def test_openai_is_the_list_itself() -> None:
    """Messages and tools stay as they are, and `system` stays in the list."""
    converted = convert("openai", AGENT, TOOLS, stable=5)
    assert (converted.messages, converted.tools, converted.system, converted.notes) == (AGENT, TOOLS, None, [])
    assert converted.places == [(index, 0) for index in range(len(AGENT))]


def test_an_unknown_format_is_refused() -> None:
    """The error says which there are."""
    with pytest.raises(ValueError, match="openai, anthropic, gemini"):
        convert("mistral", [], [], stable=0)
