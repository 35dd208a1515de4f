"""How a context of the agent layout comes about: what is frozen in a run, fresh, or missing (contract §5)."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio
import pytest

from nexus.adapters.in_memory import MemoryBus, MemoryLedger
from nexus.core.erasure import Tombstone, hashed
from nexus.core.errors import StoreUnavailableError
from nexus.core.models import Message, Role, new_row_id, utc_now
from nexus.core.ports import Row
from nexus.services.context.builder import BuilderSettings, ContextBuilder
from nexus.services.history.condense import with_condensed
from nexus.services.history.rows import llm_row, progress_row, tool_row
from nexus.services.history.transcript import NO_RESULT
from nexus.services.session_state.state import SessionState, Todo
from tests.nexus.support.builder_settings import BY_DEFAULT, settings_with
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.waiting import until
from tests.nexus.unit.services.parts import AwayLedger, Parts, definition, opened, past, request, within

CALL = {"id": "c1", "type": "function", "function": {"name": "web_search", "arguments": "{}"}}
LATER = [
    {"id": "ai_1", "role": "AI", "content": "Looking.", "metadata": {"tool_calls": [CALL]}},
    {"id": "tool_1", "role": "TOOL", "content": "found", "metadata": {"call_id": "c1"}},
]
SUB = {"kind": "sub", "id": "reviewer", "role": "You review.", "task_prompt": "Review it."}
ROLE = "## Agent Role Definition\n\n"


class FakeStates:
    """States of sessions in memory.

    Attributes:
        down: nothing can be read.
        asked: for which sessions it was asked.
    """

    def __init__(self, **states: SessionState) -> None:
        self.states = states
        self.down = False
        self.asked: list[tuple[str, str]] = []

    async def get(self, owner_key: str, session_id: str) -> SessionState:
        """The state of a session; an empty one where there is none."""
        self.asked.append((owner_key, session_id))
        if self.down:
            raise StoreUnavailableError("the store is down")
        return self.states.get(session_id, SessionState())


class SlowStore(FakeStore):
    """A store that writes when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = anyio.Event()

    async def insert_message(self, row: Row) -> bool:
        """Record a row, when the gate is open."""
        await self.gate.wait()
        return await super().insert_message(row)


@asynccontextmanager
async def agent_parts(
    states: FakeStates | None = None,
    *,
    store: FakeStore | None = None,
    settings: BuilderSettings = BY_DEFAULT,
    away: bool = False,
) -> AsyncIterator[Parts]:
    """Parts with stored states; `away` is a bus that nothing is kept on."""
    bus = MemoryBus()
    ledger = AwayLedger(bus) if away else MemoryLedger(bus)
    async with opened(store, bus=bus) as parts:
        builder = ContextBuilder(
            parts.persistence, parts.store, parts.registry, ledger, settings, states=states or FakeStates()
        )
        yield replace(parts, builder=builder)


def asking(
    text: str = "hello",
    request_id: str = "msg_1",
    run_id: str = "run_1",
    *,
    later: list[dict[str, Any]] | None = None,
    **metadata: Any,
) -> Any:
    """A request for the agent layout, with this metadata of the run."""
    return request(text, request_id, run_id, later=later, run_metadata={"layout": "agent", **metadata})


async def report(parts: Parts, state: str, seconds: int, *, run_id: str = "before", **more: Any) -> None:
    """Have recorded how far the call `c1` has come."""
    said_at = utc_now() - timedelta(seconds=60 - seconds)
    content = {"call_id": "c1", "state": state, **more}
    said = Message(run_id=run_id, owner_key="ada", role=Role.TOOL, content=content, timestamp=said_at)
    assert parts.persistence.offer(progress_row(said), 10)
    await parts.persistence.flush()


def todo(text: str) -> SessionState:
    """A state with one entry."""
    return SessionState(todos=(Todo("1", text),))


def seen(content: dict[str, Any]) -> list[str]:
    """The texts of the messages after the first."""
    return [message["content"] for message in content["messages"][1:]]


def history(content: dict[str, Any]) -> list[str]:
    """The texts of what was said before the run."""
    blocks = [block for block in content["context"]["blocks"] if block["tag"] == "HISTORY"]
    places = [place for block in blocks for place in range(block["index"], block["index"] + block["messages"])]
    return [content["messages"][place]["content"] for place in places]


def said(runs: int) -> list[str]:
    """The texts of `past(runs)`."""
    return [row["content"] for row in past(runs)]


