"""The last version of a message is kept while it grows within its run, whatever comes first and whoever writes it."""

import json
from collections.abc import Mapping
from itertools import permutations
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexus.core.errors import StoreRejectedError
from nexus.core.models import Message, Role, Topics
from nexus.core.ports import Row, RunOrigin
from nexus.core.ports.store import LONGEST_CONTENT
from nexus.services.history.forms import success_of
from nexus.services.history.rows import ROW_MAKERS, llm_row
from nexus.services.persistence import PersistenceService
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.rows import START
from tests.nexus.support.tombstones import NO_TOMBSTONES
from tests.nexus.support.waiting import PATIENCE_S

CALLS = [{"id": f"c{number}", "name": "search", "arguments": "{}"} for number in range(3)]
TOPICS = {Role.AI: Topics.LLM_RESULTS, Role.TOOL: Topics.TOOLS_RESULTS, Role.HUMAN: Topics.RUNS_INPUT}


def version(content: Any, *, role: Role = Role.AI, run_id: str = "r", **metadata: Any) -> Message:
    """A version of the message `m` of the owner `o`."""
    known = {"id": "m", "run_id": run_id, "owner_key": "o", "timestamp": START}
    return Message(**known, role=role, content=content, metadata=metadata)


async def told_of(store: FakeStore, *messages: Message) -> list[Row]:
    """Record the messages, one after another; returns the rows that others were told of."""
    told: list[Row] = []

    async def note(row: Row) -> None:
        told.append(row)

    async with PersistenceService(store, NO_TOMBSTONES, recorded=note).running() as service:
        for message in messages:
            assert service.offer(ROW_MAKERS[TOPICS[message.role]](message, 10), 10)
            with anyio.fail_after(PATIENCE_S):
                await service.flush()
    return told


async def kept_of(*messages: Message) -> tuple[Any, Mapping[str, Any]]:
    """Content and metadata of the one row that the messages leave."""
    store = FakeStore()
    await told_of(store, *messages)
    (row,) = store.messages
    return row["content"], row["metadata"]


GROWING = [
    [version(text) for text in ("H", "Hel", "Hello 🌧", "Hello 🌧\n界")],
    [version({"content": "Let me see.", "tool_calls": CALLS[:count]}) for count in range(4)],
    [version(text, revision=number) for number, text in enumerate(("abc", "x", "", "abc"), 1) if text],
    [version("none"), version("later", revision=1), version("last", revision=2)],
    [version({"result": {"n": n}, "call_id": "c", "status": "success"}, role=Role.TOOL, revision=n) for n in range(3)],
    [version(text, role=Role.HUMAN) for text in ("no,", "no, Bergen", "no, Bergen!")],
]


@pytest.mark.parametrize(
    ("status", "success"), [({}, None), ({"status": "success"}, True), ({"status": "error"}, False)]
)
async def test_what_comes_in_the_place_of_its_stand_in(status: dict[str, str], success: bool | None) -> None:
    """It did not fail because the first attempt was too large to be recorded."""
    stand_in = version({"result": "too large", "call_id": "c", "status": "error"}, role=Role.TOOL, revision=-1)
    text, metadata = await kept_of(stand_in, version({"result": "42", "call_id": "c", **status}, role=Role.TOOL))
    assert (text, success_of(metadata)) == ("42", success)


@pytest.mark.parametrize("versions", GROWING)
async def test_versions_in_any_order(versions: list[Message]) -> None:
    """The last one is kept, whichever order they come in, also each twice; nobody is told of one that is no later."""
    last = await kept_of(versions[-1])
    for order in permutations(versions):
        kept = await kept_of(*order, *order)
        assert kept[0] == last[0]
        assert {name: value for name, value in kept[1].items() if value is not None} == {
            name: value for name, value in last[1].items() if value is not None
        }
        store = FakeStore()
        told = await told_of(store, *order, *order)
        assert len(told) <= len(versions)
        assert told[-1]["content"] == last[0]
        assert await told_of(store, *order) == []


