"""The validity gate over histories of many runs, and the last look at a list (CONTRACT §5, validity)."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexus.services.context.annotations import ToolCall
from nexus.services.context.transcript import Said
from nexus.services.context.validity import CALL_ID, NAME, NO_RESULT, NO_RESULT_YET, Admitted, admit, faults


def human(text: str = "q", run: str = "r") -> Said:
    """Something a person said."""
    return Said("user", text, source=f"h-{run}", run_id=run)


def ai(*ids: str, text: str = "", run: str = "r", source: str = "", name: str = "f") -> Said:
    """An answer that declares a call under each of these ids."""
    calls = tuple(ToolCall(each, name, {}, "{}") for each in ids)
    return Said("assistant", text, source=source or f"a-{run}", run_id=run, calls=calls)


def result(call_id: str, text: str = "ok", run: str = "r", *, source: str = "", name: str = "") -> Said:
    """A tool's result."""
    return Said("tool", text, source=source or f"t-{run}", run_id=run, call_id=call_id, tool_name=name)


def brief(*said: Said, after: tuple[dict[str, Any], ...] = ()) -> list[str]:
    """What a provider is given, a word for each message: calls as `+id`, results as `id=text`."""
    admitted = admit(said, "history", after=after)
    assert faults([*after, *admitted.messages]) == []
    return [_word(message) for message in admitted.messages]


def _word(message: dict[str, Any]) -> str:
    if message["role"] == "tool":
        return f"{message['tool_call_id']}={message['content']}"
    return f"{message['content'] or ''}{''.join('+' + call['id'] for call in message.get('tool_calls', []))}"


def notes(*said: Said) -> list[str]:
    """What was repaired."""
    return admit(said, "history").repairs


class TestGoingOn:
    """Runs that may still be going on."""

    def test_the_last_calls_of_each_run(self) -> None:
        """May yet be answered; those that something came after are lost."""
        said = (ai("a", "b", run="one"), ai("c", run="two"), result("a", run="one"), ai("d", run="two"))
        admitted = admit(said, "history", going_on=True)
        assert [_word(message) for message in admitted.messages] == [
            "+a+b",
            "a=ok",
            f"b={NO_RESULT_YET}",
            "+c",
            f"c={NO_RESULT}",
            "+d",
            f"d={NO_RESULT_YET}",
        ]
        assert admitted.repairs == [
            "history: call a-one[1] has no result yet",
            "history: call a-two[0] has no result",
            "history: call a-two[0] has no result yet",
        ]


class TestRuns:
    """Results answer calls of their own run."""

    def test_two_runs_with_the_same_ids(self) -> None:
        """That go on at the same time, and whose results come the other way round."""
        both = (ai("c1", run="one"), ai("c1", run="two"), result("c1", "2", "two"), result("c1", "1", "one"))
        assert brief(*both) == ["+c1", "c1=1", "+call_1", "call_1=2"]

    def test_a_result_of_another_run(self) -> None:
        """Answers nothing, however open the call is."""
        assert brief(ai("c1", run="one"), result("c1", run="two")) == ["+c1", f"c1={NO_RESULT}"]
        assert notes(ai("c1", run="one"), result("c1", run="two")) == [
            "history: the tool result t-two answers no open call and was left out",
            "history: call a-one[0] has no result",
        ]

    def test_results_without_an_id(self) -> None:
        """Go by the calls declared last in their own run."""
        both = (ai("a", run="one"), ai("b", run="two"), result("", "1", "one"), result("", "2", "two"))
        assert brief(*both) == ["+a", "a=1", "+b", "b=2"]

    def test_rows_without_a_run(self) -> None:
        """Belong together as far as ids say so."""
        assert brief(ai("a", run=""), human(run=""), result("a", "1", "")) == ["+a", "a=1", "q"]


