"""The validity gate, over runs and over histories of many, and the last look at a list (contract §4.6, §5 validity)."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexus.core.models import LeftOut, Message, Role, Why
from nexus.services.history.messages import HistoryMessage as Said
from nexus.services.history.tool_calls import ToolCall
from nexus.services.history.transcript import CALL_ID, NAME, NO_RESULT, NO_RESULT_YET, Admitted, admit, faults
from nexus.services.history.transcript import transcript_of_run as said_in_run
from nexus.services.tools.definitions import shown_name
from nexus.services.tools.registry import ToolRegistry


def message(role: Role, content: Any = None, message_id: str = "msg_1", **metadata: Any) -> Message:
    """A message of the run."""
    return Message(id=message_id, run_id="run_1", owner_key="ada", role=role, content=content, metadata=metadata)


def nested(call_id: Any = "c1", name: Any = "search", arguments: Any = '{"q": 1}') -> dict[str, Any]:
    """A call as real orchestrators store it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def ai(content: Any = None, *calls: Any, message_id: str = "msg_ai") -> Message:
    """A model's answer that declares these calls."""
    return message(Role.AI, content, message_id, tool_calls=[*calls])


def result(content: Any, call_id: Any = "", name: Any = None, message_id: str = "msg_tool") -> Message:
    """A tool's result."""
    return message(Role.TOOL, content, message_id, call_id=call_id, tool_name=name)


def human(text: Any) -> Message:
    """Something said later in the run."""
    return message(Role.HUMAN, text)


def admitted(later: Sequence[Message]) -> Admitted:
    """The run through the gate."""
    return admit(said_in_run(later), "run.history")


def shown(*later: Message) -> list[dict[str, Any]]:
    """What a provider is given."""
    return admitted(later).messages


def notes(*later: Message) -> list[str]:
    """What was repaired."""
    return admitted(later).repairs


def brief(*later: Message) -> list[str]:
    """What a provider is given, a word for each message: calls as `+id`, results as `id=text`."""
    words = []
    for item in shown(*later):
        if item["role"] == "tool":
            words.append(f"{item['tool_call_id']}={item['content']}")
        else:
            calls = "".join(f"+{call['id']}" for call in item.get("tool_calls", []))
            words.append(f"{item['role']}:{item['content'] or ''}{calls}")
    return words


def test_more_calls_than_there_may_be_in_a_message() -> None:
    """They are in several, each answered before the next; results find theirs, whatever message they are in."""
    calls = [nested(f"c{number}") for number in range(300)]
    later = [ai("I look.", *calls), *(result(f"r{number}", f"c{number}") for number in reversed(range(299)))]
    found = admit(said_in_run(later), "run.history", going_on=True)
    assert faults(found.messages) == []
    declared = [message for message in found.messages if message["role"] == "assistant"]
    assert [len(message["tool_calls"]) for message in declared] == [128, 128, 44]
    assert [message["content"] for message in declared] == ["I look.", None, None]
    answers = {message["tool_call_id"]: message["content"] for message in found.messages if message["role"] == "tool"}
    assert answers == {f"c{number}": f"r{number}" for number in range(299)} | {"c299": NO_RESULT_YET}
    assert len(found.origins) == len(found.messages) == 303
    assert faults([assistant_of(calls), *found.messages[1:]])


