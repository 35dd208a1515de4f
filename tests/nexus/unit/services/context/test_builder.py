"""The builder: what it gathers, what it says is missing, and what stays the same throughout a run (contract §4, §8)."""

import json
import re
from typing import Any

import anyio
import bson
import pytest

from nexus.adapters.in_memory import MemoryBus, MemoryLedger
from nexus.core.errors import ErrorCode, RequestError
from nexus.core.metrics import Part, Stage
from nexus.core.models import Message, new_row_id, seconds_of
from nexus.core.ports import Row
from nexus.services.context.builder import BuilderSettings, ContextBuilder
from nexus.services.context.prompts import PromptManager
from nexus.services.tools.registry import ToolRegistry
from tests.nexus.support.builder_settings import BY_DEFAULT, settings_with
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.metrics import RecordingMetrics
from tests.nexus.unit.services.parts import (
    MOMENT,
    AwayLedger,
    HangingStore,
    definition,
    opened,
    past,
    request,
    within,
)

CALL = {"id": "c1", "type": "function", "function": {"name": "web_search", "arguments": "{}"}}
LATER = [
    {"id": "ai_1", "role": "AI", "content": "Looking.", "metadata": {"tool_calls": [CALL]}},
    {"id": "tool_1", "role": "TOOL", "content": "[THIS_MOMENT] found", "metadata": {"call_id": "c1"}},
]


def seen(content: dict[str, Any]) -> list[str]:
    """The texts of the messages."""
    return [message["content"] for message in content["messages"]]


async def test_a_whole_answer() -> None:
    """Everything that is stored is in it, and the manifest adds up."""
    async with opened() as parts:
        parts.store.plant("messages", past(2))
        parts.store.plant("identities", [{"public_key": "ada", "prompt_overrides": {"friends_profile": "Likes tea."}}])
        parts.registry.register(definition(), print)
        content = await parts.build(request("What now?"))
    assert [*content] == ["status", "layout", "messages", "tools", "context", "degraded"]
    assert (content["status"], content["layout"], content["degraded"]) == ("success", "dialogue", [])
    assert content["tools"] == [definition()]
    assert seen(content) == [
        PromptManager().get_core_identity(),
        "[CAPABILITIES]\nAvailable tools in this conversation:\n\n### web_search\nd",
        (
            "[SHARED_MEMORY count=4]\nRecent conversation memory:\n\n"
            "[2025-12-01 00:00] Human: HUMAN 0\n  Nexus: AI 0\n[2025-12-01 00:01] Human: HUMAN 1\n  Nexus: AI 1"
        ),
        "[FRIENDS_INFO]\nAbout this friend:\n\nLikes tea.",
        (
            "[THIS_MOMENT]\n<current_time>2025-12-10 08:00:00+00:00</current_time>\n"
            "<human_input>\nWhat now?\n</human_input>"
        ),
    ]
    manifest = content["context"]
    assert [*manifest] == ["layout", "blocks", "history", "prefix", "notes", "left_out", "timings_ms"]
    assert manifest["history"] == {"fetched": 4, "merged": 4, "shown": 4, "repaired": 0}
    assert [block["bytes"] for block in manifest["blocks"]] == [len(text.encode()) for text in seen(content)]
    assert manifest["blocks"][4]["sources"] == ["human_of_run_1"]
    assert set(manifest["timings_ms"]) == {"gather", "assemble", "build"}
    assert manifest["notes"] == []


@pytest.mark.parametrize(("form", "most"), [("openai", 128), ("anthropic", 130)])
async def test_no_more_tools_are_described_than_the_provider_takes(form: str, most: int) -> None:
    """The description is of the tools that go with it, and the others are told."""
    async with opened() as parts:
        for number in range(130):
            parts.registry.register(definition(f"tool_{number:03}"), print)
        content = await parts.build(request(run_metadata={"format": form}))
    described = re.findall("### (tool_...)", json.dumps([content.get("system"), content["messages"]]))
    assert described == [f"tool_{number:03}" for number in range(most)]
    assert len(content["tools"]) == most
    assert len(content["context"]["left_out"]) == 130 - most


async def test_the_input_is_recorded() -> None:
    """Under its own id, in its session, and not shown as memory in its own context."""
    async with opened() as parts:
        content = await parts.build(request("hi", run_metadata={"session_id": "s1"}))
        again = await parts.build(request("hi", "msg_2", run_metadata={"session_id": "s1"}))
        await parts.persistence.flush()
    (row,) = parts.store.messages
    assert (row["id"], row["run_id"], row["session_id"], row["content"]) == ("human_of_run_1", "run_1", "s1", "hi")
    assert "count=0" in seen(content)[2]
    assert again["messages"] == content["messages"]


