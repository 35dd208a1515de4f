"""Records read: with their texts or without, the build before, and where a message is in a context (contract §13)."""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import bson
import pytest

from nexus.core.errors import RequestError
from nexus.core.models import Message, utc_now
from nexus.core.ports import Row, TokenCounter
from nexus.core.records import BuildRecord
from nexus.services.records.reader import RecordReader
from nexus.services.records.service import BuildRecords
from nexus.services.records.why import Finding
from nexus.services.requests.envelope import error_content
from tests.nexus.support.builder_settings import settings_with
from tests.nexus.support.fake_counter import FakeCounter, words_of
from tests.nexus.support.stored_session import a_compaction
from tests.nexus.support.tombstones import NO_TOMBSTONES
from tests.nexus.unit.services.context.remembering import stored_turn
from tests.nexus.unit.services.parts import Parts, opened, request, within
from tests.nexus.unit.services.records.test_explain import LATER, sent

# When the first row was recorded, each other a second after the one before, and when the context was built.
BEGAN: Final = datetime(2025, 12, 1, tzinfo=UTC)
THOUGHT: Final = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Yes."}]
BUILT: Final = datetime(2025, 12, 10, 8, tzinfo=UTC)


def a_row(number: int, **changes: Any) -> Row:
    """A message of the default session of ada."""
    at = BEGAN + timedelta(seconds=number)
    return {
        "_id": bson.ObjectId(f"{int(at.timestamp()):08x}{abs(number):016x}"),
        "id": f"m{number}",
        "run_id": f"past_{number // 2}",
        "owner_key": "ada",
        "session_id": "default",
        "role": ("HUMAN", "AI")[number % 2],
        "content": f"Message {number}",
        "timestamp": at,
        "metadata": {},
        **changes,
    }


@dataclass(frozen=True)
class Desk:
    """Builds that are recorded, and a reader of these records."""

    parts: Parts
    records: BuildRecords
    reader: RecordReader

    def plant(self, *rows: Row) -> None:
        """Store rows, as if they had been there."""
        self.parts.store.plant("messages", rows)

    async def record(self, asked: Message, mode: Literal["manifest", "full"] = "full", **changes: Any) -> BuildRecord:
        """The record of the answer to a request."""
        built = await self.parts.builder.build(asked, within(5.0))
        error = built.result if isinstance(built.result, RequestError) else None
        content: dict[str, Any] = {
            **(error_content(built.result) if isinstance(built.result, RequestError) else built.result)
        }
        read, answer = built.request, sent(content)
        record = BuildRecord(
            owner_key=asked.owner_key,
            request_id=asked.id,
            run_id=asked.run_id,
            session_id=read.session_id if read else "",
            outcome=error.code.value if error else "success",
            reason=error.message if error else "",
            layout=read.layout if read else "",
            form=read.form if read else "",
            answered_at=BUILT,
            size=len(answer),
            settings="",
            version="1",
            mode=mode,
        )
        self.records.offer(record, answer, content.get("context", {}), begun_at=record.answered_at)
        await self.records.pending.none()
        kept, key = self.parts.store.records.kept, (asked.owner_key, asked.id)
        kept[key] = replace(kept[key], **changes)
        found = await self.reader.find(asked.owner_key, asked.id)
        assert found
        return found

    async def where(self, asked: BuildRecord, message_id: str) -> Finding:
        """Where a message is in the context of this record."""
        return await self.reader.where_is(await self.reader.read(asked), message_id)


@asynccontextmanager
async def at_desk(counter: TokenCounter | None = None, **settings: Any) -> AsyncIterator[Desk]:
    """A desk with a session of six messages."""
    async with opened(settings=settings_with(**settings), counter=counter) as parts:
        records = BuildRecords(parts.store.records, NO_TOMBSTONES, timedelta(days=7), gathered_s=0)
        desk = Desk(parts, records, RecordReader(parts.store))
        desk.plant(*map(a_row, range(6)))
        async with records.running():
            yield desk