class TestClocks:
    """A result whose sender's clock is behind."""

    def test_a_result_before_its_call(self) -> None:
        """Is put where it belongs."""
        assert brief(human(), result("c1"), ai("c1")) == ["q", "+c1", "c1=ok"]
        assert notes(human(), result("c1"), ai("c1")) == []

    def test_results_of_parallel_calls_before_them(self) -> None:
        """Each at its call, in the order of the calls."""
        assert brief(result("b", "2"), result("a", "1"), ai("a", "b")) == ["+a+b", "a=1", "b=2"]

    def test_never_in_another_run(self) -> None:
        """Nor is it shown twice."""
        assert brief(result("c1", run="one"), ai("c1", run="two")) == ["+c1", f"c1={NO_RESULT}"]
        assert brief(result("c1", "1"), ai("c1"), ai("c1")) == ["+c1", "c1=1", "+call_1", f"call_1={NO_RESULT}"]

    def test_a_result_that_comes_in_time_counts(self) -> None:
        """And an early one of the same id is one too many."""
        assert brief(result("c1", "early"), ai("c1"), result("c1", "late")) == ["+c1", "c1=late"]


class TestIds:
    """Unique in the list, of the characters and the length that every provider takes."""

    def test_duplicate_results(self) -> None:
        """The first counts, the others are noted."""
        assert brief(ai("c1"), result("c1", "1"), result("c1", "2"), result("c1", "3")) == ["+c1", "c1=1"]
        assert len(notes(ai("c1"), result("c1", "1"), result("c1", "2"), result("c1", "3"))) == 2

    def test_an_id_in_several_messages_of_a_run(self) -> None:
        """A provider that numbers anew each time: every result stands with the call it follows."""
        rounds = [item for number in range(4) for item in (ai("c1"), result("c1", str(number)))]
        assert brief(*rounds) == ["+c1", "c1=0", "+call_1", "call_1=1", "+call_2", "call_2=2", "+call_3", "call_3=3"]

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
        assert brief(ai(given_id), result(given_id)) == [f"+{shown}", f"{shown}=ok"]
        assert len(notes(ai(given_id), result(given_id))) == (given_id != shown)

    @pytest.mark.parametrize(("one", "two"), [("a.b", "a:b"), ("x" * 40 + "1", "x" * 40 + "2"), ("a_b", "a b")])
    def test_ids_that_collide_after_the_change(self, one: str, two: str) -> None:
        """Are told apart, in one message as in two."""
        together = brief(ai(one, two), result(two, "2"), result(one, "1"))
        apart = brief(ai(one), result(one, "1"), ai(two), result(two, "2"))
        assert [word.split("=")[-1] for word in together[1:]] == ["1", "2"]
        assert [word.split("=")[-1] for word in apart[1::2]] == ["1", "2"]

    def test_ids_that_look_like_ours(self) -> None:
        """Are not used twice."""
        said = (ai("call_1"), result("call_1", "1"), ai(""), result("", "2"), ai("call_1"), result("call_1", "3"))
        assert brief(*said) == ["+call_1", "call_1=1", "+call_2", "call_2=2", "+call_3", "call_3=3"]

    def test_ids_of_what_stands_before(self) -> None:
        """Are not used again."""
        before = tuple(admit([ai("c1", "c2"), result("c1"), result("c2")], "history").messages)
        assert brief(ai("c1", "c3"), result("c1", "1"), result("c3", "3"), after=before) == [
            "+call_2+c3",
            "call_2=1",
            "c3=3",
        ]

    def test_a_result_does_not_answer_what_stands_before(self) -> None:
        """What has been admitted is done with."""
        before = tuple(admit([ai("c1")], "history").messages)
        assert brief(result("c1"), after=before) == []

    @pytest.mark.parametrize("name", ["a.b", "x" * 65, "é", "a b"])
    def test_names_that_are_refused(self, name: str) -> None:
        """Are changed, and a result without an id that says the name still answers the call."""
        assert brief(ai("c1", "c2", name=name), result("", "1", name=name))[1] == "c1=1"


def test_empty_messages_are_noted() -> None:
    """By the id of their row."""
    assert notes(human(""), ai(source="m1"), human()) == [
        "history: message h-r is empty and was left out",
        "history: message m1 is empty and was left out",
    ]


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