async def test_two_replicas_at_once() -> None:
    """Both write versions of one message at the same time: the last is kept, and neither waits for ever."""
    for _ in range(20):
        store = FakeStore()

        async def write(numbers: range, store: FakeStore = store) -> None:
            async with PersistenceService(store, NO_TOMBSTONES).running() as service:
                for number in numbers:
                    assert service.offer(llm_row(version("x" * (number + 1)), 10), 10)
                with anyio.fail_after(PATIENCE_S):
                    await service.flush()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write, range(0, 40, 2))
            tasks.start_soon(write, range(1, 40, 2))
        assert [row["content"] for row in store.messages] == ["x" * 40]


class Overtaken(FakeStore):
    """A store in which another replica stores a version just before each of ours."""

    others: list[str]

    async def update_message(
        self, owner_key: str, row_id: str, changes: Mapping[str, Any], *, seen: Mapping[str, Any]
    ) -> bool:
        """Change fields of a row, after another did."""
        if self.others:
            self.messages[0]["content"] = self.others.pop(0)
        return await super().update_message(owner_key, row_id, changes, seen=seen)


@pytest.mark.parametrize(
    ("others", "kept"),
    [(["ab", "abc"], "abcdef"), (["abcdefg"], "abcdefg"), (["abX"], "abX"), (["abcdef"], "abcdef")],
)
async def test_a_version_that_is_overtaken(others: list[str], kept: str) -> None:
    """It is compared with what is there now."""
    store = Overtaken()
    store.others = []
    await told_of(store, version("a"))
    store.others = others
    await told_of(store, version("abcdef"))
    assert [row["content"] for row in store.messages] == [kept]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (version("later", revision=3), version("earlier but longer", revision=2)),
        (version("later", revision=3), version("without")),
        (version("later", revision=0), version("other")),
        (version("Hello"), version("Hello", revision=0)),
        (version("Hello"), version("Hell")),
        (version("Hello"), version("hello, you")),
        (version("Hello"), version("Hello, result", role=Role.TOOL)),
        (version({"content": "a", "tool_calls": CALLS}), version("ab")),
        (version({"content": "a", "tool_calls": CALLS[:1]}), version({"content": "a", "tool_calls": CALLS[1:]})),
        (version({"result": {"a": 1}}, role=Role.TOOL), version({"result": {"a": 1, "b": 2}}, role=Role.TOOL)),
    ],
)
async def test_what_is_no_later_version(first: Message, second: Message) -> None:
    """A revision that goes back, another text, another speaker: what is stored stays as it is, calls included."""
    kept = await kept_of(first, second)
    expected = await kept_of(first)
    if second.content == "ab":
        # It goes on with the text, and need not repeat the calls.
        expected = ("ab", expected[1])
    assert kept == expected


@pytest.mark.parametrize(
    ("first", "second", "lost"),
    [
        (version("Hello"), version("Hello"), False),
        (version("Hello"), version("Hell"), False),
        (version("Hello", revision=2), version("other", revision=1), False),
        (version({"content": "a", "tool_calls": CALLS}), version("a"), False),
        (version({"result": {"a": 1}}, role=Role.TOOL), version({"result": {"a": 1}}, role=Role.TOOL), False),
        (version("界" * LONGEST_CONTENT), version("界" * (LONGEST_CONTENT - 1)), False),
        (version("Hello"), version("hello, you"), True),
        (version("Hello", revision=1), version("other", revision=1), True),
        (version({"content": "a", "tool_calls": CALLS[:1]}), version({"content": "a", "tool_calls": CALLS[1:]}), True),
        (version({"result": {"a": 1}}, role=Role.TOOL), version({"result": {"a": 2}}, role=Role.TOOL), True),
        (version("界" * LONGEST_CONTENT), version("界 and another"), True),
    ],
)
async def test_another_text_under_a_known_id(first: Message, second: Message, *, lost: bool) -> None:
    """Its sender is told, and nobody takes it for recorded; what the stored one says already is a resend."""
    store, settled, told = FakeStore(), list[str | None](), list[Row]()

    async def note(row: Row) -> None:
        told.append(row)

    async with PersistenceService(store, NO_TOMBSTONES, recorded=note).running() as service:
        for message in (first, second):
            assert service.offer(ROW_MAKERS[TOPICS[message.role]](message, 10), 10, settled.append)
            with anyio.fail_after(PATIENCE_S):
                await service.flush()
    reason = "Another text is recorded under this id; a later version needs a higher metadata.revision"
    assert settled == [None, reason if lost else None]
    assert len(store.messages) == len(told) == 1


