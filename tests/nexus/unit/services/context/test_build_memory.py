"""Working memory in builds: read, kept for a run, compacted in time, missing (contract §5, §7)."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest

from nexus.adapters.in_memory import MemoryBus, MemoryLedger
from nexus.core.errors import StoreUnavailableError
from nexus.core.metrics import Part
from nexus.core.ports import Row
from nexus.core.working_memory import Compaction, CompactionJob, CompactionRequest, Snapshot
from nexus.services.context.budget import WindowSettings
from nexus.services.context.builder import ContextBuilder
from nexus.services.context.session import TO_COMPACT
from nexus.services.tools.memory_tools import MEMORY_TOOLS, READING_TOOLS
from tests.nexus.support.builder_settings import settings_with, window_with
from tests.nexus.support.fake_counter import FakeCounter, words_of
from tests.nexus.support.fakes import FakeStore
from tests.nexus.unit.services.context.remembering import stored_turn
from tests.nexus.unit.services.context.test_build_agent import SUB, asking, history
from tests.nexus.unit.services.context.test_working_memory_blocks import AT, overview
from tests.nexus.unit.services.parts import Parts, definition, opened, past, within
from tests.nexus.unit.services.remembering_turns import FakeTurns

PROMPT: dict[str, Any] = {"agent": {"system_prompt": "You help."}}
TIGHT = window_with(context_window=2_000, summary_max_tokens=50)


class YieldingStore(FakeStore):
    """A store that others may have their turn before: no time at all is too little for it."""

    async def session_messages(
        self, owner_key: str, session_id: str, *, limit: int, skip: int = 0, sub_agent: str | None = None
    ) -> list[Row]:
        """A page of the session."""
        await anyio.lowlevel.checkpoint()
        return await super().session_messages(owner_key, session_id, limit=limit, skip=skip, sub_agent=sub_agent)


class FakeMemory:
    """`MemorySource`, over the rows of a store.

    Attributes:
        kept: what there is, for every session.
        stuck: compactions never end.
        fails: what reading raises, if anything.
        does: what a compaction does; by default it covers all rows but the newest four.
        wishes, soon: what was wanted, at once and in the background.
    """

    def __init__(self, store: FakeStore) -> None:
        self.store = store
        self.kept = Snapshot()
        self.stuck = False
        self.fails: Exception | None = None
        self.does: Callable[[CompactionRequest], Compaction | None] = self.cover
        self.wishes: list[CompactionRequest] = []
        self.soon: list[CompactionRequest] = []

    async def snapshot(self, owner_key: str, session_id: str) -> Snapshot:  # noqa: ARG002  # one for all
        """What is kept."""
        if self.fails:
            raise self.fails
        return self.kept

    def compact_soon(self, wish: CompactionRequest, *, long: bool = False) -> CompactionJob | None:
        """Do what it does; of those that take long, take note."""
        job = CompactionJob()
        (self.soon if long else self.wishes).append(wish)
        if long or self.stuck:
            return job
        try:
            job.made = self.does(wish)
        except StoreUnavailableError:
            job.failed = True
        job.done.set()
        return job

    def cover(self, wish: CompactionRequest) -> Compaction:
        """A compaction of all rows but the newest four and those of the run that asks."""
        rows = [row for row in self.store.messages if row["run_id"] != wish.run_id]
        latest = self.kept.compaction
        covered = tuple(row["_id"] for row in rows[:-4])
        compaction = Compaction(
            number=latest.number + 1 if latest else 1,
            created_at=AT,
            summary="- told",
            count=len(covered),
            total=len(covered),
            since="00000001",
            without=covered,
        )
        self.kept = replace(self.kept, compaction=compaction)
        return compaction


@asynccontextmanager
async def remembering(
    runs: int = 3,
    *,
    length: int = 1,
    window: WindowSettings = TIGHT,
    turns: FakeTurns | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[Parts, FakeMemory]]:
    """Parts with a working memory, over a session of so many runs whose messages have so many words more."""
    store, bus = YieldingStore(), MemoryBus()
    store.plant("messages", [{**row, "content": f"{row['content']} {words_of(length)}"} for row in past(runs)])
    memory = FakeMemory(store)
    async with opened(store, bus=bus) as parts:
        builder = ContextBuilder(
            parts.persistence,
            store,
            parts.registry,
            MemoryLedger(bus),
            settings_with(window=window, **settings),
            memory=memory,
            turns=turns,
            counter=FakeCounter(),
        )
        yield replace(parts, builder=builder), memory


def tags(content: dict[str, Any]) -> list[str]:
    """The blocks, in their order."""
    return [found["tag"] for found in content["context"]["blocks"]]


def message(content: dict[str, Any], tag: str) -> str:
    """The message of a block."""
    found = next(found for found in content["context"]["blocks"] if found["tag"] == tag)
    return str(content["messages"][found["index"]]["content"])


def called(*results: str) -> list[dict[str, Any]]:
    """A run that has called a tool, with these results."""
    later: list[dict[str, Any]] = []
    for number, text in enumerate(results):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        later.append({"id": f"a{number}", "role": "AI", "content": "", "metadata": {"tool_calls": [call]}})
        later.append({"id": f"t{number}", "role": "TOOL", "content": text, "metadata": {"call_id": f"c{number}"}})
    return later


async def test_where_it_stands() -> None:
    """Overview behind the instructions, what is told of the window last; the manifest counts every token."""
    async with remembering() as (parts, memory):
        memory.kept = Snapshot(overview("plan"))
        content = await parts.build(asking(**PROMPT, later=called("found")))
    assert tags(content) == ["SYSTEM_PROMPT", "WORKING_MEMORY", "HISTORY", "INPUT", "RUN", "CONTEXT_META"]
    assert (content["messages"][1]["role"], content["messages"][-1]["role"]) == ("system", "system")
    assert message(content, "CONTEXT_META").startswith("[CONTEXT_META]\ntokens_used: ")
    assert f"tokens_used: {content['context']['tokens']['used']}\n" in message(content, "CONTEXT_META")
    assert content["context"]["tokens"]["limit"] == 2_000
    assert memory.wishes == memory.soon == []
    assert content["degraded"] == []


async def test_a_run_is_shown_what_it_began_with() -> None:
    """What is written meanwhile is shown to the next run; what is said of it at the end is that of now."""
    async with remembering() as (parts, memory):
        first = await parts.build(asking(**PROMPT))
        memory.kept = Snapshot(overview("written"))
        second = await parts.build(asking(request_id="msg_2", **PROMPT, later=called("ok")))
        third = await parts.build(asking("next", "msg_3", "run_2", **PROMPT))
    assert first["messages"][:-1] == second["messages"][: len(first["messages"]) - 1]
    assert "overview_bytes: 7\n" in message(second, "CONTEXT_META")
    assert message(third, "WORKING_MEMORY").endswith("written")


async def test_the_age_of_the_overview() -> None:
    """It is told in every context of the run, also where the goal is given and nothing of the turns is shown."""
    turns = FakeTurns()
    turns.plant(*(stored_turn(number) for number in range(1, 10)))
    async with remembering(9, turns=turns) as (parts, memory):
        memory.kept = Snapshot(overview("plan"))
        given = {**PROMPT, "task_context": "the goal"}
        first = await parts.build(asking(**given))
        second = await parts.build(asking(request_id="msg_2", **given, later=called("ok")))
    (shown,) = {
        line
        for content in (first, second)
        for line in message(content, "CONTEXT_META").splitlines()
        if line.startswith("turns_since_overview_update")
    }
    assert shown.rpartition(" ")[2].isdecimal()


class TestCompaction:
    """Sessions that are too long."""

    async def test_before_the_answer(self) -> None:
        """The first build of a run compacts, and shows what is left; the run is not compacted and begins once."""
        async with remembering(10, length=80) as (parts, memory):
            content = await parts.build(asking(**PROMPT))
            again = await parts.build(asking(request_id="msg_2", **PROMPT, later=called("ok")))
            inputs = [row for row in parts.store.messages if row["run_id"] == "run_1"]
        assert [wish.run_id for wish in memory.wishes] == ["run_1"]
        assert message(content, "CONVERSATION_SUMMARY").endswith("- told")
        assert len(history(content)) == 4
        assert content["context"]["tokens"]["used"] < 0.75 * 2_000
        assert content["messages"][:-1] == again["messages"][: len(content["messages"]) - 1]
        assert len(inputs) == 1

    async def test_in_the_middle_of_a_run(self) -> None:
        """A later build compacts when the run has grown; the builds after it go by what is left."""
        async with remembering(6, length=80) as (parts, memory):
            await parts.build(asking(**PROMPT))
            assert memory.wishes == []
            later = called("word " * 600)
            second = await parts.build(asking(request_id="msg_2", **PROMPT, later=later))
            third = await parts.build(asking(request_id="msg_3", **PROMPT, later=later))
        assert len(memory.wishes) == 1
        assert "CONVERSATION_SUMMARY" in tags(second)
        assert second["messages"] == third["messages"]

    async def test_by_somebody_else_in_the_middle_of_a_run(self) -> None:
        """A run goes on with what is left as soon as another has compacted its session."""
        async with remembering(6) as (parts, memory):
            await parts.build(asking(**PROMPT))
            memory.cover(CompactionRequest("ada", "default", run_id="run_1"))
            second = await parts.build(asking(request_id="msg_2", **PROMPT, later=called("ok")))
            third = await parts.build(asking(request_id="msg_3", **PROMPT, later=called("ok")))
        assert len(history(second)) == 4
        assert second["messages"] == third["messages"]

    async def test_that_does_not_come_about(self) -> None:
        """The oldest messages are left out of this one context, which fits, says so, and is tried again."""

        def fail(_: CompactionRequest) -> None:
            raise StoreUnavailableError("away")

        async with remembering(20, length=80) as (parts, memory):
            memory.does = fail
            content = await parts.build(asking(**PROMPT))
            await parts.build(asking(request_id="msg_2", **PROMPT))
        assert content["status"] == "success"
        assert content["context"]["tokens"]["used"] <= 2_000
        assert "history: the session could not be compacted in time" in str(content["context"]["notes"])
        assert 0 < len(history(content)) < 40
        assert len(memory.wishes) == 2

    async def test_that_takes_too_long(self) -> None:
        """Half of the time is left for the answer."""
        async with remembering(20, length=80) as (parts, memory):
            memory.stuck = True
            content = await parts.build(asking(**PROMPT), budget_s=0.5)
        assert content["status"] == "success"
        assert "could not be compacted in time" in str(content["context"]["notes"])
        assert len(memory.wishes) == 1

    async def test_nothing_to_compact(self) -> None:
        """The context is shown as far as it fits; it is not read twice, and not tried again with each step of a run."""
        async with remembering(20, length=80) as (parts, memory):
            memory.does = lambda wish: None  # noqa: ARG005
            content = await parts.build(asking(**PROMPT))
            assert parts.store.calls.count("session_messages") == 1
            await parts.build(asking(**PROMPT))
        assert len(memory.wishes) == 1
        assert content["context"]["tokens"]["used"] <= 2_000

    async def test_more_rows_than_are_read(self) -> None:
        """They are compacted in the background, until there are fewer than are shown, whatever the window."""
        async with remembering(20, window=window_with(context_window=100_000), history_messages=10) as (
            parts,
            memory,
        ):
            content = await parts.build(asking(**PROMPT))
        assert memory.wishes == []
        (wish,) = memory.soon
        weight = sum(part["tokens"] for part in content["context"]["blocks"] if part["tag"] == "HISTORY")
        assert wish.keep_tokens == weight // 2
        assert "history: older messages of the session are not shown" in content["context"]["notes"]

    async def test_as_it_is_counted(self) -> None:
        """For a form whose tokens are estimated, fewer of those that a vocabulary counts are kept."""
        kept = {}
        for form in ("openai", "anthropic"):
            async with remembering(20, length=80) as (parts, memory):
                await parts.build(asking(**PROMPT, format=form))
                kept[form] = memory.wishes[0].keep_tokens or 0
        assert 0 < kept["anthropic"] <= kept["openai"] / 2

    async def test_a_window_that_the_instructions_fill(self) -> None:
        """The request is refused, and its session is not compacted for it."""
        async with remembering(20, length=80) as (parts, memory):
            content = await parts.build(asking())
        assert content["error"]["code"] == "PAYLOAD_TOO_LARGE"
        assert memory.wishes == memory.soon == []

    async def test_a_run_longer_than_the_window(self) -> None:
        """Its oldest results are left out, and no session is compacted for what the next run does not have."""
        async with remembering(4, length=40) as (parts, memory):
            content = await parts.build(asking(**PROMPT, later=called(words_of(3_000), "the newest")))
        assert memory.wishes == []
        assert content["context"]["tokens"]["used"] <= 2_000
        assert content["messages"][-2]["content"] == "the newest"
        assert "left out: a result of" in content["messages"][-4]["content"]

    async def test_a_sub_agent_compacts_nothing(self) -> None:
        """Its window may be a small one; what does not fit into that is left out of its own context."""
        async with remembering(20, length=80) as (parts, memory):
            content = await parts.build(asking(agent=SUB))
        assert memory.wishes == memory.soon == []
        assert content["context"]["tokens"]["used"] <= 2_000


class TestTooLong:
    """What does not fit into the window."""

    async def test_instructions_that_do_not_fit(self) -> None:
        """The error names them, however long the input is: without it they would not fit either."""
        async with remembering(3) as (parts, _):
            content = await parts.build(asking(layout="dialogue", text=words_of(3_000)))
        assert content["error"]["code"] == "PAYLOAD_TOO_LARGE"
        assert content["error"]["message"].startswith("run: instructions and tools take ")

    @pytest.mark.parametrize("layout", ["agent", "dialogue", "thinking"])
    async def test_an_input_that_does_not_fit(self, layout: str) -> None:
        """It is refused before anything of its run is recorded: the session goes on as if nobody had asked."""
        async with remembering(3) as (parts, _):
            given = {**PROMPT, "layout": layout, "context_window": 5_000}
            content = await parts.build(asking(**given, text=words_of(5_000)))
            await parts.persistence.flush()
        assert content["error"]["code"] == "PAYLOAD_TOO_LARGE"
        assert "the input takes 5000 tokens" in content["error"]["message"]
        assert all("word" * 5 not in str(row["content"]) for row in parts.store.messages[6:])
        assert len(parts.store.messages) == 6


class TestMissing:
    """A memory that cannot be read."""

    async def test_in_the_first_build(self) -> None:
        """The rest is there, the answer says so, nobody is told that the overview is empty, and nothing is kept."""
        async with remembering() as (parts, memory):
            memory.fails = StoreUnavailableError("away")
            content = await parts.build(asking(**PROMPT))
            memory.fails, memory.kept = None, Snapshot(overview("plan"))
            again = await parts.build(asking(request_id="msg_2", **PROMPT))
        assert content["degraded"] == [Part.WORKING_MEMORY]
        assert tags(content) == ["SYSTEM_PROMPT", "HISTORY", "INPUT", "CONTEXT_META"]
        assert "update_working_memory" not in message(content, "CONTEXT_META")
        assert "turns_since_overview_update: unknown" in message(content, "CONTEXT_META")
        assert content["context"]["prefix"]["messages"] == 1
        assert message(again, "WORKING_MEMORY").endswith("plan")

    async def test_in_a_later_build(self) -> None:
        """The run goes on with what it began with, also where its session had been compacted before."""
        async with remembering(6) as (parts, memory):
            memory.kept = Snapshot(overview("plan"))
            memory.cover(CompactionRequest("ada", "default"))
            first = await parts.build(asking(**PROMPT))
            memory.fails = StoreUnavailableError("away")
            second = await parts.build(asking(request_id="msg_2", **PROMPT, later=called("ok")))
        assert second["degraded"] == [Part.WORKING_MEMORY]
        assert first["messages"][:-1] == second["messages"][: len(first["messages"]) - 1]
        assert "CONVERSATION_SUMMARY" in tags(second)


class TestPrefix:
    """What the next build can begin with."""

    @pytest.mark.parametrize(("source", "longer"), [("fallback", False), ("model", True)])
    async def test_a_summary_that_is_replaced(self, source: str, longer: bool) -> None:
        """Where a model is about to write it anew, nothing from it on is promised."""
        async with remembering(10, summaries_by_model=True) as (parts, memory):
            compaction = memory.cover(CompactionRequest("ada", "default"))
            memory.kept = Snapshot(compaction=compaction.model_copy(update={"source": source}))
            content = await parts.build(asking(**PROMPT))
        assert (content["context"]["prefix"]["messages"] > 2) is longer


class TestTools:
    """The tools that go with a context."""

    @pytest.mark.parametrize(
        ("metadata", "offered"),
        [
            ({"layout": "agent", **PROMPT}, MEMORY_TOOLS),
            ({"layout": "agent", "agent": SUB}, READING_TOOLS),
            ({"layout": "dialogue"}, frozenset()),
            ({"layout": "thinking"}, frozenset()),
        ],
    )
    async def test_whose(self, metadata: dict[str, Any], offered: frozenset[str]) -> None:
        """Those of the memory only where it is shown; a sub-agent may look into it. All others are there for all."""
        window = window_with(context_window=100_000)
        async with remembering(window=window) as (parts, _):
            for name in (*MEMORY_TOOLS, "web_search"):
                parts.registry.register(definition(name), print)
            content = await parts.build(asking(**metadata))
        assert {tool["function"]["name"] for tool in content["tools"]} == offered | {"web_search"}

    @pytest.mark.parametrize(
        ("metadata", "offered"),
        [
            ({"layout": "dialogue"}, {"remember", "search_memory"}),
            ({"layout": "dialogue", "agent": SUB}, {"search_memory"}),
            ({"layout": "thinking"}, set()),
        ],
    )
    async def test_of_dialogues(self, metadata: dict[str, Any], offered: set[str]) -> None:
        """Those that are set for them, in the list and in [CAPABILITIES]; a sub-agent may only look."""
        window = window_with(context_window=100_000)
        tools = frozenset({"remember", "search_memory"})
        async with remembering(window=window, dialogue_tools=tools) as (parts, _):
            for name in MEMORY_TOOLS:
                parts.registry.register(definition(name), print)
            content = await parts.build(asking(**metadata))
        assert {tool["function"]["name"] for tool in content["tools"]} == offered
        if metadata["layout"] == "dialogue":
            assert set(re.findall(r"^### (\w+)", content["messages"][1]["content"], re.MULTILINE)) == offered

    async def test_of_two_agents_in_one_run(self) -> None:
        """A sub-agent that is asked the same in the same run gets its own, and so does the main agent."""
        async with remembering() as (parts, _):
            for name in MEMORY_TOOLS:
                parts.registry.register(definition(name), print)
            main = await parts.build(asking(**PROMPT))
            sub = await parts.build(asking(request_id="msg_2", agent=SUB))
        assert {tool["function"]["name"] for tool in main["tools"]} == MEMORY_TOOLS
        assert {tool["function"]["name"] for tool in sub["tools"]} == READING_TOOLS
        assert "WORKING_MEMORY" not in tags(sub)


async def test_a_preview_compacts_nothing() -> None:
    """It says that a request would have the session compacted."""
    async with remembering(40, length=30) as (parts, memory):
        shown = await parts.builder.preview(asking(**PROMPT), within(5))
        assert (memory.wishes, memory.soon) == ([], [])
        assert TO_COMPACT in shown["context"]["notes"]
        content = await parts.build(asking(**PROMPT))
        assert memory.wishes
        assert TO_COMPACT not in content["context"]["notes"]
