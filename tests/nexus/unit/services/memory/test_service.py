"""What calls of the memory tools do (contract §7): once, checked before anything is done, and told in words."""

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from nexus.core.errors import StoreUnavailableError
from nexus.core.ports.memory import NewestMemory
from nexus.core.working_memory import CompactionRequest, Snapshot
from nexus.services.memory.documents import TEMPLATE
from nexus.services.memory.service import Outcome, WorkingMemory
from nexus.services.person.constraint_changes import Target
from nexus.services.person.facts import Facts
from nexus.services.tools.memory_tools import MEMORY_TOOLS, READING_TOOLS
from tests.nexus.support.constraints import constraints_on
from tests.nexus.support.fake_memory import FakeMemoryStore
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.tombstones import NO_TOMBSTONES
from tests.nexus.unit.services.memory.calling import (
    CALLER,
    COMPACTION,
    NOON,
    Compacting,
    archive,
    memory_on,
    raced,
    read,
    update,
    write,
)
from tests.nexus.unit.services.remembering_turns import FakeTurns


class TestOverview:
    """Revisions, each written by one, in place of the one before."""

    async def test_revisions(self) -> None:
        """Each update is a revision, numbered from 1, and the newest is what contexts show."""
        store = FakeStore()
        memory = memory_on(store)
        assert await memory.snapshot("ada", "s") == Snapshot()
        first = await update(memory, "# One", 1)
        second = await update(memory, "# Zwei ö", 2, base_revision=1)
        assert first.text == "The overview is revision 1 now, 5 of 5120 bytes. The next exchange begins with it."
        assert second == Outcome("The overview is revision 2 now, 9 of 5120 bytes. The next exchange begins with it.")
        overview = (await memory.snapshot("ada", "s")).overview
        assert overview is not None
        assert (overview.revision, overview.content, overview.run_id) == (2, "# Zwei ö", "run_9")
        assert (overview.author, overview.call_id, overview.turn_number) == ("model", "call_2", 0)
        assert [kept["revision"] for kept in store.memory.rows["working_memory"]] == [1, 2]

    async def test_the_same_text_again(self) -> None:
        """It makes no new revision, and the result says so; on an outdated revision it is refused like any other."""
        store = FakeStore()
        memory = memory_on(store)
        await update(memory, "# One", 1)
        again = await update(memory, "# One", 2)
        assert again == Outcome("That is what the overview says already: unchanged, revision 1.")
        assert await update(memory, "# One", 3, base_revision=1) == again
        assert not (await update(memory, "# One", 4, base_revision=0)).done
        assert len(store.memory.rows["working_memory"]) == 1
        await update(memory, "# Two", 5)
        assert (await update(memory, "# One", 6)).text.startswith("The overview is revision 3 now")

    async def test_the_template_is_no_content(self) -> None:
        """Sending it back does not make it one."""
        store = FakeStore()
        refused = await update(memory_on(store), f"\n{TEMPLATE}\n\n")
        assert (refused.done, store.memory.rows["working_memory"]) == (False, [])
        assert refused.text.startswith("content: is the template")

    async def test_the_same_call_again(self) -> None:
        """It changes nothing and gives the same answer, also when others have written since."""
        store = FakeStore()
        memory = memory_on(store)
        first = await update(memory, "mine", 1, base_revision=0)
        await update(memory, "another's", 2)
        assert await update(memory, "mine", 1, base_revision=0) == first
        assert [kept["content"] for kept in store.memory.rows["working_memory"]] == ["mine", "another's"]

    async def test_overtaken(self) -> None:
        """Without a revision it takes the next number; with one it is refused, since that is outdated now."""
        store, kept = raced()
        about = {"owner_key": "ada", "session_id": "s", "updated_at": NOON}
        kept.overtaken = [{"revision": 1, "content": "theirs", **about}]
        memory = memory_on(store)
        assert (await update(memory, "mine", 1)).text.startswith("The overview is revision 2 now")
        kept.overtaken = [{"revision": 3, "content": "theirs again", **about}]
        refused = await update(memory, "mine again", 2, base_revision=2)
        assert not refused.done
        assert refused.text.endswith("theirs again")
        assert [each["revision"] for each in kept.rows["working_memory"]] == [1, 2, 3]

    async def test_as_many_revisions_as_are_kept(self) -> None:
        """The newest; where the store does not remove the others now, the next update does."""
        store = FakeStore()
        memory = memory_on(store, keep_revisions=20)
        for number in range(1, 23):
            await update(memory, f"text {number}", number)
        kept = store.memory.rows["working_memory"]
        assert [each["revision"] for each in kept] == [*range(3, 23)]
        store.failing = "drop_overviews"
        assert (await update(memory, "text 23", 23)).done
        store.failing = ""
        await update(memory, "text 24", 24)
        assert [each["revision"] for each in store.memory.rows["working_memory"]] == [*range(5, 25)]