def assistant_of(calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A message with all these calls."""
    return {"role": "assistant", "content": None, "tool_calls": [*calls]}


def test_the_provider_form() -> None:
    """A call and its result, in every detail."""
    assert shown(ai("Looking.", nested()), result("Found.", "c1"), ai("There.")) == [
        {
            "role": "assistant",
            "content": "Looking.",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "Found."},
        {"role": "assistant", "content": "There."},
    ]
    assert notes(ai("Looking.", nested()), result("Found.", "c1"), ai("There.")) == []


def test_a_call_without_text_has_null_content() -> None:
    """Also where the text is blank or cannot be seen."""
    for text in (None, "", " \n", "\u200b"):
        assert shown(ai(text, nested()), result("r", "c1"))[0]["content"] is None


def test_calls_have_the_names_under_which_their_tools_are_offered() -> None:
    """Long names with the same beginning are told apart in both."""
    registry, names = ToolRegistry(), [f"{'x' * 70}{number}" for number in range(3)]
    registry.set_remote({"name": name, "description": ""} for name in names)
    calls = [nested(f"c{number}", name) for number, name in enumerate(names)]
    declared = shown(ai(None, *calls))[0]["tool_calls"]
    offered = {tool["registered_as"]: tool["function"]["name"] for tool in registry.definitions()}
    assert [call["function"]["name"] for call in declared] == [offered[name] for name in names]
    assert len({*offered.values()}) == len(names)


@pytest.mark.parametrize(
    ("call", "function"),
    [
        (nested(arguments='{"b":1,  "a":2}'), {"name": "search", "arguments": '{"b":1,  "a":2}'}),
        ({"id": "c1", "name": "search", "arguments": '{"q": "x"}'}, {"name": "search", "arguments": '{"q": "x"}'}),
        ({"id": "c1", "name": "search", "arguments": {"q": "é"}}, {"name": "search", "arguments": '{"q":"é"}'}),
        (nested(arguments={"q": [1]}), {"name": "search", "arguments": '{"q":[1]}'}),
        (nested(arguments=None), {"name": "search", "arguments": "{}"}),
        (nested(arguments=""), {"name": "search", "arguments": "{}"}),
        (nested(arguments="[1]"), {"name": "search", "arguments": '{"arguments":"[1]"}'}),
        (nested(arguments='{"q": "[THIS_MOMENT]"}'), {"name": "search", "arguments": '{"q": "[THIS_MOMENT]"}'}),
        (nested(name=None), {"name": "unknown", "arguments": '{"q": 1}'}),
        (nested(name="a b[/x]"), {"name": shown_name("a b[/x]"), "arguments": '{"q": 1}'}),
        (nested(name="x" * 80), {"name": shown_name("x" * 80), "arguments": '{"q": 1}'}),
        (nested(name=shown_name("x" * 80)), {"name": shown_name("x" * 80), "arguments": '{"q": 1}'}),
    ],
)
def test_stored_forms_of_a_call(call: dict[str, Any], function: dict[str, str]) -> None:
    """Nested and flat; arguments are the JSON of an object, letter by letter where they were that already."""
    (declared,) = shown(ai(None, call), result("r", "c1"))[0]["tool_calls"]
    assert declared == {"id": "c1", "type": "function", "function": function}


def test_calls_may_stand_in_the_content() -> None:
    """As `llm.results` carries them; `tool_calls: null` are none."""
    content = {"content": "Looking.", "tool_calls": [nested()]}
    assert brief(message(Role.AI, content), result("r", "c1")) == ["assistant:Looking.+c1", "c1=r"]
    assert brief(message(Role.AI, {"content": "Done.", "tool_calls": None})) == ["assistant:Done."]
    assert brief(message(Role.AI, "Done.", tool_calls=None)) == ["assistant:Done."]


def test_results_without_an_id() -> None:
    """They belong to the first open call of their name, else to the only open one."""
    calls = ai(None, nested("a", "one"), nested("b", "two"), nested("c", "two"))
    assert brief(calls, result("x", name="two"), result("y", name="two"), result("z", name="none")) == [
        "assistant:+a+b+c",
        "a=z",
        "b=x",
        "c=y",
    ]
    assert brief(ai(None, nested("a"), nested("b")), result("x", name="none")) == [
        "assistant:+a+b",
        f"a={NO_RESULT}",
        f"b={NO_RESULT}",
    ]


def test_orphans_are_left_out() -> None:
    """A result of no call, or of one that is answered, is not shown."""
    run = (
        result("lost", "c0", message_id="m0"),
        ai(None, nested()),
        result("r", "c1"),
        result("r", "c1", message_id="m1"),
    )
    assert brief(*run) == ["assistant:+c1", "c1=r"]
    assert admitted(run).left_out == [LeftOut("tool result", f"m{number}", Why.UNMATCHED) for number in (0, 1)]


def test_unanswered_calls_say_so() -> None:
    """Before anything else follows, and at the end."""
    run = (ai("Looking.", nested("a"), nested("b")), result("1", "b"), ai("Again.", nested("c")))
    assert brief(*run) == ["assistant:Looking.+a+b", f"a={NO_RESULT}", "b=1", "assistant:Again.+c", f"c={NO_RESULT}"]
    assert notes(*run) == ["run.history: call msg_ai[0] has no result", "run.history: call msg_ai[0] has no result"]


@pytest.mark.parametrize("content", [None, "", " ", "\u200b\ufeff", [""]])
def test_empty_messages_never(content: Any) -> None:
    """Texts that nobody sees are left out; an empty result is still a result."""
    assert brief(ai(content), human(content), ai(None, nested()), result(content, "c1")) == [
        "assistant:+c1",
        "c1=(empty)",
    ]


def spoke(text: str = "q", run: str = "r") -> Said:
    """Something a person said."""
    return Said("user", text, source=f"h-{run}", run_id=run)


def declared(*ids: str, text: str = "", run: str = "r", source: str = "", name: str = "f") -> Said:
    """An answer that declares a call under each of these ids."""
    calls = tuple(ToolCall(each, name, {}, "{}") for each in ids)
    return Said("assistant", text, source=source or f"a-{run}", run_id=run, calls=calls)


def answered(call_id: str, text: str = "ok", run: str = "r", *, source: str = "", name: str = "") -> Said:
    """A tool's result."""
    return Said("tool", text, source=source or f"t-{run}", run_id=run, call_id=call_id, tool_name=name)


def words(*said: Said, after: tuple[dict[str, Any], ...] = ()) -> list[str]:
    """What a provider is given, a word for each message: calls as `+id`, results as `id=text`."""
    gated = admit(said, "history", after=after)
    assert faults([*after, *gated.messages]) == []
    return [_word(message) for message in gated.messages]


def _word(message: dict[str, Any]) -> str:
    if message["role"] == "tool":
        return f"{message['tool_call_id']}={message['content']}"
    return f"{message['content'] or ''}{''.join('+' + call['id'] for call in message.get('tool_calls', []))}"


def noted(*said: Said) -> list[str]:
    """What was repaired."""
    return admit(said, "history").repairs


class TestGoingOn:
    """Runs that may still be going on."""

    def test_the_last_calls_of_each_run(self) -> None:
        """May yet be answered; those that something came after are lost."""
        said = (
            declared("a", "b", run="one"),
            declared("c", run="two"),
            answered("a", run="one"),
            declared("d", run="two"),
        )
        gated = admit(said, "history", going_on=True)
        assert [_word(message) for message in gated.messages] == [
            "+a+b",
            "a=ok",
            f"b={NO_RESULT_YET}",
            "+c",
            f"c={NO_RESULT}",
            "+d",
            f"d={NO_RESULT_YET}",
        ]
        assert gated.repairs == [
            "history: call a-one[1] has no result yet",
            "history: call a-two[0] has no result",
            "history: call a-two[0] has no result yet",
        ]


class TestRuns:
    """Results answer calls of their own run."""

    def test_two_runs_with_the_same_ids(self) -> None:
        """That go on at the same time, and whose results come the other way round."""
        both = (
            declared("c1", run="one"),
            declared("c1", run="two"),
            answered("c1", "2", "two"),
            answered("c1", "1", "one"),
        )
        assert words(*both) == ["+c1", "c1=1", "+call_1", "call_1=2"]


class TestClocks:
    """A result whose sender's clock is behind."""

    def test_a_result_before_its_call(self) -> None:
        """Is put where it belongs."""
        assert words(spoke(), answered("c1"), declared("c1")) == ["q", "+c1", "c1=ok"]
        assert noted(spoke(), answered("c1"), declared("c1")) == []


class TestIds:
    """Unique in the list, of the characters and the length that every provider takes."""

    def test_an_id_in_several_messages_of_a_run(self) -> None:
        """A provider that numbers anew each time: every result stands with the call it follows."""
        rounds = [item for number in range(4) for item in (declared("c1"), answered("c1", str(number)))]
        assert words(*rounds) == ["+c1", "c1=0", "+call_1", "call_1=1", "+call_2", "call_2=2", "+call_3", "call_3=3"]

    @pytest.mark.parametrize(
        ("given_id", "shown"),
        [
            ("a.b:c", "a_b_c"),
            ("toolu 1", "toolu_1"),
            ("é", "_"),
            ("调用", "__"),
            ("a\nb", "a_b"),
            ("x" * 41, "x" * 40),
            ("9" * 4_000, "9" * 40),
            ("x" * 40, "x" * 40),
            ("-", "-"),
        ],
    )
    def test_ids_that_are_refused(self, given_id: str, shown: str) -> None:
        """Are changed, and their results still find them."""
        assert words(declared(given_id), answered(given_id)) == [f"+{shown}", f"{shown}=ok"]
        assert len(noted(declared(given_id), answered(given_id))) == (given_id != shown)

    def test_ids_of_what_stands_before(self) -> None:
        """Are not used again."""
        before = tuple(admit([declared("c1", "c2"), answered("c1"), answered("c2")], "history").messages)
        assert words(declared("c1", "c3"), answered("c1", "1"), answered("c3", "3"), after=before) == [
            "+call_2+c3",
            "call_2=1",
            "c3=3",
        ]

    def test_a_result_does_not_answer_what_stands_before(self) -> None:
        """What has been gated is done with."""
        before = tuple(admit([declared("c1")], "history").messages)
        assert words(answered("c1"), after=before) == []


def test_empty_messages_are_left_out() -> None:
    """By the id of their row."""
    left_out = admit([spoke(""), declared(source="m1"), spoke()], "history").left_out
    assert left_out == [LeftOut("message", source, Why.EMPTY) for source in ("h-r", "m1")]


CALLS = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
VALID: list[dict[str, Any]] = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": None, "tool_calls": [CALLS, {**CALLS, "id": "b"}]},
    {"role": "tool", "tool_call_id": "a", "content": "1"},
    {"role": "tool", "tool_call_id": "b", "content": "2"},
    {"role": "assistant", "content": "done"},
    {"role": "user", "content": "next"},
]


