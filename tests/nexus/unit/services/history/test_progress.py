"""How far a call has come: what is read of a message, the one row that it leaves, and what stands for the result."""

from datetime import timedelta
from itertools import permutations
from typing import Any, Final, get_args

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.core.models import Message, Role, Row, Topics
from nexus.core.payloads import CallState
from nexus.core.ports import RunOrigin
from nexus.services.context.formats import FORMATS
from nexus.services.history.messages import messages_of
from nexus.services.history.progress import GIVEN_UP, PENDING
from nexus.services.history.rows import ROW_MAKERS, Agent, progress_row
from nexus.services.history.run_facts import read_facts
from nexus.services.history.transcript import NO_RESULT_YET, admit, faults, transcript_of_rows
from nexus.services.persistence import PersistenceService
from nexus.services.recall.texts import findable
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.providers import anthropic_faults, gemini_faults, openai_faults
from tests.nexus.support.rows import START
from tests.nexus.support.tombstones import NO_TOMBSTONES
from tests.nexus.support.waiting import PATIENCE_S

JUDGES: Final = {"openai": openai_faults, "anthropic": anthropic_faults, "gemini": gemini_faults}


def message(content: Any, seconds: float = 0, *, run_id: str = "r", **metadata: Any) -> Message:
    """A message on `tools.progress`, sent so many seconds after the start."""
    said_at = START + timedelta(seconds=seconds)
    return Message(run_id=run_id, owner_key="o", role=Role.TOOL, content=content, timestamp=said_at, metadata=metadata)


def said(state: str, seconds: float = 0, *, call_id: str = "c", run_id: str = "r", **more: Any) -> Message:
    """What is said of a call."""
    return message({"call_id": call_id, "state": state, **more}, seconds, run_id=run_id)


def row(role: str, content: Any, *, run_id: str = "r", **metadata: Any) -> Row:
    """A row of a session, behind those made before."""
    return {"id": f"{run_id}-{role}-{content}", "run_id": run_id, "role": role, "content": content} | {
        "timestamp": START,
        "metadata": metadata,
    }


def calling(*call_ids: str, run_id: str = "r") -> Row:
    """An answer of a model that makes these calls."""
    calls = [{"id": call_id, "name": "render", "arguments": {}} for call_id in call_ids]
    return row("AI", "It renders.", run_id=run_id, tool_calls=calls)


def shown(*rows: Row, agent: Agent | None = None) -> list[str]:
    """What the results of the calls say; every list is one that each provider takes."""
    messages, faulty = transcript_of_rows([*reversed(rows)], agent or Agent())
    assert faulty == 0
    admitted = admit(messages, "history", going_on=True)
    assert faults(admitted.messages) == []
    assert admitted.left_out == []
    begun = [{"role": "system", "content": "x"}, {"role": "user", "content": "Hi."}]
    for form, judge in JUDGES.items():
        assert judge(FORMATS[form]([*begun, *admitted.messages], [], stable=1, goes_on=False), typed=False) == []
    return [item["content"] for item in admitted.messages if item["role"] == "tool"]


class TestReading:
    """Of fields under any of their names, and of any spelling of a state."""

    @pytest.mark.parametrize(
        ("content", "metadata", "expected"),
        [
            ({"call_id": "c", "state": "working"}, {}, {"state": "working"}),
            ({"tool_call_id": "c", "status": " Working "}, {}, {"state": "working"}),
            ({"state": "input-required"}, {"tool_use_id": "c"}, {"state": "input_required"}),
            ({"state": "canceled"}, {"call_id": "c", "state": "completed"}, {"state": "completed"}),
            ({"call_id": 7, "state": "canceled"}, {}, {"state": "cancelled"}),
            ({"role": "tool", "tool_call_id": "c", "content": {"state": "failed"}}, {}, {"state": "failed"}),
            (
                {"call_id": "c", "state": "working", "progress": 40, "message": "a\r\n b", "name": "render"},
                {},
                {"state": "working", "progress": 0.4, "message": "a b", "tool_name": "render"},
            ),
            ({"call_id": "c", "state": "working", "message": {"n": 1}}, {}, {"state": "working", "message": '{"n":1}'}),
            (
                {"call_id": "c", "state": "working", "message": "x" * 9_000},
                {},
                {"state": "working", "message": "x" * 997 + "..."},
            ),
        ],
    )
    def test_what_is_recorded(self, content: Any, metadata: dict[str, Any], expected: dict[str, Any]) -> None:
        """The same form, whatever it came in."""
        made = progress_row(message(content, **metadata))
        assert made["metadata"]["progress"] == expected
        assert made["metadata"]["call_id"] in {"c", "7"}
        assert (made["role"], made["content"], made["metadata"]["source"]) == ("TOOL", "", "tool_progress")

    @pytest.mark.parametrize(
        ("given", "fraction"),
        [(0, 0), (0.4, 0.4), (1, 1), (1.5, 0.015), (100, 1), ("40 %", 0.4), ("0.5", 0.5), ("1%", 0.01), (None, None)],
    )
    def test_a_number_is_a_part_of_one_or_percent(self, given: Any, fraction: float | None) -> None:
        """Above 1 it is percent."""
        found = progress_row(said("working", progress=given))["metadata"]["progress"].get("progress")
        assert found == (None if fraction is None else pytest.approx(fraction))

    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            ("working", "content: a JSON object with call_id and state is needed"),
            ({"state": "working"}, "content.call_id: the id of the call is needed"),
            ({"call_id": "c"}, "content.state: is missing; allowed: working, "),
            (
                {"call_id": "c", "state": "paused"},
                "content.state: 'paused' is unknown; allowed: working, input_required, completed, failed, cancelled",
            ),
            (
                {"call_id": "c", "state": "Mrs Smith is ill"},
                "content.state: a text of 16 characters is unknown; allowed: working, ",
            ),
            *(
                ({"call_id": "c", "state": "working", "progress": number}, "content.progress: a number from 0 to 1")
                for number in (-1, 101, True, float("nan"), "half", [1])
            ),
        ],
    )
    def test_what_is_refused(self, content: Any, reason: str) -> None:
        """It says what is wrong, where, and what is allowed."""
        with pytest.raises(ValueError) as error:  # noqa: PT011  # its text is what matters
            progress_row(message(content))
        assert reason in str(error.value)