def without_timings(content: dict[str, Any]) -> bytes:
    """The answer but for the time that it took."""
    manifest = {key: value for key, value in content["context"].items() if key != "timings_ms"}
    return json.dumps({**content, "context": manifest}).encode()


class TestRun:
    """The first build of a run, and those after it."""

    async def test_a_whole_answer(self) -> None:
        """History, what is stored of the state, the input, the tools; the manifest names everything."""
        async with agent_parts(FakeStates(default=todo("stored"))) as parts:
            parts.store.plant("messages", past(3))
            parts.registry.register(definition(), print)
            content = await parts.build(asking())
        assert (content["status"], content["layout"], content["degraded"]) == ("success", "agent", [])
        assert content["tools"] == [definition()]
        item = "## Current TODO List\n\n- [ ] stored (ID: 1)"
        assert seen(content) == ["HUMAN 0", item, "AI 0", "HUMAN 1", "AI 1", "HUMAN 2", "AI 2", "hello"]
        tags = [block["tag"] for block in content["context"]["blocks"]]
        assert tags == ["CORE_IDENTITY", "HISTORY", "TODO_LIST", "HISTORY", "INPUT"]
        assert [*content["context"]] == ["layout", "blocks", "history", "prefix", "notes", "left_out", "timings_ms"]
        assert set(content["context"]["timings_ms"]) == {"gather", "assemble", "build"}
        assert content["context"]["notes"] == []
        assert "format" not in content
        assert "system" not in content

    @pytest.mark.parametrize("away", [False, True], ids=["kept", "the bus is away"])
    async def test_the_history_is_that_of_the_first_build(self, *, away: bool) -> None:
        """Other runs that were recorded meanwhile are left out, whatever their senders' clocks say."""
        async with agent_parts(away=away) as parts:
            parts.store.plant("messages", past(2))
            first = await parts.build(asking())
            await parts.persistence.flush()
            parts.store.plant("messages", past(4)[4:])
            content = await parts.build(asking(request_id="msg_2", later=LATER))
            other = await parts.build(asking("next", "msg_3", "run_2"))
        assert history(first) == history(content) == said(2)
        assert history(other) == [*said(4), "hello"]
        count = len(first["messages"])
        assert content["messages"][:count] == first["messages"]
        assert [message["role"] for message in content["messages"][count:]] == ["assistant", "tool"]
        assert content["context"]["blocks"][-1]["tag"] == "RUN"
        assert content["context"]["blocks"][-1]["sources"] == ["ai_1", "tool_1"]
        assert content["context"]["blocks"][-1]["index"] == count

    async def test_long_contents(self) -> None:
        """Are shown without their middle, and counted; and the run goes on with the same bytes."""
        rows = past(3)
        rows[3]["content"] = "a" * 50_000 + rows[3]["content"] + "z" * 50_000
        async with agent_parts() as parts:
            parts.store.plant("messages", rows)
            first = await parts.build(asking())
            content = await parts.build(asking(request_id="msg_2", later=LATER))
        shown = "a" * 32_768 + "\n(left out here: 34468 characters)\n" + "z" * 32_768
        assert history(first) == [*said(2)[:-1], shown, "HUMAN 2", "AI 2"]
        assert sum(block["truncated"] for block in first["context"]["blocks"]) == 1
        assert content["messages"][: len(first["messages"])] == first["messages"]

    async def test_calls_that_are_not_read(self) -> None:
        """Are counted."""
        rows = past(3)
        calls = [{"id": f"c{number}", "name": "search", "arguments": "x" * 500} for number in range(150)]
        rows[3]["metadata"] = {**rows[3]["metadata"], "tool_calls": calls}
        async with agent_parts() as parts:
            parts.store.plant("messages", rows)
            content = await parts.build(asking())
        assert sum(len(message.get("tool_calls") or ()) for message in content["messages"]) == 128
        assert sum(block["truncated"] for block in content["context"]["blocks"]) == 1

    async def test_progress_of_earlier_calls(self) -> None:
        """A run shows what its first build did; the next run shows the latest."""
        async with agent_parts() as parts:
            made = Message(run_id="before", owner_key="ada", role=Role.AI, content={"tool_calls": [CALL]})
            assert parts.persistence.offer(llm_row(made), 10)
            await report(parts, "working", 1)
            first = await parts.build(asking())
            assert history(first)[-1] == "(working)"
            await report(parts, "input_required", 2, message="Which?")
            continued = await parts.build(asking(request_id="msg_2", later=LATER))
            assert continued["messages"][: len(first["messages"])] == first["messages"]
            following = await parts.build(asking(request_id="msg_3", run_id="run_2"))
        assert "(input_required: Which?)" in history(following)
        assert [first["context"]["history"]["merged"], first["context"]["left_out"]] == [1, []]

    @pytest.mark.parametrize("layout", ["agent", "dialogue", "thinking"])
    async def test_progress_of_its_own_calls(self, layout: str) -> None:
        """Is as it is now, and only asked for where a call has no result."""
        given: dict[str, Any] = {"later": LATER[:1], "run_metadata": {"layout": layout}}
        async with agent_parts() as parts:
            first = await parts.build(request(request_id="msg_1", **given))
            assert [item["content"] for item in first["messages"] if item["role"] == "tool"] == [NO_RESULT]
            await report(parts, "working", 1, run_id="run_1", progress=40)
            content = await parts.build(request(request_id="msg_2", **given))
            asked = parts.store.calls.count("results_of_runs")
            await parts.build(request(request_id="msg_3", later=LATER, run_metadata={"layout": layout}))
            assert parts.store.calls.count("results_of_runs") == asked == 2
            parts.store.down = True
            degraded = await parts.build(request(request_id="msg_4", **given))
        assert [item["content"] for item in content["messages"] if item["role"] == "tool"] == ["(working: 40 %)"]
        assert [item["content"] for item in degraded["messages"] if item["role"] == "tool"] == [NO_RESULT]

    async def test_results_in_the_memory(self) -> None:
        """Of the layout `dialogue`, where it is asked for: as of the run's first build, and nothing else changes."""
        dialogue: dict[str, Any] = {"run_metadata": {"layout": "dialogue"}}
        async with agent_parts(settings=settings_with(show_tool_results=True)) as parts:
            made = Message(run_id="before", owner_key="ada", role=Role.AI, content={"tool_calls": [CALL]})
            assert parts.persistence.offer(llm_row(made), 10)
            await report(parts, "working", 1)
            first = await parts.build(request(**dialogue))
            await report(parts, "cancelled", 2)
            continued = await parts.build(request(request_id="msg_2", later=LATER, **dialogue))
            shown = list[str]()
            for settings in (parts.builder.settings, BY_DEFAULT):
                parts.builder.settings = settings
                content = await parts.builder.preview(
                    request(request_id="msg_3", run_id="run_2", **dialogue), within(9)
                )
                shown.append(content["messages"][2]["content"])
        assert first["messages"][2]["content"].endswith("\n[tool_result:web_search, working]")
        assert continued["messages"][: len(first["messages"])] == first["messages"]
        assert shown[0].replace("\n[tool_result:web_search, cancelled]", "") == shown[1] != shown[0]

    @pytest.mark.parametrize("layout", ["agent", "dialogue"])
    @pytest.mark.parametrize("later", [[], LATER], ids=["first", "continued"])
    async def test_what_was_kept_is_gone(self, layout: str, later: list[dict[str, Any]]) -> None:
        """The same run asked for again has what was stored before its input, whether it has gone on or not."""
        store = FakeStore()
        store.plant("messages", past(3))
        given = {"layout": layout}
        async with opened(store) as parts:
            first = await parts.build(request(run_metadata=given))
            await parts.persistence.flush()
        # What another run did meanwhile is older by its senders' clocks.
        store.plant(
            "messages", [{**row, "id": f"late {row['id']}", "run_id": f"late {row['run_id']}"} for row in past(3)]
        )
        async with opened(store) as parts:
            again = await parts.build(request(request_id="msg_2", later=later, run_metadata=given))
        assert again["messages"][: len(first["messages"])] == first["messages"]
        assert len(again["messages"]) == len(first["messages"]) + len(later)

    async def test_a_first_build_without_any_history(self) -> None:
        """Has none later, either."""
        async with agent_parts() as parts:
            await parts.build(asking())
            parts.store.plant("messages", past(2))
            assert history(await parts.build(asking(request_id="msg_2", later=LATER))) == []

    async def test_what_is_pinned_is_fresh(self) -> None:
        """Stored since, or sent along."""
        states = FakeStates(default=todo("one"))
        async with agent_parts(states) as parts:
            parts.store.plant("messages", past(3))
            first = await parts.build(asking())
            states.states["default"] = todo("two")
            second = await parts.build(asking(request_id="msg_2", later=LATER))
            sent = await parts.build(
                asking(request_id="msg_3", later=LATER, state={"todos": [{"id": 1, "text": "three"}]})
            )
            states.states.clear()
            none = await parts.build(asking(request_id="msg_4", later=LATER))
        for content, text in ((first, "one"), (second, "two"), (sent, "three")):
            assert f"## Current TODO List\n\n- [ ] {text} (ID: 1)" in seen(content)
        assert not [text for text in seen(none) if text.startswith("##")]
        assert history(first) == history(second) == history(sent) == history(none) == said(3)

    async def test_the_tools_are_those_of_the_first_build(self) -> None:
        """What is registered later is for the next run."""
        async with agent_parts() as parts:
            parts.registry.register(definition("one"), print)
            first = await parts.build(asking())
            parts.registry.register(definition("two"), print)
            content = await parts.build(asking(request_id="msg_2", later=LATER))
            other = await parts.build(asking(request_id="msg_3", run_id="run_2"))
        assert first["tools"] == content["tools"] == [definition("one")]
        assert other["tools"] == [definition("one"), definition("two")]

    async def test_settings_hold_for_the_build_that_begins_with_them(self) -> None:
        """Rows at most, and where the pinned block goes."""
        settings = settings_with(placement="tail", history_messages=4)
        async with agent_parts(FakeStates(default=todo("x")), settings=settings) as parts:
            parts.store.plant("messages", past(4))
            content = await parts.build(asking())
        assert seen(content)[-2:] == ["## Current TODO List\n\n- [ ] x (ID: 1)", "hello"]
        assert content["context"]["history"]["fetched"] == 4
        assert content["context"]["notes"] == ["history: older messages of the session are not shown"]

    async def test_sessions_and_owners_do_not_mix(self) -> None:
        """Neither rows nor states."""
        states = FakeStates(s1=todo("of s1"))
        async with agent_parts(states) as parts:
            parts.store.plant("messages", past(2, owner="bob"))
            parts.store.plant("messages", [{**row, "session_id": "s2"} for row in past(1)])
            content = await parts.build(asking(session_id="s1"))
        assert seen(content) == ["## Current TODO List\n\n- [ ] of s1 (ID: 1)", "hello"]
        assert states.asked == [("ada", "s1")]