@pytest.mark.parametrize("away", [False, True], ids=["stored", "in the outbox"])
@pytest.mark.parametrize("layout", ["agent", "thinking"])
async def test_the_input_of_a_replica_that_died(layout: str, *, away: bool) -> None:
    """The replica kept what the run goes by, and its input was never stored: the next one that answers records it."""
    message = request("hi", run_metadata={"layout": layout})
    async with opened() as died:
        await died.build(message)
    store = HangingStore("insert_message") if away else FakeStore()
    async with opened(store, ledger=died.ledger) as parts:
        built = await parts.builder.build(message, within(5.0))
    assert [row["id"] for row in parts.store.messages] == ([] if away else ["human_of_run_1"])
    assert (built.outbox is not None) is away


class LateReads(FakeStore):
    """A store that reads a session, or the past, when it has the input."""

    def __init__(self) -> None:
        super().__init__()
        self.inserted = anyio.Event()

    async def insert_message(self, row: Row) -> bool:
        """Record a row."""
        is_new = await super().insert_message(row)
        self.inserted.set()
        return is_new

    async def newest_messages(self, owner_key: str, **given: Any) -> list[Row]:
        """Rows."""
        await self.inserted.wait()
        return await super().newest_messages(owner_key, **given)

    async def session_messages(self, owner_key: str, session_id: str, **given: Any) -> list[Row]:
        """Rows."""
        await self.inserted.wait()
        return await super().session_messages(owner_key, session_id, **given)


@pytest.mark.parametrize("layout", ["dialogue", "agent"])
async def test_an_input_that_is_stored_before_the_history_is_read(layout: str) -> None:
    """Hides no result that a replica stored whose clock is ahead."""
    store = LateReads()
    ahead = seconds_of(new_row_id()) + 60
    later_ids = (bson.ObjectId(f"{ahead:08x}{place:016x}") for place in range(2))
    store.plant("messages", [{**each, "_id": row_id} for each, row_id in zip(past(1), later_ids, strict=True)])
    async with opened(store) as parts:
        content = await parts.build(request(run_metadata={"layout": layout}))
    assert content["degraded"] == []
    assert "AI 0" in json.dumps(content["messages"])


async def test_errors_are_answers() -> None:
    """A request that cannot be built is told why, and records nothing."""
    async with opened() as parts:
        content = await parts.build(request(" "))
    assert content == {
        "status": "error",
        "error": {"code": "EMPTY_INPUT", "message": "run.history[0].content: is empty", "retryable": False},
        "messages": [],
        "tools": [],
    }
    assert parts.store.messages == []


class TestContinuation:
    """Later builds of a run begin with the same bytes."""

    async def test_the_runs_own_messages_follow(self) -> None:
        """In provider form, with a block of their own in the manifest."""
        async with opened() as parts:
            first = await parts.build(request())
            content = await parts.build(request(request_id="msg_2", later=LATER))
        assert content["messages"][:5] == first["messages"]
        assert [message["role"] for message in content["messages"][5:]] == ["assistant", "tool"]
        own = json.dumps(content["messages"][5:], ensure_ascii=False, separators=(",", ":"))
        assert content["context"]["blocks"][5] == {
            "tag": "RUN",
            "role": "assistant",
            "index": 5,
            "messages": 2,
            "bytes": len(own.encode()),
            "sources": ["ai_1", "tool_1"],
            "truncated": 0,
            "dropped": 0,
            "escaped": 1,
        }
        assert content["context"]["blocks"][:5] == first["context"]["blocks"]

    async def test_the_first_five_never_change(self) -> None:
        """History, tools, profile, settings and the sender's clock may all have changed since the run began."""
        async with opened() as parts:
            parts.store.plant("messages", past(1))
            first = await parts.build(request())
            parts.store.plant("messages", past(3)[2:])
            parts.store.plant("identities", [{"public_key": "ada", "prompt_overrides": {"friends_profile": "New."}}])
            parts.registry.register(definition(), print)
            parts.builder.settings = settings_with(history_size=1, default_profile="Other.")
            later = {"client_timestamp_utc": "2026-01-01T00:00:00Z", "client_timezone_offset": 300}
            for number in range(2, 4):
                message = request(request_id=f"msg_{number}", later=LATER, run_metadata=later)
                content = await parts.build(message)
                assert json.dumps(content["messages"][:5]) == json.dumps(first["messages"])
                assert content["tools"] == first["tools"] == []
                assert content["context"]["prefix"] == first["context"]["prefix"]

    async def test_another_input_is_another_beginning(self) -> None:
        """What is kept is kept for owner, run, layout and input."""
        async with opened() as parts:
            await parts.build(request("one"))
            content = await parts.build(request("two", "msg_2", later=LATER))
            other = await parts.build(request("one", "msg_3", owner="bob", later=LATER))
        assert "two" in seen(content)[4]
        assert other["degraded"] == []

    async def test_repairs_are_noted(self) -> None:
        """A call without a result."""
        async with opened() as parts:
            content = await parts.build(request(later=LATER[:1]))
        assert content["context"]["notes"] == ["run.history: call ai_1[0] has no result"]
        assert content["messages"][-1]["content"] == "(no result was recorded for this call)"

    async def test_a_bus_that_is_away_costs_nothing_but_the_keeping(self) -> None:
        """The context is built anew."""
        bus = MemoryBus()
        async with opened(bus=bus, ledger=AwayLedger(bus)) as parts:
            first = await parts.build(request())
            content = await parts.build(request(request_id="msg_2", later=LATER))
        assert content["messages"][:5] == first["messages"]
        assert content["degraded"] == []