LONG_CALL = {"id": "c", "function": {"name": "write", "arguments": json.dumps({"text": "x" * 70_000})}}
MANY_CALLS = [{"id": f"c{n}", "name": "search", "args": {"q": f"{n}" + "x" * 600}} for n in range(200)]
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA" * 25_000}}
FOUND = {"type": "tool_result", "tool_use_id": "c", "content": "found"}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # Just above 4 KiB for one of the two, which has metadata that the other has not.
        (version({"result": {"a": 1.5}, "call_id": "c"}, role=Role.TOOL), None),
        (version({"content": "a", "tool_calls": [{"id": "c", "name": "t", "args": {"q": {"n": 1}}}]}), None),
        (version({"result": {"a": 2**62, "b": 1e-7, "c.d": [None, 2**53 + 1]}}, role=Role.TOOL), None),
        # What is too large to be read as a whole.
        (version({"content": "a", "tool_calls": [LONG_CALL]}), None),
        (version({"content": "a", "tool_calls": MANY_CALLS}), None),
        (version([FOUND, PICTURE, {"type": "text", "text": "see"}], role=Role.HUMAN), None),
        # The same in other words.
        (
            version({"content": "a", "tool_calls": [{"id": "c", "name": "t", "args": {"q": 1}}]}),
            version({"content": "a", "tool_calls": [{"id": "c", "function": {"name": "t", "arguments": '{"q": 1}'}}]}),
        ),
        (version({"result": {"a": 1}}, role=Role.TOOL), version({"result": '{"a":1}'}, role=Role.TOOL)),
    ],
)
async def test_a_resend_is_no_other_text(first: Message, second: Message | None) -> None:
    """Whatever its size, also in another form: nothing is refused, and one row is left."""
    settled: list[str | None] = []
    store = FakeStore()
    async with PersistenceService(store, NO_TOMBSTONES).running() as service:
        for message, size in ((first, 4_000), (second or first, 5_000), (first, 4_000)):
            assert service.offer(ROW_MAKERS[TOPICS[message.role]](message, size), 10, settled.append)
            with anyio.fail_after(PATIENCE_S):
                await service.flush()
    assert settled == [None, None, None]
    assert len(store.messages) == 1


@pytest.mark.parametrize("calls", [[LONG_CALL], MANY_CALLS])
async def test_calls_that_are_not_read_as_a_whole(calls: list[Any]) -> None:
    """The message grows in text and in calls, and another call under its id is told."""
    more = [*calls, CALLS[0]]
    said = [{"content": "a", "tool_calls": calls}, {"content": "ab", "tool_calls": calls}]
    content, metadata = await kept_of(*map(version, [*said, {"content": "ab", "tool_calls": more}, *said]))
    assert (content, [call["id"] for call in metadata["tool_calls"]]) == ("ab", [call["id"] for call in more])
    settled: list[str | None] = []
    async with PersistenceService(FakeStore(), NO_TOMBSTONES).running() as service:
        for given in (calls, [{"id": "other", "name": "t", "args": {}}, *calls]):
            assert service.offer(llm_row(version({"content": "a", "tool_calls": given}), 10), 10, settled.append)
            await service.flush()
    assert [bool(reason) for reason in settled] == [False, True]


