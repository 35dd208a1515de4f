"""Whatever the SDKs can write every provider accepts, and nothing of it is lost (contract §11)."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nexus.core.models import LeftOut, Message, Role, Why, parse_moment
from nexus.core.ports import Row, RunOrigin
from nexus.services.context.formats import FORMATS
from nexus.services.history.forms import read_input
from nexus.services.history.messages import HistoryMessage
from nexus.services.history.rows import human_row, llm_row, tool_row
from nexus.services.history.transcript import admit, transcript_of_rows, transcript_of_run
from nexus.services.transfer.transcripts import messages_in, rows_of
from tests.nexus.support import sdk_messages as sdk
from tests.nexus.support.providers import anthropic_faults, gemini_faults, openai_faults
from tests.nexus.support.rows import START

JUDGES: Final = {"openai": openai_faults, "anthropic": anthropic_faults, "gemini": gemini_faults}
# Marks in texts stay readable whatever is escaped around them.
_AROUND: Final = st.sampled_from(
    [
        "",
        " ",
        "\n",
        "[SHARED_MEMORY count=9]",
        "</human_input>",
        "你好 🚂",
        "a\u202eb\x00",
        "\u200b",
        '{"a": [1',
        "x" * 700,
    ]
)
_ORIGIN: Final = RunOrigin("default", None)


@dataclass(frozen=True)
class Event:
    """One message as an SDK writes it, the marks in it that must be shown, and why it may be left out, if it may."""

    message: dict[str, Any]
    run_id: str
    marks: frozenset[str]
    why: Why | None


@dataclass
class Making:
    """A conversation in the making."""

    draw: st.DrawFn
    events: list[Event] = field(default_factory=list)
    hidden: set[str] = field(default_factory=set)
    count: int = 0

    def mark(self) -> str:
        """A word like no other."""
        self.count += 1
        return f"mark{self.count}x"

    def text(self) -> str:
        """A mark with something around it."""
        return self.draw(_AROUND) + self.mark() + self.draw(_AROUND)

    def say(self, forms: Sequence[sdk.Form], said: sdk.Said, run_id: str, why: Why | None = None) -> None:
        """In one of these forms."""
        for message in self.draw(st.sampled_from(forms))(said):
            marks = frozenset(self._marks_in(json.dumps(message)))
            self.events.append(Event(message, run_id, marks, why))

    def _marks_in(self, written: str) -> Iterator[str]:
        for number in range(1, self.count + 1):
            if (mark := f"mark{number}x") in written and mark not in self.hidden:
                yield mark

    def thought(self) -> str:
        """Sometimes one, which no context shows."""
        if not self.draw(st.booleans()):
            return ""
        mark = self.mark()
        self.hidden.add(mark)
        return mark


def _human(made: Making, run_id: str) -> None:
    texts = [made.text() for _ in range(made.draw(st.integers(1, 2)))]
    made.say(sdk.USERS, sdk.Said(texts, image=made.draw(st.booleans())), run_id)


def _answer(made: Making, run_id: str) -> None:
    forms = (*sdk.ASSISTANTS, sdk.openai_refusal)
    made.say(forms, sdk.Said([made.text()], thought=made.thought()), run_id)


def _call(made: Making, call_id: str) -> sdk.Call:
    name = made.draw(st.sampled_from(["web_search", "run", "mark"]))
    name = made.mark() if name == "mark" else name
    return sdk.Call(call_id, name, {"q": made.text()} if made.draw(st.booleans()) else {"n": [1, {"s": made.mark()}]})


def _exchange(made: Making, run_id: str) -> None:
    """Calls and, mostly, their results, perhaps in another run and in another order."""
    calls = [_call(made, f"call_{made.count}_{index}") for index in range(made.draw(st.integers(1, 3)))]
    texts = [made.text()] if made.draw(st.booleans()) else []
    made.say((*sdk.ASSISTANTS, *sdk.CUSTOM_CALLS), sdk.Said(texts, thought=made.thought(), calls=calls), run_id)
    results = [
        sdk.Result(call, made.text(), failed=made.draw(st.booleans()), image=made.draw(st.booleans()))
        for call in made.draw(st.permutations(calls))
    ]
    answered = run_id if made.draw(st.integers(0, 4)) else "later"
    made.say(sdk.RESULTS, sdk.Said(results=results[: made.draw(st.integers(0, 3))]), answered)


def _nameless_exchange(made: Making, run_id: str) -> None:
    """Calls without ids, answered by name and in their order."""
    call = _call(made, "")
    made.say(sdk.NAMELESS_CALLS, sdk.Said(calls=[call]), run_id)
    made.say(sdk.NAMELESS_RESULTS, sdk.Said(results=[sdk.Result(call, made.text())]), run_id)


def _server_tools(made: Making, run_id: str) -> None:
    call = _call(made, f"srvtoolu_{made.count}")
    said = sdk.Said([made.text()], results=[sdk.Result(call, made.text())])
    made.say((sdk.anthropic_server_tools,), said, run_id)


def _result_of_nothing(made: Making, run_id: str) -> None:
    result = sdk.Result(_call(made, f"nobody_{made.count}"), made.text())
    made.say(sdk.RESULTS, sdk.Said(results=[result]), run_id, Why.UNMATCHED)


def _not_understood(made: Making, run_id: str) -> None:
    made.say((sdk.responses_web_search, sdk.anthropic_search_result), sdk.Said([made.text()]), run_id, Why.UNREADABLE)


_STEPS: Final[Sequence[Callable[[Making, str], None]]] = (
    *(_human, _answer, _exchange, _exchange, _nameless_exchange, _server_tools, _result_of_nothing, _not_understood),
)


@st.composite
def conversations(draw: st.DrawFn) -> Making:
    """Anything that the SDKs can write, of one or more runs."""
    made = Making(draw)
    for run_id in draw(st.lists(st.sampled_from(["one", "two"]), max_size=5)):
        draw(st.sampled_from(_STEPS))(made, run_id)
    return made


def _envelope(event: Event, index: int) -> dict[str, Any]:
    return {
        "id": f"m{index}",
        "run_id": event.run_id,
        "owner_key": "ada",
        "timestamp": (START + timedelta(seconds=index)).isoformat(),
    }


def _stored(event: Event, index: int) -> list[Row]:
    """The message itself as a row, as writers of their own put it there."""
    return [{**event.message, **_envelope(event, index), "_id": f"{index:024x}"}]


def _from_bus(event: Event, index: int) -> list[Row]:
    """What is recorded of the message as the content of an envelope of its role."""
    given = Message.model_validate({**event.message, **_envelope(event, index)})
    message = given.model_copy(update={"content": event.message})
    match given.role:
        case Role.HUMAN if (said := read_input(message.content)) and said.text:
            row: Row | None = human_row(message, _ORIGIN)
        case Role.AI:
            row = llm_row(message, 5_000)
        case _:
            row = tool_row(message.model_copy(update={"role": Role.TOOL}), 5_000)
    return [] if row is None else [{**row, "_id": f"{index:024x}"}]


def _imported(made: Making) -> list[Row]:
    """As one transcript, with the ids of the other ways so that its messages can be found again."""
    content = json.dumps([event.message for event in made.events]).encode()
    found = rows_of(messages_in(content), "ada", "default", START)
    return [
        {**each.row, "id": f"m{index}", "_id": f"{index:024x}"}
        for index, each in enumerate(found)
        if each.row is not None
    ]


def _said(made: Making, way: str) -> list[HistoryMessage]:
    if way == "request":
        messages = [{**event.message, **_envelope(event, index)} for index, event in enumerate(made.events)]
        return transcript_of_run([Message.model_validate(message) for message in messages])
    if way == "import":
        rows = _imported(made)
    else:
        record = _stored if way == "stored" else _from_bus
        rows = [row for index, event in enumerate(made.events) for row in record(event, index)]
    said, faults = transcript_of_rows(rows[::-1])
    assert faults == 0
    assert all(parse_moment(row["timestamp"]) for row in rows)
    return said


@settings(max_examples=max(300, settings().max_examples), suppress_health_check=[*HealthCheck])
@given(conversations(), st.sampled_from(["stored", "request", "bus", "import"]))
def test_nothing_is_lost_and_everything_accepted(made: Making, way: str) -> None:
    """Each mark is in the list in each format, or its message in `left_out` for the reason that is expected."""
    gated = admit(_said(made, way), "history", going_on=True)
    opening = {"role": "system", "content": "You are kind."}
    for form, judge in JUDGES.items():
        listed = [opening, *gated.messages, {"role": "user", "content": "now"}]
        converted = FORMATS[form](listed, [], stable=1, goes_on=True)
        assert judge(converted, typed=False) == []
        _check(made, json.dumps(converted.messages), [*gated.left_out, *converted.left_out])


def _check(made: Making, written: str, left_out: list[LeftOut]) -> None:
    left = {(each.where.partition("#")[0], each.why) for each in left_out}
    for index, event in enumerate(made.events):
        lost = {mark for mark in event.marks if mark not in written}
        assert not lost or (f"m{index}", event.why) in left, (lost, event.message)
    assert not {mark for mark in made.hidden if mark in written}


@pytest.mark.parametrize("form", FORMATS)
def test_by_the_providers_own_types(form: str) -> None:
    """One conversation of every form."""
    made = [message for each in _everything() for message in each]
    rows = [{**message, "_id": f"{index:024x}", "id": f"m{index}", "run_id": "r"} for index, message in enumerate(made)]
    gated = admit(transcript_of_rows(rows[::-1])[0], "history")
    listed = [{"role": "system", "content": "x"}, *gated.messages, {"role": "user", "content": "now"}]
    assert JUDGES[form](FORMATS[form](listed, [], stable=1)) == []


def _everything() -> Iterator[list[dict[str, Any]]]:
    for users in sdk.USERS:
        yield users(sdk.Said(["What is it?"], image=True))
    for number, assistants in enumerate((*sdk.ASSISTANTS, *sdk.CUSTOM_CALLS)):
        for answers in sdk.RESULTS:
            call = sdk.Call(f"{number}-{answers.__name__}", "look", {"q": "x"})
            yield assistants(sdk.Said(["I look."], thought="hm", calls=[call]))
            yield answers(sdk.Said(results=[sdk.Result(call, "a cat", failed=number % 2 == 0, image=True)]))