class TestRoles:
    """Who has one, and what happens where there is none."""

    @pytest.mark.parametrize("stored", [SessionState(), SessionState(role="You lead.")], ids=["none", "another's"])
    async def test_a_sub_agent_without_a_role(self, stored: SessionState) -> None:
        """Is told so by name, and nothing of it is recorded; the main agent's role is not its own."""
        async with agent_parts(FakeStates(default=stored)) as parts:
            content = await parts.build(asking(agent={"kind": "sub", "id": "reviewer", "task_prompt": "x"}))
            await parts.persistence.flush()
        error = content["error"]
        assert (content["status"], error["code"], error["retryable"]) == ("error", "MISSING_AGENT_ROLE", False)
        assert "'reviewer'" in error["message"]
        assert parts.store.messages == []

    @pytest.mark.parametrize("given_in", ["agent", "state", "stored"])
    async def test_where_a_sub_agents_role_may_stand(self, given_in: str) -> None:
        """In the agent, in the state that came along, or in what is stored; its input is recorded as its own."""
        bare = {"kind": "sub", "id": "reviewer", "task_prompt": "Review it."}
        agent = SUB if given_in == "agent" else bare
        roles = {"reviewer": "You review."}
        state = {"sub_agent_roles": roles} if given_in == "state" else {}
        stored = SessionState(sub_agent_roles=roles if given_in == "stored" else {})
        async with agent_parts(FakeStates(default=stored)) as parts:
            content = await parts.build(asking(agent=agent, state=state))
            await parts.persistence.flush()
        assert [message["content"] for message in content["messages"]] == [
            "Review it.",
            f"{ROLE}You review.",
            "hello",
        ]
        (row,) = parts.store.messages
        assert row["metadata"] == {"source": "new_run", "sub_agent_internal": True, "agent_id": "reviewer"}

    async def test_an_input_that_is_marked(self) -> None:
        """As a sub-agent's own business it never reaches the main agent, whoever asks for its context."""
        marks = {"sub_agent_internal": True, "agent_id": "reviewer"}
        async with agent_parts() as parts:
            marked = asking(run_id="run_0")
            marked.content["history"][0]["metadata"] = marks
            await parts.build(marked)
            await parts.persistence.flush()
            content = await parts.build(asking("and now", request_id="msg_2"))
        assert [row["metadata"] for row in parts.store.messages[:1]] == [{"source": "new_run", **marks}]
        assert seen(content) == ["and now"]

    async def test_a_sub_agent_sees_its_earlier_runs_and_nobody_else_does(self) -> None:
        """Not the main agent, not another sub-agent, and not the memory of the dialogue layout."""
        async with agent_parts() as parts:
            parts.store.plant("messages", past(1))
            await parts.build(asking("first task", agent=SUB))
            await parts.persistence.flush()
            again = await parts.build(asking("more", "msg_2", "run_2", agent=SUB))
            other = await parts.build(asking("else", "msg_3", "run_3", agent={**SUB, "id": "other"}))
            main = await parts.build(asking("main", "msg_4", "run_4"))
            dialogue = await parts.build(request("talk", "msg_5", "run_5"))
        assert history(again) == [*said(1), "first task"]
        assert history(other) == history(main) == said(1)
        memory = dialogue["messages"][2]["content"]
        assert memory.startswith("[SHARED_MEMORY count=3]")
        assert "main" in memory
        assert "task" not in memory