def call(**changes: Any) -> dict[str, Any]:
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

    def test_results_in_another_order(self) -> None:
        """Than that of the calls."""
        assert faults([*VALID[:3], VALID[4], VALID[3], *VALID[5:]])

    def test_the_last_calls_are_open(self) -> None:
        """At the end of the list."""
        assert faults(VALID[:3])
        assert faults(VALID[:4])

    def test_a_result_twice(self) -> None:
        """Is an orphan."""
        assert faults([*VALID[:5], VALID[4], *VALID[5:]])

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

    @pytest.mark.parametrize("bad", ["", "a b", "x" * 41, "é", "a\n"])
    def test_bad_ids(self, bad: str) -> None:
        """Of other characters, or of another length."""
        assert faults([call(id=bad), {"role": "tool", "tool_call_id": bad, "content": "r"}])

    @pytest.mark.parametrize("bad", ["", "a b", "x" * 65, "é", "a\n"])
    def test_bad_names(self, bad: str) -> None:
        """Of functions."""
        assert faults([call(name=bad), VALID[3]])

    @pytest.mark.parametrize("bad", ["", "[]", "null", "1", '"x"', "{", '{"a": NaN}', '{"a": Infinity}', "{} {}"])
    def test_arguments_that_are_no_object(self, bad: str) -> None:
        """Or no JSON at all."""
        assert faults([call(arguments=bad), VALID[3]])

    def test_nothing_else_is_found(self) -> None:
        """What the cases above change is valid before the change."""
        assert faults([call(), VALID[3]]) == []


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
        Said(role, f"text {index}" if shown else "", 0, f"m{index}", run, calls, call_id, name)
        for index, ((role, run, calls, call_id, name), shown) in enumerate(zip(kinds, seen, strict=True))
    ]


@settings(max_examples=500)
@given(histories())
def test_any_history_becomes_a_valid_list(said: list[Said]) -> None:
    """Every text once and in order, every result once or noted, every call answered, and nothing else added."""
    before = deepcopy(said)
    admitted = admit(said, "history")
    assert said == before
    assert faults(admitted.messages) == []
    spoken = [message["content"] for message in admitted.messages if message["role"] != "tool" and message["content"]]
    assert spoken == [item.text for item in said if item.role != "tool" and item.text]
    _check_results(said, admitted)
    _check_calls(said, admitted)


def _check_results(said: list[Said], admitted: Admitted) -> None:
    """Results stand with a call of their own run, each at most once; those that do not are noted."""
    given_results = {item.source for item in said if item.role == "tool"}
    shown = [item for item in admitted.origins if item is not None and item.role == "tool"]
    assert len({item.source for item in shown}) == len(shown)
    lost = {source for source in given_results if any(f"tool result {source} " in note for note in admitted.repairs)}
    assert {item.source for item in shown} | lost == given_results
    assert not {item.source for item in shown} & lost
    run = ""
    for message, origin in zip(admitted.messages, admitted.origins, strict=True):
        if message["role"] == "assistant" and origin is not None:
            run = origin.run_id
        elif message["role"] == "tool" and origin is not None:
            assert origin.run_id == run


def _check_calls(said: list[Said], admitted: Admitted) -> None:
    """As many calls as were declared, under ids and names that every provider takes."""
    shown = [call for message in admitted.messages for call in message.get("tool_calls", ())]
    assert len(shown) == sum(len(item.calls) for item in said)
    assert all(CALL_ID.fullmatch(call["id"]) and NAME.fullmatch(call["function"]["name"]) for call in shown)
    assert len({call["id"] for call in shown}) == len(shown)


@given(histories(), histories())
def test_a_list_may_go_on(before: list[Said], later: list[Said]) -> None:
    """What is admitted after a list is valid after it."""
    first = admit(before, "history").messages
    assert faults([*first, *admit(later, "run.history", after=first).messages]) == []