@pytest.mark.parametrize("revision", [True, "7", 1.5, None, 2**63, -(2**63) - 1, [], {}])
async def test_a_revision_that_is_none(revision: Any) -> None:
    """It counts as no revision, in a message and in a row of another writer."""
    assert await kept_of(version("Hel", revision=revision), version("Hello", revision=revision)) == await kept_of(
        version("Hello")
    )
    store = FakeStore()
    planted = {"id": "m", "run_id": "r", "owner_key": "o", "session_id": "s", "role": "AI", "content": "Hel"}
    store.plant("messages", [{**planted, "timestamp": START, "metadata": {"revision": str(revision)}}])
    await told_of(store, version("Hello", revision=1))
    assert store.messages[0]["content"] == "Hello"


@pytest.mark.parametrize("metadata", [None, "x", []])
async def test_a_row_of_another_writer(metadata: Any) -> None:
    """One whose metadata is no object stays as it is, and so does one of a role that is spelled in another way."""
    planted = {"id": "m", "run_id": "r", "owner_key": "o", "session_id": "s", "content": "Hel", "timestamp": START}
    for changes in ({"role": "AI", "metadata": metadata}, {"role": "assistant", "metadata": {}}):
        store = FakeStore()
        store.plant("messages", [{**planted, **changes}])
        assert await told_of(store, version("Hello")) == []
        assert [row["content"] for row in store.messages] == ["Hel"]


@pytest.mark.parametrize("calls", [1.5, True, "x"])
async def test_calls_that_are_none(calls: Any) -> None:
    """In a row of another writer they count as none, and in a message they are not recorded."""
    planted = {"id": "m", "run_id": "r", "owner_key": "o", "session_id": "s", "role": "AI", "content": "Hel"}
    store = FakeStore()
    store.plant("messages", [{**planted, "timestamp": START, "metadata": {"tool_calls": calls}}])
    await told_of(store, version("Hello"))
    assert store.messages[0]["content"] == "Hello"
    _, metadata = await kept_of(version({"content": "a", "tool_calls": calls}))
    assert (metadata["tool_calls"], metadata["has_tool_calls"]) == (None, False)


async def test_what_a_later_version_does_not_say() -> None:
    """Calls, tool, call and outcome stay; what was said of the earlier version alone goes."""
    asked = {"content": [{"type": "thinking", "thinking": "…"}, {"type": "text", "text": "a"}], "tool_calls": CALLS}
    first, then = version(asked, revision=1), version("b", revision=2)
    content, metadata = await kept_of(first, then)
    assert (content, metadata["tool_calls"], metadata["has_tool_calls"]) == ("b", CALLS, True)
    assert (metadata["left_out"], metadata["raw"]) == (None, None)
    known = {"tool_name": "search", "call_id": "c", "status": "success"}
    content, metadata = await kept_of(
        version({"result": "1", **known}, role=Role.TOOL), version("12", role=Role.TOOL, revision=1)
    )
    told = {"source": "tool_result", **known, "execution_success": True, "revision": 1}
    assert (content, {name: value for name, value in metadata.items() if value is not None}) == ("12", told)
    failed = version({"result": "12", "status": "error"}, role=Role.TOOL, revision=1)
    _, metadata = await kept_of(version({"result": "1", **known}, role=Role.TOOL), failed)
    assert (metadata["status"], metadata["execution_success"], metadata["call_id"]) == ("error", False, "c")


async def test_an_id_of_another_run() -> None:
    """It is another message, which is recorded under an id of its own; its versions are its own, too."""
    store = FakeStore()
    await told_of(store, version("a"), version("ab", run_id="other"), version("ab", run_id="other"), version("abc"))
    assert sorted((row["run_id"], row["content"]) for row in store.messages) == [("other", "ab"), ("r", "abc")]


async def test_place_and_session_stay() -> None:
    """The row keeps its `_id`, its time, its session and whose it is: a version that comes late moves nothing."""
    store = FakeStore()
    async with PersistenceService(store, NO_TOMBSTONES).running() as service:
        asked = Message(id="h", run_id="r", owner_key="o", role=Role.HUMAN, content="hi", timestamp=START)
        await service.insert_input(service.input_row(asked, RunOrigin("s", "scout")))
        service.offer(llm_row(version("a"), 10), 10)
        await service.flush()
        before = next(dict(row) for row in store.messages if row["id"] == "m")
        service.offer(llm_row(version("ab", session_id="elsewhere"), 10), 10)
        await service.flush()
    after = next(row for row in store.messages if row["id"] == "m")
    assert after == {**before, "content": "ab"}
    assert before["metadata"]["agent_id"] == "scout"


