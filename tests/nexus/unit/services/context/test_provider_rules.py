"""The judge of the formats is strict: each kind of fault is found, by types and by rules."""

import copy
from collections.abc import Callable
from typing import Any, Final

import pytest

from nexus.services.context.formats import FORMATS, Converted
from tests.nexus.support.providers import anthropic_faults, gemini_faults, openai_faults
from tests.nexus.unit.services.context.canonical_lists import assistant, call, result, system, tool, user

LIST: Final = [
    system("S"),
    user("U1"),
    assistant("A1", call("c1"), call("c2")),
    result("c1", "R1"),
    result("c2", "R2"),
    user("U2"),
    assistant("A2"),
]
TOOLS: Final = [tool("search", {"type": "object", "properties": {"q": {"type": "string"}}})]

Change = Callable[[Any, Any, Any], object]


def changed(form: str, change: Change) -> Converted:
    """A good list in that form, spoilt by `change`, which is given the messages, tools and system."""
    found = copy.deepcopy(FORMATS[form](LIST, TOOLS, stable=5))
    change(found.messages, found.tools, found.system)
    return found


def unknown(holder: Any) -> None:
    """Put in a key that no provider knows."""
    holder["cache"] = 1


@pytest.mark.parametrize("faults", [openai_faults, anthropic_faults, gemini_faults])
def test_a_good_list_has_no_faults(faults: Callable[[Converted], list[str]]) -> None:
    """So that what is found below is what was changed."""
    assert faults(changed(faults.__name__.removesuffix("_faults"), lambda _m, _t, _s: None)) == []


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda m, _t, _s: unknown(m[0]), id="unknown key of a message"),
        pytest.param(lambda m, _t, _s: unknown(m[2]["tool_calls"][1]), id="unknown key of a call"),
        pytest.param(lambda _m, t, _s: unknown(t[0]["function"]), id="unknown key of a tool"),
        pytest.param(lambda _m, t, _s: t[0].update(type="tool"), id="unknown literal"),
    ],
)
def test_the_types_of_openai_are_strict(change: Change) -> None:
    """Each of these passes by the rules alone."""
    spoilt = changed("openai", change)
    assert openai_faults(spoilt, typed=False) == []
    assert openai_faults(spoilt)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda m, _t, _s: m.clear(), id="no message"),
        pytest.param(lambda m, _t, _s: m[1].update(content=" \n"), id="blank text"),
        pytest.param(lambda m, _t, _s: m[6].update(content=None), id="no text and no calls"),
        pytest.param(lambda m, _t, _s: m.pop(4), id="a call without result"),
        pytest.param(lambda m, _t, _s: m.pop(3) and m.append(result("c1")), id="a result too late"),
        pytest.param(lambda m, _t, _s: m.insert(5, result("c2")), id="two results of one call"),
        pytest.param(lambda m, _t, _s: m.extend([assistant(None, call("c1")), result("c1")]), id="an id again"),
        pytest.param(
            lambda m, _t, _s: m.extend([assistant(None, call("c" * 41)), result("c" * 41)]), id="an id too long"
        ),
        pytest.param(lambda m, _t, _s: m[2]["tool_calls"][0]["function"].update(arguments="[]"), id="no object"),
        pytest.param(lambda _m, t, _s: t.append(copy.deepcopy(t[0])), id="a tool twice"),
    ],
)
def test_the_rules_of_openai(change: Change) -> None:
    """Written down from its documents."""
    assert openai_faults(changed("openai", change), typed=False)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda m, _t, _s: unknown(m[0]), id="unknown key of a message"),
        pytest.param(lambda m, _t, _s: unknown(m[1]["content"][1]), id="unknown key of a call"),
        pytest.param(lambda _m, t, _s: unknown(t[0]), id="unknown key of a tool"),
        pytest.param(lambda _m, _t, s: unknown(s[0]), id="unknown key of the system"),
        pytest.param(lambda _m, _t, s: s[0].pop("type"), id="missing key"),
    ],
)
def test_the_types_of_anthropic_are_strict(change: Change) -> None:
    """Each of these passes by the rules alone."""
    spoilt = changed("anthropic", change)
    assert anthropic_faults(spoilt, typed=False) == []
    assert anthropic_faults(spoilt)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda m, _t, _s: m.clear(), id="no message"),
        pytest.param(lambda m, _t, _s: m.pop(0), id="an assistant first"),
        pytest.param(lambda m, _t, _s: m.insert(0, copy.deepcopy(m[0])), id="two users in a row"),
        pytest.param(lambda m, _t, _s: m[0]["content"][0].update(text="\t"), id="blank text"),
        pytest.param(lambda m, _t, _s: m[3]["content"][0].update(text="A2\n"), id="white space at the end"),
        pytest.param(lambda m, _t, _s: m[2]["content"].reverse(), id="text before results"),
        pytest.param(lambda m, _t, _s: m[2]["content"].pop(0), id="a call without result"),
        pytest.param(lambda m, _t, _s: m[2]["content"].insert(0, m[2]["content"][0]), id="two results of one call"),
        pytest.param(
            lambda m, _t, _s: m[3]["content"].append(m[1]["content"][1]), id="a call at the end, its id again"
        ),
        pytest.param(lambda m, _t, _s: m[1]["content"][1].update(input="{}"), id="arguments as text"),
        pytest.param(lambda _m, _t, s: s.clear(), id="an empty system"),
        pytest.param(lambda _m, _t, s: s[0].update(cache_control={"type": "for ever"}), id="an unknown mark"),
        pytest.param(lambda _m, _t, s: s.extend([s[0]] * 3), id="five marks"),
        pytest.param(lambda _m, t, _s: t[0]["input_schema"].pop("type"), id="a schema of nothing"),
        pytest.param(lambda _m, t, _s: t[0]["input_schema"].update(anyOf=[]), id="a schema that combines"),
        pytest.param(lambda _m, t, _s: t.append(t[0]), id="a tool twice"),
    ],
)
def test_the_rules_of_anthropic(change: Change) -> None:
    """Written down from its documents and from what its server answers."""
    assert anthropic_faults(changed("anthropic", change), typed=False)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda m, _t, _s: unknown(m[0]), id="unknown key of a content"),
        pytest.param(lambda m, _t, _s: unknown(m[1]["parts"][1]["function_call"]), id="unknown key of a call"),
        pytest.param(lambda _m, t, _s: unknown(t[0]), id="unknown key of a tool"),
        pytest.param(lambda _m, _t, s: unknown(s), id="unknown key of the system"),
        pytest.param(lambda m, _t, _s: m[1]["parts"][1]["function_call"].update(id=5), id="number for a text"),
    ],
)
def test_the_types_of_gemini_are_strict(change: Change) -> None:
    """Each of these passes by the rules alone, but for those that look at the keys of a part."""
    assert gemini_faults(changed("gemini", change))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda m, _t, _s: m.clear(), id="no content"),
        pytest.param(lambda m, _t, _s: m.pop(0), id="the model first"),
        pytest.param(lambda m, _t, _s: m.append(copy.deepcopy(m[-1])), id="the model twice in a row"),
        pytest.param(lambda m, _t, _s: m[0]["parts"][0].update(text=" "), id="blank text"),
        pytest.param(lambda m, _t, _s: m[2]["parts"].append({"text": "U"}), id="text beside responses"),
        pytest.param(lambda m, _t, _s: m[2]["parts"].pop(), id="a call without response"),
        pytest.param(lambda m, _t, _s: m[2]["parts"].append(m[2]["parts"][0]), id="two responses to one call"),
        pytest.param(lambda m, _t, _s: m.append(m.pop(2)), id="a response too late"),
        pytest.param(lambda m, _t, _s: m[1]["parts"][1].pop("thought_signature"), id="no signature"),
        pytest.param(lambda m, _t, _s: m[1]["parts"][1].update(text="and text"), id="a part that is two things"),
        pytest.param(
            lambda m, _t, _s: m[1]["parts"][1]["function_call"].update(name="1"), id="a name with a digit first"
        ),
        pytest.param(lambda m, _t, _s: m[1]["parts"][1]["function_call"].update(args="{}"), id="arguments as text"),
        pytest.param(lambda _m, _t, s: s["parts"].clear(), id="an empty system"),
        pytest.param(lambda _m, t, _s: t.append(t[0]), id="a tool twice"),
    ],
)
def test_the_rules_of_gemini(change: Change) -> None:
    """Written down from its documents and from what its server answers."""
    assert gemini_faults(changed("gemini", change), typed=False)