class TestMissing:
    """What cannot be read is named, and never passed off as empty."""

    @pytest.mark.parametrize("layout", ["agent", "dialogue"])
    async def test_what_was_heard_is_not_written_yet(self, layout: str) -> None:
        """The context says so and is not that of the run: the next build has it."""
        store = SlowStore()
        async with opened(store) as parts:
            answer = Message(run_id="run_0", owner_key="ada", role=Role.AI, content={"content": "forty-two"})
            assert parts.persistence.offer(llm_row(answer, 10), 10)
            first = await parts.build(request(run_metadata={"layout": layout}))
            store.gate.set()
            await parts.persistence.flush()
            second = await parts.build(request(request_id="msg_2", run_metadata={"layout": layout}))
        assert first["context"]["notes"] == ["history: what was heard last is not written yet"]
        assert "forty-two" not in json.dumps(first["messages"])
        assert second["context"]["notes"] == []
        assert "forty-two" in json.dumps(second["messages"])

    @pytest.mark.parametrize("layout", ["agent", "dialogue", "thinking"])
    async def test_what_another_replica_writes_is_waited_for(self, layout: str) -> None:
        """A request that comes after a message is built when it is recorded, whoever does that, and not before."""
        store = FakeStore()
        (_, answer) = past(1)
        async with opened(store) as parts, anyio.create_task_group() as tasks:

            async def asked_twice() -> bool:
                return store.calls.count("recorded_ids") > 1

            async def write() -> None:
                await until(asked_twice)
                store.plant("messages", [answer])

            tasks.start_soon(write)
            content = await parts.build(request(run_metadata={"layout": layout}, after=["AI_0"]), budget_s=60)
        assert content["context"]["notes"] == []
        if layout != "thinking":
            assert "AI 0" in json.dumps(content["messages"])

    @pytest.mark.parametrize("layout", ["agent", "dialogue"])
    async def test_what_is_never_written_is_not_waited_for_long(self, layout: str) -> None:
        """The context says how much is missing, and a later build of the run has it."""
        store = FakeStore()
        # As its replica accepted it: before the run began.
        accepted = past(1)[1] | {"_id": new_row_id()}
        asked = request(run_metadata={"layout": layout}, after=["AI_0", "HUMAN_0"])
        async with opened(store) as parts:
            store.plant("messages", past(1)[:1])
            first = await parts.build(asked, budget_s=0.5)
            store.plant("messages", [accepted])
            second = await parts.build(asked.model_copy(update={"id": "msg_2"}))
        assert first["context"]["notes"] == ["metadata.after: 1 of 2 messages are not recorded"]
        assert second["context"]["notes"] == []
        assert "AI 0" in json.dumps(second["messages"])

    async def test_what_may_have_been_erased_is_waited_for_a_moment(self) -> None:
        """Of an owner who was lately erased: a client may name what is gone. Erasures of long ago shorten no wait."""
        store, now = FakeStore(), utc_now()
        asked = request(after=["AI_0"])
        before = now - timedelta(days=9_999)
        async with opened(store) as parts:
            store.erasure.tombs = [Tombstone(hashed("ada"), "", before, now - timedelta(days=2))]
            with anyio.move_on_after(2) as long_ago:
                await parts.build(asked, budget_s=3_000)
            store.erasure.tombs = [Tombstone(hashed("ada"), "", before, now)]
            with anyio.fail_after(20):
                content = await parts.build(asked, budget_s=3_000)
        assert long_ago.cancelled_caught
        assert content["context"]["notes"] == ["metadata.after: 1 of 1 messages are not recorded"]

    async def test_a_store_that_is_away_is_not_waited_for(self) -> None:
        """Nothing is known of the messages then, and the history is missing besides."""
        store = FakeStore()
        store.down = True
        async with opened(store) as parts:
            content = await parts.build(request(after=["AI_0"]))
            store.down = False
        assert content["context"]["notes"] == ["metadata.after: 1 of 1 messages are not recorded"]
        assert "history" in content["degraded"]
        assert store.calls.count("recorded_ids") == 1

    @pytest.mark.parametrize("down", [False, True])
    async def test_a_state_that_came_along_is_not_asked_for(self, *, down: bool) -> None:
        """When it is all there; so it cannot be missing."""
        states = FakeStates(default=todo("stored"))
        states.down = down
        state = {"role": "You lead.", "todos": [], "useful_info": ["x"], "folder_notes": []}
        async with agent_parts(states) as parts:
            content = await parts.build(asking(state=state))
        assert states.asked == []
        assert content["degraded"] == []
        assert seen(content) == [f"{ROLE}You lead.", "## Useful Information\n\n- x", "hello"]

    async def test_a_role_that_cannot_be_read(self) -> None:
        """Is not a missing one: it is worth another try."""
        states = FakeStates(default=SessionState(sub_agent_roles={"reviewer": "You review."}))
        states.down = True
        async with agent_parts(states) as parts:
            content = await parts.build(asking(agent={**SUB, "role": None}))
            await parts.persistence.flush()
            assert (content["error"]["code"], content["error"]["retryable"]) == ("HISTORY_UNAVAILABLE", True)
            assert "'reviewer'" in content["error"]["message"]
            assert parts.store.messages == []
            states.down = False
            assert (await parts.build(asking(request_id="msg_2", agent={**SUB, "role": None})))["status"] == "success"

    async def test_a_role_that_came_along_needs_no_store(self) -> None:
        """The rest of the state is missing, and said to be."""
        states = FakeStates()
        states.down = True
        async with agent_parts(states) as parts:
            content = await parts.build(asking(agent=SUB))
        assert content["degraded"] == ["state"]
        assert f"{ROLE}You review." in seen(content)

    async def test_somebody_elses_rows_are_not_shown(self) -> None:
        """A store that answers wrongly is not believed."""

        class Broken(FakeStore):
            async def session_messages(
                self, owner_key: str, session_id: str, *, limit: int, skip: int = 0, sub_agent: str | None = None
            ) -> list[Row]:
                return await super().session_messages(
                    f"not {owner_key}", session_id, limit=limit, skip=skip, sub_agent=sub_agent
                )

        async with agent_parts(store=Broken()) as parts:
            parts.store.plant("messages", past(2, owner="not ada"))
            content = await parts.build(asking())
        assert history(content) == []