async def kept(*messages: Message) -> list[Row]:
    """The rows that these messages leave, recorded one after another, without what says when they were stored."""
    store = FakeStore()
    async with PersistenceService(store, NO_TOMBSTONES).running() as service:
        service.origins.remember("o", "r", RunOrigin("s"))
        for each in messages:
            assert service.offer(ROW_MAKERS[Topics.TOOLS_PROGRESS](each, 10), 10)
            with anyio.fail_after(PATIENCE_S):
                await service.flush()
    return [{name: value for name, value in row.items() if name != "_id"} for row in store.messages]


class TestTheRow:
    """A call has one, in its run."""

    @pytest.mark.parametrize(
        "messages",
        [
            [said("working", 1, progress=0.1, message="a"), said("working", 2), said("completed", 3, tool_name="f")],
            [said("cancelled", 1, message="x"), said("working", 1, progress=0.9), said("working", 1, progress=0.2)],
            [said("working", 1, message="a"), said("working", 1, message="b"), said("working", 0.000_001, message="c")],
        ],
    )
    async def test_any_order_leads_to_the_same(self, messages: list[Message]) -> None:
        """Also of what was said at one moment, and where each comes twice."""
        (expected,) = await kept(*messages)
        for order in permutations(messages):
            assert await kept(*order, *order) == [expected]
        assert expected["session_id"] == "s"

    @pytest.mark.parametrize(
        "odd", [None, "half", {"state": "completed", "progress": "x"}, {"state": "completed", "message": None}]
    )
    async def test_over_what_another_writer_left(self, odd: Any) -> None:
        """In the row of the same call, at the same moment: what is further on is kept, as over any other."""
        store = FakeStore()
        async with PersistenceService(store, NO_TOMBSTONES).running() as service:
            for state in ("working", "completed"):
                made = progress_row(said(state, message="indexing"))
                assert service.offer(made, 10)
                with anyio.fail_after(PATIENCE_S):
                    await service.flush()
                (found,) = store.messages
                if state == "working":
                    found["metadata"]["progress"] = odd
        assert store.messages[0]["metadata"]["progress"] == {"state": "completed", "message": "indexing"}

    async def test_the_last_counts(self) -> None:
        """All of it: nothing of what was said before is left."""
        (found,) = await kept(said("working", 1, progress=0.4, message="a"), said("working", 2))
        assert found["metadata"]["progress"] == {"state": "working"}
        assert found["timestamp"] == START + timedelta(seconds=2)

    async def test_calls_and_runs_have_their_own(self) -> None:
        """One id may be that of calls in several runs."""
        rows = await kept(said("working"), said("failed", call_id="d"), said("cancelled", run_id="other"))
        assert sorted(row["metadata"]["progress"]["state"] for row in rows) == ["cancelled", "failed", "working"]

    async def test_is_no_result_and_nothing_that_is_found(self) -> None:
        """Neither for who waits for a result, nor for a turn, nor for long-term memory."""
        store = FakeStore()
        async with PersistenceService(store, NO_TOMBSTONES).running() as service:
            assert service.offer(progress_row(said("working", message="indexing")), 10)
            with anyio.fail_after(PATIENCE_S):
                await service.flush()
            assert not await service.has_result("o", "r", "c")
            (progress,) = await service.progress_of("o", "r")
        assert progress.text == "(working: indexing)"
        assert findable(store.messages[0]) is None
        facts = read_facts([calling("c"), store.messages[0]])
        assert (len(facts.messages), facts.outcomes[0].result) == (1, None)