def asking(layout: str, request_id: str = "q", run_id: str = "run_1", **more: Any) -> Message:
    """A request for a context."""
    later = more.pop("later", None)
    return request("And?", request_id, run_id, later=later, run_metadata={"layout": layout, **more})


@pytest.mark.parametrize("form", ["openai", "anthropic", "gemini"])
@pytest.mark.parametrize(
    ("layout", "message_id", "tag"),
    [
        ("dialogue", "m5", "SHARED_MEMORY"),
        ("dialogue", "human_of_run_1", "THIS_MOMENT"),
        ("agent", "m0", "HISTORY"),
        ("agent", "human_of_run_1", "INPUT"),
        ("agent", "tool_1", "RUN"),
        ("thinking", "tool_1", "RUN"),
    ],
)
async def test_what_is_shown(layout: str, message_id: str, tag: str, form: str) -> None:
    """In which block; the row's own id is as good as the message's."""
    async with at_desk() as desk:
        record = await desk.record(asking(layout, later=LATER, format=form))
        found = await desk.where(record, message_id)
        assert (found.reason, found.is_certain, found.blocks) == ("shown", True, (tag,))
        assert found.text == f"it is shown in [{tag}]"
        if message_id == "m5":
            assert await desk.where(record, str(a_row(5)["_id"])) == found


async def test_a_record_without_texts() -> None:
    """A message is found by its manifest, too."""
    async with at_desk() as desk:
        record = await desk.record(asking("agent", format="gemini"), "manifest")
        read = await desk.reader.read(record)
        assert read.explained
        assert not read.explained.has_texts
        assert (read.explained.form, read.replayed.answer) == ("gemini", None)
        assert (await desk.where(record, "m3")).text == "it is shown in [HISTORY]"


@pytest.mark.parametrize("mode", ["full", "manifest"])
async def test_a_refused_request(mode: Literal["full", "manifest"]) -> None:
    """It has no context, in which no message can be."""
    async with at_desk() as desk:
        record = await desk.record(request(" "), mode)
        read = await desk.reader.read(record)
        assert read.explained
        assert read.explained.error
        assert read.explained.error[0] == record.outcome == "EMPTY_INPUT"
        found = await desk.where(record, "m1")
        assert (found.reason, found.text) == (
            "no_context", "the request was answered with EMPTY_INPUT, so there is no context",
        )  # fmt: skip


async def test_pieces_that_are_gone() -> None:
    """What is missing is said, and nothing is made up."""
    async with at_desk() as desk:
        record = await desk.record(asking("agent"))
        desk.parts.store.records.data.popitem()
        read = await desk.reader.read(record)
        assert read.explained is None
        assert "pieces are missing" in read.replayed.fault
        with pytest.raises(ValueError, match="pieces are missing"):
            await desk.where(record, "m1")


async def test_bytes_that_are_no_answer() -> None:
    """Said, not raised."""
    async with at_desk() as desk:
        record = await desk.record(asking("agent"))
        spoilt = replace(record, request_id="other", pieces=())
        read = await desk.reader.read(spoilt)
        assert read.explained is None
        assert read.replayed.fault


# What is recorded afterwards, as if it had been there all the time, and why it is not in the context.
ABSENT: Final[Sequence[tuple[str, Row, str, bool, str]]] = [
    ("agent", a_row(9, role="SYSTEM"), "never_shown", True, "with the role SYSTEM"),
    ("agent", a_row(9, role="poet"), "never_shown", True, "with the role poet"),
    ("dialogue", a_row(9, content=""), "never_shown", True, "no text and no call"),
    ("agent", a_row(9, metadata={"sub_agent_internal": True, "agent_id": "rev"}), "internal", True, "sub-agent rev"),
    ("dialogue", a_row(9, metadata={"sub_agent_internal": True}), "internal", True, "a sub-agent"),
    ("agent", a_row(864_000), "later", True, "2025-12-11 00:00:00, after this context was built"),
    ("agent", a_row(9, _id="odd", timestamp=BUILT + timedelta(hours=1)), "later", False, "after this context"),
    ("agent", a_row(806_399), "unclear", False, "its row may have been changed"),
    ("agent", a_row(806_400), "later", False, "in the second of the build"),
    ("agent", a_row(9, run_id="run_1"), "own_run", False, "come with the request"),
    ("thinking", a_row(9), "layout", True, "thinking shows no messages of earlier runs"),
    ("agent", a_row(9, session_id="s2"), "other_session", True, "of session s2"),
    ("agent", a_row(9, session_id=None), "unclear", False, ""),
    ("dialogue", a_row(9, session_id="s2"), "unclear", False, ""),
    ("dialogue", a_row(9, role="TOOL"), "layout", True, "memory.show_tool_results"),
    ("agent", a_row(-9), "older", True, "older than the newest 6 messages, which [HISTORY] shows"),
    (
        "dialogue",
        a_row(-9),
        "older",
        True,
        "older than the newest 6 messages of all sessions, which [SHARED_MEMORY] shows",
    ),
]