class TestDetails:
    """Notes by name, with versions; archives, which are only read."""

    async def test_written_and_read(self) -> None:
        """The newest version is read, whole."""
        store = FakeStore()
        memory = memory_on(store)
        assert (await write(memory, "Plan", "a\r\n字", 1)).text == "Plan is kept as version 1, 6 bytes."
        assert (await write(memory, "Plan", "b\r\n字 🙂 [THIS_MOMENT]", 2)).text.startswith(
            "Plan is kept as version 2, "
        )
        text = (await read(memory, "Plan")).text
        head, _, content = text.partition("\n\n")
        assert head.startswith("Plan (note, version 2, 20")
        assert content == "b\r\n字 🙂 [THIS_MOMENT]"
        (detail,) = (await memory.snapshot("ada", "s")).details
        assert (detail.name, detail.version, detail.content) == ("Plan", 2, "")

    async def test_case_makes_no_other_name(self) -> None:
        """A name in another case is the same note, which keeps its name."""
        memory = memory_on(FakeStore())
        await write(memory, "Plan", "a", 1)
        assert (await write(memory, "PLAN", "b", 2)).text == "Plan is kept as version 2, 1 bytes."
        assert (await read(memory, "plan")).text.endswith("\n\nb")

    async def test_an_unknown_name(self) -> None:
        """The error says which there are."""
        memory = memory_on(FakeStore())
        assert await read(memory, "x") == Outcome("name: there is no detail 'x'; there are none yet", done=False)
        for number in range(60):
            await write(memory, f"note {number:02}", "a", number)
        text = (await read(memory, "x")).text
        assert text.endswith("note 58, note 59, and 10 older ones")

    async def test_an_archive(self) -> None:
        """It is read word for word, and nobody writes to it, in whatever case."""
        store = FakeStore()
        store.plant("memory_details", [archive("compaction-0001", "said\n"), archive("Old", "words")])
        memory = memory_on(store)
        assert (await read(memory, "compaction-0001")).text.endswith("\n\nsaid\n")
        assert not (await write(memory, "compaction-0001", "a")).done
        assert (await write(memory, "old", "a")).text == (
            "name: 'Old' is an archive, which nobody writes to; take another name"
        )

    async def test_the_same_call_again(self) -> None:
        """It changes nothing and gives the same answer, also when others have written since."""
        store, kept = raced()
        memory, kept.lost = memory_on(store), 1
        with pytest.raises(StoreUnavailableError):
            await write(memory, "Plan", "mine", 1)
        first = await write(memory, "Plan", "mine", 1)
        await write(memory, "Plan", "another's", 2)
        await write(memory, "Plans", "another's", 3)
        assert await write(memory, "Plan", "mine", 1) == first
        assert [(each["name"], each["version"]) for each in kept.rows["memory_details"]] == [
            ("Plan", 1),
            ("Plan", 2),
            ("Plans", 1),
        ]

    @pytest.mark.parametrize("line", ["字" * 40 + "\n", "字" * 100_000, "x" * 70 + "\n", "🙂"])
    @pytest.mark.parametrize(
        ("asked", "chars", "size"),
        [({}, 8_000, 16_384), ({"characters": 1_000}, 1_000, 16_384), ({"characters": 65_536}, 65_536, 65_536)],
    )
    async def test_a_long_one(self, line: str, asked: dict[str, int], chars: int, size: int) -> None:
        """It comes in parts that fit into a window and are the whole together, cut at lines where there are some."""
        content = line * (100_000 // len(line))
        store = FakeStore()
        store.plant("memory_details", [archive("long", content)])
        memory, shown, begin = memory_on(store), "", 0
        while True:
            head, _, part = (await read(memory, "long", from_character=begin, **asked)).text.partition("\n\n")
            assert 0 < len(part) <= chars
            assert len(part.encode()) <= size
            shown += part
            begin = len(shown)
            if f"it goes on with from_character {begin})" not in head:
                break
        assert shown == content
        assert head.endswith(f"to {len(content)} of {len(content)}; this is the end)")
        refused = await read(memory, "long", from_character=len(content))
        assert refused == Outcome(f"from_character: the detail has {len(content)} characters", done=False)


class TestCompaction:
    """Brought about by the compactor, and told."""

    async def test_what_is_wished(self) -> None:
        """What the call says, for the run and the message that ask; what came of it is told."""
        compacting = Compacting(COMPACTION)
        memory = memory_on(FakeStore(), compacting)
        args = {"target": "tools", "strategy": "archive", "keep_recent": 7}
        outcome = await memory.run("compact_history", args, CALLER)
        assert compacting.requests == [
            CompactionRequest("ada", "s", "tools", "archive", "tool", keep_recent=7, run_id="run_9", call_id="call_1")
        ]
        made = "Compaction 3 is made, of 40 messages; the summary stands for 148 messages now"
        assert outcome.text.splitlines()[:4] == [
            f"{made}. The next context shows it.",
            "What is newly covered took 900 tokens, and the summary went from 50 to 70.",
            "The oldest messages of the other kind are among them: too many compacted ones lay between.",
            "Word for word they are in: compaction-0003. read_memory_detail opens them.",
        ]


@pytest.mark.parametrize("name", sorted(MEMORY_TOOLS))
async def test_a_sub_agent(name: str) -> None:
    """It may look, and is told clearly that it may not write."""
    args = {
        "read_memory_detail": {"name": "x"},
        "read_tool_result": {"handle": "result_0123456789abcdef"},
        "search_memory": {"query": "x"},
        "compact_history": {"target": "all", "strategy": "summarize"},
        "pin_constraint": {"text": "x"},
        "remember": {"topic": "x", "value": "y"},
        "update_working_memory": {"content": "x"},
        "write_memory_detail": {"name": "x", "content": "x"},
    }[name]
    store = FakeStore()
    outcome = await memory_on(store).run(name, args, replace(CALLER, sub_agent="researcher"))
    assert ("is the main agent's" in outcome.text) == (name not in READING_TOOLS)
    assert not any(store.memory.rows.values())


async def test_a_constraint_is_pinned() -> None:
    """The result says its id and how many hold; the same call again does nothing, a wrong one says what is allowed."""
    store = FakeStore()
    memory = memory_on(store)
    await constraints_on(store).pin("ada", "other", "", {"text": "Be brief.", "scope": "owner"})
    args = {"text": "  Answer in French.\n", "kind": None, "scope": "session"}
    outcome = await memory.run("pin_constraint", args, CALLER)
    _, pinned = await constraints_on(store).known(Target(*CALLER.session, CALLER.run_id))
    assert outcome == Outcome(
        f"{pinned.id} is pinned for this session, and in [CONSTRAINTS] from the next context on. "
        "2 constraints hold now."
    )
    assert (pinned.text, pinned.kind, pinned.source_message_id) == (args["text"], "must", CALLER.call_id)
    kept = dict(store.constraints.kept)
    assert await memory.run("pin_constraint", args, CALLER) == outcome
    assert store.constraints.kept == kept
    await constraints_on(store).retire(Target(*CALLER.session, CALLER.run_id), [pinned.id])
    outcome = await memory.run("pin_constraint", args, CALLER)
    assert outcome.text == f"{pinned.id} was pinned, but was taken back since."
    kept = dict(store.constraints.kept)
    for wrong, reason in (
        ({"text": " "}, "text: is blank; a text of 1 to 2000 characters is needed"),
        ({}, "text: a text of 1 to 2000 characters is needed"),
        ({"text": "a", "kind": "should"}, "kind: 'should' is unknown; allowed: must, must_not, format, scope"),
        ({"text": "a", "scope": ["run"]}, "scope: a JSON list is unknown; allowed: owner, session, run"),
        ({"text": "a", "id": "x"}, "args: 'id' is unknown; allowed: text, kind, scope"),
    ):
        assert await memory.run("pin_constraint", wrong, CALLER) == Outcome(reason, done=False)
    assert store.constraints.kept == kept


async def test_malformed_documents() -> None:
    """Each is passed over and said, and the rest is there."""
    store = FakeStore()
    store.plant("working_memory", [{"owner_key": "ada", "session_id": "s", "revision": 3, "content": 7}])
    store.plant("memory_details", [archive("good", "x", kind="note"), archive("bad", "x", kind="note", bytes=-1)])
    store.plant("compactions", [{"owner_key": "ada", "session_id": "s", "number": 1}])
    memory = memory_on(store)
    with capture_logs() as logs:
        snapshot = await memory.snapshot("ada", "s")
    assert (snapshot.overview, snapshot.compaction) == (None, None)
    assert [detail.name for detail in snapshot.details] == ["good"]
    assert snapshot.detail_count == 1
    assert sorted(log["name"] for log in logs) == ["compaction", "detail", "overview"]
    with capture_logs():
        assert (await update(memory, "mine")).text.startswith("The overview is revision 4 now")


async def test_the_turn_is_known() -> None:
    """A revision says in which turn it was written."""
    store, turns = FakeStore(), FakeTurns()
    key = {"owner_key": "ada", "session_id": "s"}
    turns.plant({**key, "id": "turn_4_1", "turn_number": 4, "run_id": "run_9", "task_context": ""})
    await update(
        WorkingMemory(
            store.memory,
            store,
            Compacting().compact,
            turns,
            constraints=constraints_on(store),
            facts=Facts(store.facts, NO_TOMBSTONES),
        ),
        "a",
    )
    assert store.memory.rows["working_memory"][0]["turn_number"] == 4


async def test_another_owners_documents() -> None:
    """A store that breaks its promise is not believed."""
    store = FakeStore()

    class Strange(FakeMemoryStore):
        """Gives what is somebody else's."""

        async def newest(self, owner_key: str, session_id: str, *, notes: int, archives: int) -> NewestMemory:
            """That of bob."""
            newest = await super().newest(owner_key, session_id, notes=notes, archives=archives)
            bob = {"owner_key": "bob", "session_id": session_id, "revision": 1, "content": "x", "updated_at": NOON}
            return newest._replace(overview=bob)

    store.memory = Strange(store._ask)
    with pytest.raises(StoreUnavailableError), capture_logs() as logs:
        await memory_on(store).snapshot("ada", "s")
    assert [log["event"] for log in logs] == ["foreign_rows_withheld"]