class TestFormats:
    """The same context in the form of each provider."""

    @pytest.mark.parametrize(("form", "key"), [("anthropic", "content"), ("gemini", "parts")])
    @pytest.mark.parametrize("agent", [{}, SUB], ids=["main", "sub"])
    async def test_every_block_says_where_it_is(self, form: str, key: str, agent: dict[str, Any]) -> None:
        """Its place is that of its first text among the converted messages; None is in `system`."""
        states = FakeStates(default=todo("stored"))
        async with agent_parts(states) as parts:
            parts.store.plant("messages", past(4))
            plain = await parts.build(asking(agent=agent, later=LATER))
            content = await parts.build(asking(request_id="msg_2", agent=agent, later=LATER, format=form))
        assert content["format"] == form
        assert ("system" in content) == (not agent)
        for block, of_plain in zip(content["context"]["blocks"], plain["context"]["blocks"], strict=True):
            text = plain["messages"][block["index"]]["content"]
            if block["place"] is None:
                assert block["tag"] == "CORE_IDENTITY"
                system = content["system"] if form == "anthropic" else content["system"]["parts"]
                assert system[0]["text"] == text
            else:
                turn, part = block["place"]
                assert content["messages"][turn][key][part]["text"] == text
            assert {name: value for name, value in block.items() if name != "place"} == of_plain
        assert content["context"]["prefix"] == plain["context"]["prefix"]

    @pytest.mark.parametrize("layout", ["agent", "dialogue"])
    async def test_a_continuation_is_marked_for_the_next_call(self, layout: str) -> None:
        """By one mark more, on its last block; the first build has none there, nor has one without later messages."""
        async with agent_parts() as parts:
            parts.store.plant("messages", past(4))
            first = await parts.build(asking(layout=layout, format="anthropic"))
            empty = [{"id": "system_1", "role": "SYSTEM", "content": "not shown"}]
            same = await parts.build(asking(request_id="msg_2", later=empty, layout=layout, format="anthropic"))
            content = await parts.build(asking(request_id="msg_3", later=LATER, layout=layout, format="anthropic"))
        assert same["messages"] == first["messages"]
        assert "cache_control" not in first["messages"][-1]["content"][-1]
        last = content["messages"][-1]["content"][-1]
        assert (last["type"], last["cache_control"]) == ("tool_result", {"type": "ephemeral"})
        assert json.dumps(content["messages"]).count("cache_control") == 1 + json.dumps(first["messages"]).count(
            "cache_control"
        )

    async def test_a_run_may_change_its_format(self) -> None:
        """What is kept of a run is kept in none."""
        async with agent_parts() as parts:
            parts.store.plant("messages", past(2))
            await parts.build(asking(format="gemini"))
            parts.store.plant("messages", past(3)[4:])
            content = await parts.build(asking(request_id="msg_2", later=LATER))
        assert history(content) == said(2)

    @pytest.mark.parametrize("layout", ["agent", "dialogue"])
    @pytest.mark.parametrize("form", ["openai", "anthropic", "gemini"])
    async def test_the_same_inputs_give_the_same_bytes(self, form: str, layout: str) -> None:
        """On two services, and asked twice of one."""
        contents = []
        for _ in range(2):
            async with agent_parts(FakeStates(default=todo("stored"))) as parts:
                parts.store.plant("messages", past(5))
                for number in range(2):
                    message = asking(request_id=f"msg_{number}", later=LATER, format=form, layout=layout)
                    contents.append(without_timings(await parts.build(message)))
        assert len({*contents}) == 1