@pytest.mark.parametrize(("layout", "row", "reason", "certain", "words"), ABSENT)
async def test_what_is_not_shown(layout: str, row: Row, reason: str, words: str, *, certain: bool) -> None:
    """The reason in words, and whether it is the only one."""
    async with at_desk() as desk:
        record = await desk.record(asking(layout))
        desk.plant({**row, "id": "odd"})
        found = await desk.where(record, "odd")
    assert (found.reason, found.is_certain, found.is_shown) == (reason, certain, False), found
    assert words in found.text


async def test_what_is_unknown() -> None:
    """Neither another owner's message nor none at all is one of this owner."""
    async with at_desk() as desk:
        record = await desk.record(asking("agent"))
        desk.plant(a_row(7, owner_key="eve", id="hers"))
        for message_id in ("hers", str(a_row(7)["_id"]), "nothing", "", "\x00"):
            found = await desk.where(record, message_id)
            assert (found.reason, found.is_certain) == ("unknown", True)


async def test_what_was_shown_and_is_gone() -> None:
    """The record knows a message that is not stored any more."""
    async with at_desk() as desk:
        record = await desk.record(asking("agent"))
        desk.parts.store.messages.clear()
        assert (await desk.where(record, "m2")).text == "it is shown in [HISTORY]"


async def test_what_is_left_out() -> None:
    """By the words of the manifest, of a message that is shown in part and of one that is not shown at all."""
    async with at_desk() as desk:
        desk.plant(a_row(7, content=THOUGHT))
        desk.plant(a_row(8, role="TOOL", content="found", metadata={"call_id": "nobody's"}))
        record = await desk.record(asking("agent"))
        shown, result = await desk.where(record, "m7"), await desk.where(record, "m8")
    assert shown.text == "it is shown in [HISTORY], without thinking (thinking is never shown as words)"
    assert (result.reason, result.is_certain) == ("left_out", True)
    assert result.text == "left out: tool result: answers no call of the session that has no other result"


async def test_what_is_left_out_of_an_input() -> None:
    """Its place in the run stands before its id; another id that ends alike, or none, is not meant."""
    async with at_desk() as desk:
        parts = [{"type": "text", "text": "Hear."}, {"type": "input_audio", "input_audio": {"data": ""}}]
        record = await desk.record(request(parts, run_metadata={"layout": "agent"}))
        (omission,) = (await desk.reader.read(record)).explained.left_out  # type: ignore[union-attr]  # it is read
        found = await desk.where(record, "human_of_run_1")
        others = [(await desk.where(record, other)).reason for other in ("of_run_1", "")]
    assert (omission.what, omission.where) == ("audio", "run.history[0] human_of_run_1")
    assert found.text.startswith("it is shown in [INPUT], without audio (only images")
    assert others == ["unknown", "unknown"]


async def test_a_past_of_which_only_the_newest_is_shown() -> None:
    """The rest is older than that."""
    async with at_desk(history_size=2) as desk:
        record = await desk.record(asking("dialogue"))
        found = await desk.where(record, "m3")
    assert (found.reason, found.text) == (
        "older", "it is older than the newest 2 messages of all sessions, which [SHARED_MEMORY] shows",
    )  # fmt: skip