class TestDegraded:
    """What is missing is named, and never an empty memory passed off as a true one."""

    async def test_the_store_is_down(self) -> None:
        """History and profile are missing; the rest is an answer."""
        async with opened() as parts:
            parts.store.plant("messages", past(2))
            parts.store.down = True
            content = await parts.build(request())
            parts.store.down = False
            whole = await parts.build(request(request_id="msg_2", later=LATER))
        assert content["degraded"] == ["history", "profile"]
        assert "count=0" in seen(content)[2]
        assert whole["degraded"] == []
        assert "count=4" in seen(whole)[2]

    async def test_tools_that_are_not_read_yet(self) -> None:
        """Then only the identity is a prefix worth keeping."""
        async with opened() as parts:
            parts.registry.complete = False
            content = await parts.build(request())
        assert content["degraded"] == ["tools"]
        assert content["context"]["prefix"]["messages"] == 1

    async def test_a_profile_in_the_request_is_not_asked_for(self) -> None:
        """Not even an empty one."""
        async with opened() as parts:
            content = await parts.build(request(run_metadata={"user_profile": {}}))
        assert "find_identity" not in parts.store.calls
        assert content["degraded"] == []

    async def test_somebody_elses_profile_is_not_shown(self) -> None:
        """A store that answers wrongly is a store that did not answer."""
        async with opened(WrongStore()) as parts:
            content = await parts.build(request())
        assert content["degraded"] == ["profile"]
        assert "canary" not in json.dumps(content)


class WrongStore(FakeStore):
    """A store that mixes owners up."""

    async def find_identity(self, public_key: str) -> Row | None:
        """The identity of somebody else."""
        return {"public_key": f"not {public_key}", "prompt_overrides": {"friends_profile": "canary"}}


class TestHistorySize:
    """How many messages are shown."""

    @pytest.mark.parametrize("sent", [False, True], ids=["stored", "sent along"])
    @pytest.mark.parametrize(
        ("wanted", "shown", "notes"),
        [(None, 4, 0), (2, 2, 0), (1_000, 12, 1), ("many", 4, 1)],
    )
    async def test_the_owners_wish(self, wanted: Any, shown: int, notes: int, *, sent: bool) -> None:
        """Granted between 1 and 200, else noted; it comes from the store or with the request."""
        profile = {"public_key": "ada", "config_overrides": {"history_context_size": wanted}}
        async with opened(settings=settings_with(history_size=4)) as parts:
            parts.store.plant("messages", past(6))
            parts.store.plant("identities", [] if sent else [profile])
            content = await parts.build(request(run_metadata={"user_profile": profile} if sent else {}))
        assert content["context"]["history"]["shown"] == shown
        assert len(content["context"]["notes"]) == notes