def faulty(**changes: Any) -> dict[str, Any]:
    """An assistant message with a call that is changed."""
    function = {**CALLS["function"], **{key: changes.pop(key) for key in ("name", "arguments") if key in changes}}  # type: ignore[dict-item]  # a call's function is a dictionary
    return {"role": "assistant", "content": None, "tool_calls": [{**CALLS, **changes, "function": function}]}


class TestFaults:
    """The last look finds what a provider would refuse."""

    def test_valid_lists_have_none(self) -> None:
        """Nor has an empty one."""
        assert faults(VALID) == []
        assert faults([]) == []

    @pytest.mark.parametrize("left_out", [2, 3, 4])
    def test_a_message_of_a_block_is_missing(self, left_out: int) -> None:
        """An orphan, or a call without its answer."""
        assert faults([*VALID[:left_out], *VALID[left_out + 1 :]])

    @pytest.mark.parametrize("place", [3, 4])
    @pytest.mark.parametrize("between", [VALID[1], VALID[5]])
    def test_something_stands_inside_of_a_block(self, place: int, between: dict[str, Any]) -> None:
        """Of whichever role."""
        assert faults([*VALID[:place], between, *VALID[place:]])

    def test_an_id_twice(self) -> None:
        """In two messages, or in one."""
        assert faults([*VALID, *VALID[2:5]])
        twice = {"role": "assistant", "content": None, "tool_calls": [CALLS, CALLS]}
        assert faults([twice, VALID[3], VALID[3]])

    @pytest.mark.parametrize("content", ["", " \n", None, [], 5])
    @pytest.mark.parametrize("place", range(len(VALID)))
    def test_empty_messages(self, place: int, content: Any) -> None:
        """Only beside calls may there be no content, and then it is None."""
        planted = [*VALID[:place], {**VALID[place], "content": content}, *VALID[place + 1 :]]
        assert bool(faults(planted)) == (content is not None or place != 2)

    @pytest.mark.parametrize(
        ("field", "bad"),
        [
            *(("id", bad) for bad in ("", "a b", "x" * 41, "é", "a\n")),
            *(("name", bad) for bad in ("", "a b", "x" * 65, "é", "a\n")),
            *(
                ("arguments", bad)
                for bad in ("", "[]", "null", "1", '"x"', "{", '{"a": NaN}', '{"a": Infinity}', "{} {}")
            ),
        ],
    )
    def test_a_call_that_is_refused(self, field: str, bad: str) -> None:
        """For its id, its function's name, or arguments that are no JSON object."""
        answer = {**VALID[3], "tool_call_id": bad} if field == "id" else VALID[3]
        assert faults([faulty(**{field: bad}), answer])