async def test_no_room() -> None:
    """For a part of the past, or for all of it."""
    given: dict[str, Any] = {"agent": {"system_prompt": "You help."}, "context_window": 1_000}
    async with at_desk(FakeCounter(), count_tokens="always") as desk:
        desk.plant(*(a_row(number, content=words_of(250)) for number in range(6, 16)))
        some = await desk.record(asking("agent", **given))
        asked = request(words_of(560), "q2", run_metadata={"layout": "agent", **given})
        none = await desk.record(asked)
        part, whole = await desk.where(some, "m6"), await desk.where(none, "m6")
        kept = await desk.where(some, "m15")
    assert (part.reason, part.is_certain, kept.reason) == ("no_room", True, "shown")
    assert re.fullmatch(
        r"it is older than all that \[HISTORY] shows, and there was no room for \d+ messages", part.text
    )
    assert (whole.reason, whole.text) == (
        "no_room", "there was no room for any message of the past in the context window (HISTORY)",
    )  # fmt: skip


async def test_no_room_for_a_call_and_its_late_result() -> None:
    """The result was recorded after messages that are shown, and went with the call at which it stands."""
    given: dict[str, Any] = {"agent": {"system_prompt": "You help."}, "context_window": 1_000}
    call = {"id": "c1", "name": "look", "arguments": {}}
    async with at_desk(FakeCounter(), count_tokens="always") as desk:
        desk.plant(a_row(6, role="AI", run_id="r6", content=words_of(250), metadata={"tool_calls": [call]}))
        desk.plant(*(a_row(number, content=words_of(250)) for number in range(7, 16)))
        desk.plant(a_row(16, role="TOOL", run_id="r6", content="found", metadata={"call_id": "c1"}))
        record = await desk.record(asking("agent", **given))
        found, kept = await desk.where(record, "m16"), await desk.where(record, "m15")
    assert (found.reason, found.is_certain, kept.reason) == ("no_room", False, "shown")
    assert re.fullmatch(r"there was no room for \d+ messages, and it is one of them", found.text)


async def test_no_past_at_all() -> None:
    """Whatever the reason, nothing is newer than what is not shown."""
    async with at_desk() as desk:
        desk.parts.store.messages.clear()
        record = await desk.record(asking("agent"))
        desk.plant(a_row(3))
        found = await desk.where(record, "m3")
    assert (found.reason, found.is_certain) == ("older", False)


async def test_a_context_for_a_sub_agent() -> None:
    """What is internal to one may be shown to another, and is not certain to be."""
    async with at_desk() as desk:
        sub = {"kind": "sub", "id": "rev", "role": "You review.", "task_prompt": "Review."}
        desk.plant(a_row(7, metadata={"sub_agent_internal": True, "agent_id": "rev"}))
        desk.plant(a_row(8, metadata={"sub_agent_internal": True, "agent_id": "other"}))
        record = await desk.record(asking("agent", agent=sub))
        own, others = await desk.where(record, "m7"), await desk.where(record, "m8")
    assert own.is_shown
    assert (others.reason, others.is_certain) == ("internal", False)


async def test_an_input_that_is_the_goal() -> None:
    """The layout `thinking` does not repeat it."""
    async with at_desk() as desk:
        record = await desk.record(asking("thinking", task_context="And?"), answered_at=utc_now() + timedelta(hours=1))
        found = await desk.where(record, "human_of_run_1")
    assert (found.is_shown, found.is_certain) == (True, False)
    assert "[TASK_CONTEXT]" in found.text


async def test_a_text_that_is_shortened() -> None:
    """The block is said to have some."""
    async with at_desk() as desk:
        desk.plant(a_row(7, content="x" * 5_000))
        record = await desk.record(asking("dialogue"))
        found = await desk.where(record, "m7")
    assert found.text == "it is shown in [SHARED_MEMORY], where some texts are shortened"


async def test_a_history_that_could_not_be_read() -> None:
    """It is not the message's fault."""
    async with at_desk() as desk:
        desk.parts.store.failing = "session_messages"
        record = await desk.record(asking("agent"))
        desk.parts.store.failing = ""
        found = await desk.where(record, "m3")
    assert found.reason == "unread", found