async def test_a_store_that_is_away_in_between() -> None:
    """At each step of keeping a version: it is tried again, and told of once it is kept."""
    for operation in ("find_message", "messages_of_ids", "update_message"):
        store = FakeStore()
        await told_of(store, version("a"))
        settled: list[str | None] = []
        async with PersistenceService(store, NO_TOMBSTONES).running() as service:
            store.failing = operation
            assert service.offer(llm_row(version("ab"), 10), 10, settled.append)
            await anyio.wait_all_tasks_blocked()
            assert (service.unwritten, settled, store.messages[0]["content"]) == (1, [], "a")
            store.failing = ""
            with anyio.fail_after(PATIENCE_S):
                await service.flush()
        assert (settled, store.messages[0]["content"]) == ([None], "ab")


class Refusing(FakeStore):
    """A store that refuses the content `bad`."""

    async def insert_message(self, row: Row) -> bool:
        """Record a row, unless it is refused."""
        if row["content"] == "bad":
            raise StoreRejectedError("WriteError 121")
        return await super().insert_message(row)

    async def update_message(
        self, owner_key: str, row_id: str, changes: Mapping[str, Any], *, seen: Mapping[str, Any]
    ) -> bool:
        """Change fields of a row, unless they are refused."""
        if changes["content"] == "bad":
            raise StoreRejectedError("WriteError 121")
        return await super().update_message(owner_key, row_id, changes, seen=seen)


async def test_a_version_that_the_store_refuses() -> None:
    """The earlier one stays. Where there is none, any later one takes the place of the word on it."""
    store, settled = Refusing(), list[str | None]()
    async with PersistenceService(store, NO_TOMBSTONES).running() as service:
        for message in (version("good"), version("bad", revision=1), version("bad", revision=1)):
            assert service.offer(llm_row(message, 10), 10, settled.append)
            await service.flush()
    refused = "The database refused it: WriteError 121"
    assert (settled, [row["content"] for row in store.messages]) == ([None, refused, refused], ["good"])
    store = Refusing()
    await told_of(store, version("bad"))
    assert "could not be kept" in store.messages[0]["content"]
    assert [row["content"] for row in await told_of(store, version("short"), version("another"))] == ["short"]
    assert [row["content"] for row in store.messages] == ["short"]


@pytest.mark.parametrize("length", [LONGEST_CONTENT - 1, LONGEST_CONTENT, LONGEST_CONTENT + 1, 3 * LONGEST_CONTENT])
async def test_long_texts(length: int) -> None:
    """Those of which stores give no middle grow too; one that differs in the middle is another text."""
    text = "".join(chr(0x4E00 + place % 20_000) for place in range(length))
    content, _ = await kept_of(version(text), version(text + "!"), version(text + "!?"), version(text[:-5]))
    assert content == text + "!?"
    if length > 2 * LONGEST_CONTENT:
        place = length // 2
        other = text[:place] + "#" + text[place + 1 :]
        assert (await kept_of(version(text), version(other + "!")))[0] == text


@settings(max_examples=200)
@given(st.lists(st.sampled_from(["", "a", "ab", "abc", "b", "ba"]), min_size=1, max_size=6), st.randoms())
async def test_one_row_whatever_comes(texts: list[str], random: Any) -> None:
    """There is one row, its text came in some version, and none that came begins with it and is longer."""
    messages = [version(text) for text in texts]
    random.shuffle(messages)
    store = FakeStore()
    await told_of(store, *messages)
    said = [text for text in texts if text]
    assert len(store.messages) == min(len(said), 1)
    for row in store.messages:
        assert row["content"] in said
        assert not [text for text in said if text.startswith(row["content"]) and text != row["content"]]