_IDS = st.sampled_from(["", "a", "b", "a b", "a_b", "call_0", "call_1", "x" * 41, "x" * 42])
_RUNS = st.sampled_from(["one", "two", ""])
_CALLS = st.builds(
    ToolCall, _IDS, st.sampled_from(["f", "g", "f.g", "unknown"]), st.just({}), st.sampled_from(["{}", '{"a":1}'])
)
_KINDS = st.one_of(
    st.builds(lambda run: ("user", run, (), "", ""), _RUNS),
    st.builds(lambda run, calls: ("assistant", run, tuple(calls), "", ""), _RUNS, st.lists(_CALLS, max_size=3)),
    st.builds(lambda run, call_id, name: ("tool", run, (), call_id, name), _RUNS, _IDS, st.sampled_from(["", "f"])),
)


@st.composite
def histories(draw: st.DrawFn) -> list[Said]:
    """Anything that may have been said; each text is like no other, or empty."""
    kinds = draw(st.lists(_KINDS, max_size=12))
    seen = draw(st.lists(st.booleans(), min_size=len(kinds), max_size=len(kinds)))
    return [
        Said(role, f"text {index}" if shown else "", f"m{index}", run, calls, call_id, name)
        for index, ((role, run, calls, call_id, name), shown) in enumerate(zip(kinds, seen, strict=True))
    ]