class TestWithoutABus:
    """`build_context`: the five messages by keyword."""

    async def test_the_same_as_over_the_bus(self) -> None:
        """And nothing is recorded."""
        async with opened() as parts:
            parts.store.plant("messages", past(2))
            messages = await parts.builder.build_context(
                owner_key="ada", user_profile={}, current_input="hello", timestamp_utc=MOMENT, timezone_offset="-480"
            )
            assert len(parts.store.messages) == 4
            metadata = {"user_profile": {}, "client_timezone_offset": -480}
            content = await parts.build(request(run_metadata=metadata))
        assert messages == content["messages"]

    async def test_the_current_run_is_left_out(self) -> None:
        """When it is named."""
        async with opened() as parts:
            parts.store.plant("messages", past(2))
            messages = await parts.builder.build_context(
                owner_key="ada", current_input="hello", current_run_id="past_1"
            )
        assert "count=2" in messages[2]["content"]

    async def test_refusals(self) -> None:
        """As in a request."""
        async with opened(settings=settings_with(on_history_failure="error")) as parts:
            with pytest.raises(RequestError) as caught:
                await parts.builder.build_context(owner_key="ada", current_input="")
            assert caught.value.code is ErrorCode.EMPTY_INPUT
            parts.store.down = True
            with pytest.raises(RequestError) as caught:
                await parts.builder.build_context(owner_key="ada", current_input="hi")
            assert caught.value.code is ErrorCode.HISTORY_UNAVAILABLE


async def built(*messages: Message, settings: BuilderSettings = BY_DEFAULT, down: bool = False) -> RecordingMetrics:
    """What is reported of these builds, one after another."""
    store, metrics = FakeStore(), RecordingMetrics()
    async with opened(store) as parts:
        store.down = down
        registry = ToolRegistry()
        builder = ContextBuilder(parts.persistence, store, registry, parts.ledger, settings, metrics=metrics)
        registry.complete = not down
        for message in messages:
            await builder.build(message, within(0.2 if down else 5.0))
        store.down = False
    return metrics


async def test_the_stages_of_a_build() -> None:
    """A first build gathers and assembles; a later one of the run gathers what the first has kept."""
    later = [{"role": "AI", "content": "on it"}]
    metrics = await built(request(), request(request_id="msg_2", later=later))
    assert metrics.stages == [Stage.GATHER, Stage.ASSEMBLE, Stage.BUILD, Stage.GATHER, Stage.BUILD]
    assert not metrics.counted


async def test_missing_parts_are_counted() -> None:
    """Each by its name, once a build."""
    metrics = await built(request(), down=True)
    assert metrics.counted == {Part.HISTORY: 1, Part.PROFILE: 1, Part.TOOLS: 1}
    assert metrics.stages == [Stage.GATHER, Stage.ASSEMBLE, Stage.BUILD]


@pytest.mark.parametrize("text", ["hello", ""])
async def test_a_build_that_fails_is_measured_as_far_as_it_came(text: str) -> None:
    """Without its history where that is demanded, it has gathered; refused before it begins, it has not."""
    metrics = await built(request(text), settings=settings_with(on_history_failure="error"), down=True)
    assert metrics.stages == ([Stage.GATHER, Stage.BUILD] if text else [])
    assert metrics.counted[Part.HISTORY] == (1 if text else 0)


class CountingLedger(MemoryLedger):
    """A ledger that counts what it is given to keep."""

    given = 0

    async def keep_first(self, key: str, value: bytes, keep_ms: int) -> bytes:
        """Keep a value."""
        self.given += 1
        return await super().keep_first(key, value, keep_ms)


@pytest.mark.parametrize("layout", ["dialogue", "agent", "thinking"])
async def test_a_preview(layout: str) -> None:
    """It is what a build of the same request gives, and neither records nor keeps anything."""
    store, ledger = FakeStore(), CountingLedger(MemoryBus())
    asked = request("What now?", run_metadata={"layout": layout})
    async with opened(store, ledger=ledger) as parts:
        store.plant("messages", past(3))
        parts.registry.register(definition(), print)
        before = [*store.messages]
        shown = await parts.builder.preview(asked, within(5))
        assert (store.messages, ledger.given) == (before, 0)
        content = await parts.build(asked)
        assert (len(store.messages), ledger.given) == (len(before) + 1, 1)
    for found in (shown, content):
        found["context"]["timings_ms"] = {}
    assert shown == content


async def test_a_preview_of_what_is_refused() -> None:
    """The error is that of the answer."""
    async with opened() as parts:
        with pytest.raises(RequestError, match="EMPTY_INPUT"):
            await parts.builder.preview(request(" "), within(5))
    async with opened(HangingStore("newest_messages")) as parts:
        shown = await parts.builder.preview(request("x"), within(0.2))
        assert shown["degraded"] == ["history"]