class TestLargeResults:
    """What the run's own messages show of large results (contract §15)."""

    LARGE = "x" * 9_000

    def later(self, *texts: str) -> list[dict[str, Any]]:
        """A call that is made again for each result."""
        calls = [{"id": "c", "name": "look", "arguments": {}}]
        said = [{"role": "AI", "content": "", "metadata": {"tool_calls": calls}}]
        return [
            {"run_id": "run_1", "owner_key": "ada", **each}
            for text in texts
            for each in (*said, {"role": "TOOL", "content": {"result": text, "call_id": "c"}})
        ]

    async def shown(self, *, failing: str = "", above: int = 8_192, **metadata: Any) -> list[str]:
        """Results in a context of a run of which one is recorded, `failing` one operation of the store."""
        async with opened(settings=settings_with(condense_above=above)) as parts:
            recorded = with_condensed(tool_row(Message.model_validate(self.later(self.LARGE)[1])), 8_192)
            parts.store.plant("messages", [{**recorded, "session_id": "default", "owner_key": "ada"}])
            parts.store.failing = failing
            content = await parts.build(asking(later=self.later(self.LARGE, "y" * 9_000, "small"), **metadata))
        assert content["degraded"] == []
        return [each["content"] for each in content["messages"] if each["role"] == "tool"]

    async def test_as_recorded(self) -> None:
        """The stored text, where there is one; what is not recorded is whole."""
        first, second, third = await self.shown()
        assert "(left out here: " in first
        assert (second, third) == ("y" * 9_000, "small")

    @pytest.mark.parametrize(
        "given",
        [{"failing": "condensed_results"}, {"above": 0}, {"layout": "dialogue"}, {"layout": "thinking"}],
        ids=str,
    )
    async def test_whole(self, given: dict[str, Any]) -> None:
        """Where the store is away, where it is off, and in layouts without the tool that reads the rest."""
        assert await self.shown(**given) == [self.LARGE, "y" * 9_000, "small"]