@settings(max_examples=500)
@given(histories())
def test_any_history_becomes_a_valid_list(said: list[Said]) -> None:
    """Every text once and in order, every result once or named, every call answered, and nothing else added."""
    before = deepcopy(said)
    gated = admit(said, "history")
    assert said == before
    assert faults(gated.messages) == []
    spoken = [message["content"] for message in gated.messages if message["role"] != "tool" and message["content"]]
    assert spoken == [item.text for item in said if item.role != "tool" and item.text]
    _check_results(said, gated)
    _check_calls(said, gated)


def _check_results(said: list[Said], gated: Admitted) -> None:
    """Each result stands once with a call of its own run, or else the one of its id in another; or it is left out."""
    given_results = {item.source for item in said if item.role == "tool"}
    shown = [item for item in gated.origins if item is not None and item.role == "tool"]
    assert len({item.source for item in shown}) == len(shown)
    lost = {each.where for each in gated.left_out if each.why is Why.UNMATCHED}
    assert {item.source for item in shown} | lost == given_results
    assert not {item.source for item in shown} & lost
    declaring = Said("assistant", "")
    for message, origin in zip(gated.messages, gated.origins, strict=True):
        if message["role"] == "assistant" and origin is not None:
            declaring = origin
        elif message["role"] == "tool" and origin is not None and origin.run_id != declaring.run_id:
            own = {call.id for item in said if item.run_id == origin.run_id for call in item.calls}
            assert origin.call_id in {call.id for call in declaring.calls} - own - {""}


def _check_calls(said: list[Said], gated: Admitted) -> None:
    """As many calls as were declared, under ids and names that every provider takes."""
    shown = [call for message in gated.messages for call in message.get("tool_calls", ())]
    assert len(shown) == sum(len(item.calls) for item in said)
    assert all(CALL_ID.fullmatch(call["id"]) and NAME.fullmatch(call["function"]["name"]) for call in shown)
    assert len({call["id"] for call in shown}) == len(shown)


@given(histories(), histories())
def test_a_list_may_go_on(before: list[Said], later: list[Said]) -> None:
    """What is gated after a list is valid after it."""
    first = admit(before, "history").messages
    assert faults([*first, *admit(later, "run.history", after=first).messages]) == []