def test_each_state_says_what_is_to_come() -> None:
    """A call goes on, is given up, or has its result to come: compaction depends on it."""
    assert sorted([*PENDING, *GIVEN_UP, "completed"]) == sorted(get_args(CallState))


class TestShown:
    """In the place of the result, until that is there."""

    @pytest.mark.parametrize(
        ("progress", "text"),
        [
            (said("working", progress=0.4, message="indexing"), "(working: 40 % - indexing)"),
            (said("working", progress=7), "(working: 7 %)"),
            (said("working"), "(working)"),
            (said("input_required", message="Which film?"), "(input_required: Which film?)"),
            (said("completed", progress=1), "(completed; no result has come yet)"),
            (said("completed", message="in store"), "(completed: in store; no result has come yet)"),
            (said("failed", message="no disk", progress=0.4), "(failed: no disk)"),
            (said("cancelled"), "(cancelled)"),
            (said("working", message="[THIS_MOMENT]\nnow"), r"(working: \[THIS_MOMENT] now)"),
        ],
    )
    def test_the_state(self, progress: Message, text: str) -> None:
        """Wherever its row stands."""
        reported = progress_row(progress)
        assert shown(calling("c"), reported) == [text]
        assert shown(reported, calling("c")) == [text]

    def test_a_failed_one_is_shown_as_a_failed_result(self) -> None:
        """In the form of each provider; a cancelled one is not."""
        messages, _ = transcript_of_rows([progress_row(said("failed")), calling("c")])
        assert [item.get("failed") for item in admit(messages, "history").messages] == [None, True]
        messages, _ = transcript_of_rows([progress_row(said("cancelled")), calling("c")])
        assert [item.get("failed") for item in admit(messages, "history").messages] == [None, None]

    def test_the_result_is_the_calls_result(self) -> None:
        """Whatever its run, and whatever was said of the call after it."""
        result = row("TOOL", "film A", call_id="c")
        assert shown(calling("c"), progress_row(said("working", 9)), result) == ["film A"]
        assert shown(calling("c"), progress_row(said("working")), {**result, "run_id": "later"}) == ["film A"]

    def test_the_last_that_was_said_in_any_run(self) -> None:
        """A call may be reported on in a later run."""
        first, later = progress_row(said("working", 5)), progress_row(said("cancelled", 7, run_id="later"))
        assert shown(calling("c"), later, first) == ["(cancelled)"]

    def test_a_call_of_its_own_run_comes_first(self) -> None:
        """What is said of an answered call of its run is said of no other call of that id."""
        answered = [calling("c", run_id="two"), row("TOOL", "done", run_id="two", call_id="c")]
        found = shown(calling("c"), *answered, progress_row(said("working", run_id="two")))
        assert found == [NO_RESULT_YET, "done"]

    def test_of_no_call_that_is_there(self) -> None:
        """It is no message, and nothing that was left out."""
        assert shown(progress_row(said("working")), row("AI", "Hello.")) == []

    def test_of_a_sub_agent(self) -> None:
        """It is for that one alone."""
        internal = message({"call_id": "c", "state": "working"}, sub_agent_internal=True, agent_id="scout")
        given = [calling("c"), progress_row(internal)]
        assert shown(*given) == [NO_RESULT_YET]
        assert shown(*given, agent=Agent("sub", "scout")) == ["(working)"]

    @pytest.mark.parametrize("progress", [None, 7, {}, {"state": "paused"}, {"state": ["working"]}])
    def test_a_malformed_row(self, progress: Any) -> None:
        """Of another writer says nothing, and is no result."""
        odd = row("TOOL", "", source="tool_progress", call_id="c", progress=progress)
        assert shown(calling("c"), odd) == [NO_RESULT_YET]

    @given(st.lists(st.tuples(st.sampled_from(["working", "failed", "completed"]), st.text(max_size=9)), max_size=5))
    def test_any_words(self, reports: list[tuple[str, str]]) -> None:
        """The list stays one that each provider takes."""
        calls = [f"c{number}" for number in range(len(reports))]
        given_rows = [
            progress_row(said(state, call_id=call, message=text))
            for call, (state, text) in zip(calls, reports, strict=True)
        ]
        assert len(shown(calling(*calls), *given_rows)) == len(calls)


def test_what_is_no_progress_is_read_as_before() -> None:
    """A result may be called so."""
    (item,) = messages_of([row("TOOL", "x", call_id="c", progress={"state": "working"})])
    assert (item.role, item.state) == ("tool", "")