async def test_what_is_compacted() -> None:
    """Under which compaction, if that was made before the context."""
    async with at_desk() as desk:
        record = await desk.record(asking("agent"))
        rows = [{**a_row(number), "id": f"old{number}"} for number in range(-30, -10)]
        desk.plant(*rows)
        for number, some in ((1, rows[:10]), (2, rows[10:19])):
            document = a_compaction(number, some, BEGAN - timedelta(seconds=11), 10 * number)
            made = BUILT - timedelta(hours=1) if number == 1 else BUILT + timedelta(hours=1)
            desk.parts.store.plant("compactions", [{**document, "session_id": "default", "created_at": made}])
        first, second, tail = [await desk.where(record, f"old{number}") for number in (-30, -20, -11)]
    assert (first.reason, first.is_certain) == ("compacted", True)
    assert first.text == ("it is under compaction 1 of 2025-12-10 07:00:00, for whose summary there was no room")
    # The other was made later, or does not have it.
    assert (second.reason, tail.reason) == ("older", "older")


async def test_the_turn_that_tells_of_it() -> None:
    """It is said beside the reason."""
    async with at_desk() as desk:
        turn = stored_turn(1)
        desk.parts.store.plant("turns", [{**turn, "run_id": "past_0"}])
        record = await desk.record(asking("thinking"))
        read = await desk.reader.read(record)
        assert read.explained
        block = replace(read.explained.blocks[-1], tag="TURN_MEMORY", sources=(turn["id"],))
        told = replace(read, explained=replace(read.explained, blocks=(*read.explained.blocks, block)))
        found = await desk.reader.where_is(told, "m1")
    assert found.text.endswith("; [TURN_MEMORY] tells of its run")
    assert found.blocks == ("TURN_MEMORY",)


async def test_what_came_between_two_contexts_of_a_run() -> None:
    """All contexts of a run show the past of the first."""
    async with at_desk() as desk:
        await desk.record(asking("agent", "q1"), answered_at=BUILT - timedelta(hours=2))
        record = await desk.record(asking("agent", "q2", later=LATER))
        between = int((BUILT - timedelta(hours=1)).timestamp())
        desk.plant(a_row(9, _id=bson.ObjectId(f"{between:08x}{9:016x}")))
        found = await desk.where(record, "m9")
    assert (found.reason, found.is_certain) == ("later", True)
    assert "after the first context of this run" in found.text


async def test_the_build_before() -> None:
    """That of the same run, else of the session; of the same layout and format, and no error."""
    async with at_desk() as desk:
        times = (BUILT + timedelta(seconds=number) for number in range(9))
        first = await desk.record(asking("agent", "q1"), answered_at=next(times))
        await desk.record(asking("agent", "q2", "run_2"), answered_at=next(times))
        await desk.record(asking("agent", "q3", "run_2", format="gemini"), answered_at=next(times))
        await desk.record(asking("dialogue", "q4", "run_2"), answered_at=next(times))
        await desk.record(asking("agent", "q5", "run_2", session_id="s2"), answered_at=next(times))
        await desk.record(request(" ", "q6", "run_1"), answered_at=next(times))
        record = await desk.record(asking("agent", "q7", later=LATER), answered_at=next(times))
        new = await desk.record(asking("agent", "q8", "run_3"), answered_at=next(times))
        before = [await desk.reader.build_before(each) for each in (record, new, first)]
    assert [each and each.request_id for each in before] == ["q1", "q7", None]


async def test_names_of_any_length() -> None:
    """A sentence about a message has no more than the beginning of a name that another program wrote."""
    async with at_desk() as desk:
        long = "n" * 10_000
        desk.plant(a_row(21, session_id=long))
        desk.plant(a_row(22, metadata={"sub_agent_internal": True, "agent_id": long}))
        record = await desk.record(asking("agent"))
        for message_id in ("m21", "m22"):
            assert "nnn…" in (found := await desk.where(record, message_id)).text
            assert len(found.text) < 1_000
