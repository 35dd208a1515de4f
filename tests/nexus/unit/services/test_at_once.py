"""First builds that are claimed and answered in one step, of what is at hand or was just read (decisions 24, 26)."""

import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from operator import itemgetter
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from nexus.core.metrics import Event, Stage
from nexus.core.models import Message
from nexus.core.ports import Acquired, Busy, Look, Row
from nexus.services.context.ahead import Ahead, Glance
from nexus.services.context.build_dialogue import Prepared
from nexus.services.context.builder import BuilderSettings
from nexus.services.journaling import journal_row
from nexus.services.reading_ahead import Young
from tests.nexus.support.fakes import FakeStore
from tests.nexus.unit.services.parts import HangingStore, definition, past, request
from tests.nexus.unit.services.serving import Serving, asking, code, fingerprint, passed, serving, shared

PROFILE = {"public_key": "ada", "prompt_overrides": {"friends_profile": "Likes the sea."}}


def first(number: int, text: str = "hello", **run_metadata: Any) -> Message:
    """The first request of a run, with the owner's profile."""
    metadata = {"user_profile": PROFILE, **run_metadata}
    return request(text, request_id=f"msg_{number}", run_id=f"run_{number}", run_metadata=metadata)


@asynccontextmanager
async def known(**settings: Any) -> AsyncIterator[Serving]:
    """A service that has the newest rows of ada in memory."""
    async with serving(**settings) as trial:
        trial.parts.persistence._metrics = trial.metrics
        trial.parts.store.plant("messages", past(3))
        trial.ledger.journal.look(Look("ada"), None)
        trial.ledger.clock.now += 1
        await trial.ask(first(0, "the sea?"))
        await trial.parts.persistence.flush()
        assert trial.ledger.asked["at once"] == 1
        assert trial.metrics.counted[Event.PAST_READ] == 1
        trial.ledger.asked.clear()
        yield trial


async def test_of_what_is_in_memory() -> None:
    """Nothing is read, one step is asked for, and the input is recorded afterwards, and is in the next context."""
    async with known() as trial:
        trial.parts.store.down = True
        content = await trial.ask(first(1, "and the boats?"))
        assert trial.ledger.asked == {"at once": 1, "begin": 1, "finish": 1}
        assert "the sea?" in content["messages"][2]["content"]
        again = await trial.ask(first(2))
        assert "and the boats?" in again["messages"][2]["content"]
        assert trial.metrics.counted[Event.PAST_KEPT] == 2
        trial.parts.store.down = False
        await trial.parts.persistence.flush()
        # Written in whatever order, they were stored in this one.
        rows = sorted(trial.parts.store.messages, key=itemgetter("_id"))
        recorded = [row["id"] for row in rows if row["role"] == "HUMAN"][-3:]
    assert recorded == ["human_of_run_0", "human_of_run_1", "human_of_run_2"]
    assert {*content["context"]["timings_ms"]} == {"queue", "gather", "assemble", "build"}


async def test_it_is_what_it_would_be_with_time() -> None:
    """Byte for byte but for ids and times, whichever way it came about; and later builds of the run begin with it."""
    contents = []
    for way in ("kept", "read", "claimed"):
        async with known() as trial:
            if way != "kept":
                trial.parts.persistence._tails.forget("ada")
            content = await trial.ask(first(1), deliveries=2 if way == "claimed" else 1)
            assert trial.ledger.asked["at once"] == (way != "claimed")
            later = [{"run_id": "run_1", "owner_key": "ada", "role": "AI", "content": "and then?"}]
            metadata = {"user_profile": PROFILE}
            asked = request(request_id="msg_2", run_id="run_1", later=later, run_metadata=metadata)
            goes_on = await trial.ask(asked)
            assert goes_on["messages"][:5] == content["messages"]
            assert goes_on["messages"][5]["content"] == "and then?"
            assert goes_on["context"]["prefix"] == content["context"]["prefix"]
            assert goes_on["context"]["blocks"][:5] == content["context"]["blocks"]
            assert "timings_ms" in goes_on["context"]
            del content["context"]["timings_ms"]
            contents.append(content)
    assert contents[0] == contents[1] == contents[2]


@pytest.mark.parametrize("form", ["anthropic", "gemini"])
async def test_in_another_format(form: str) -> None:
    """What is kept for later builds is more than such an answer says."""
    async with known() as trial:
        content = await trial.ask(first(1, format=form))
        assert trial.ledger.asked["at once"] == 1
        metadata = {"user_profile": PROFILE, "format": form}
        again = await trial.ask(request(request_id="msg_2", run_id="run_1", run_metadata=metadata))
        assert again["messages"] == content["messages"]
        usual = await trial.ask(request(request_id="msg_3", run_id="run_1", run_metadata={"user_profile": PROFILE}))
    assert len(usual["messages"]) == 5


async def test_of_what_was_read() -> None:
    """With what is on its way to the store from here; one step is asked for, and what was read is kept."""
    async with known() as trial:
        gate, insert = anyio.Event(), trial.parts.store.insert_messages

        async def gated(rows: Any) -> Any:
            await gate.wait()
            return await insert(rows)

        trial.parts.store.insert_messages = gated  # type: ignore[method-assign]
        await trial.ask(first(1, "and the boats?"))
        trial.parts.persistence._tails.forget("ada")
        trial.ledger.clock.now += 0.01
        trial.ledger.asked.clear()
        content = await trial.ask(first(2))
        assert trial.ledger.asked == {"at once": 1, "begin": 1, "finish": 1}
        assert "and the boats?" in content["messages"][2]["content"]
        assert trial.metrics.counted[Event.PAST_READ] == 2
        assert [row["run_id"] for row in trial.parts.store.messages if row["run_id"] == "run_1"] == []
        gate.set()
        again = await trial.ask(first(3))
        assert again["messages"][2]["content"].count("and the boats?") == 1
        assert trial.metrics.counted[Event.PAST_KEPT] == 2


async def test_another_has_put_something_into_the_journal() -> None:
    """Nobody hears what was built without it, and what is heard has it."""
    async with known() as trial:
        theirs = {**past(1)[0], "_id": "1", "id": "theirs", "run_id": "r", "content": "from elsewhere"}
        trial.ledger.journal.put(journal_row({**theirs, "role": "HUMAN"}))
        trial.parts.persistence._tails.forget("ada")
        trial.ledger.clock.now += 0.01
        content = await trial.ask(first(1))
        assert (trial.ledger.asked["at once"], trial.ledger.asked["finish"]) == (1, 1)
        assert "from elsewhere" in content["messages"][2]["content"]
        assert len(await trial.answers(0)) == 0


async def test_a_row_whose_id_is_none() -> None:
    """What others have stored is shown beside what is in the journal, whatever they take for an id."""
    async with known() as trial:
        strange = {**past(1)[1], "id": {"of": "mine"}, "run_id": "strange", "content": "from a script"}
        trial.parts.store.plant("messages", [strange])
        await trial.ask(first(1, "and the boats?"))
        trial.parts.persistence._tails.forget("ada")
        trial.ledger.clock.now += 0.01
        shown = (await trial.ask(first(2)))["messages"][2]["content"]
        assert "from a script" in shown
        assert "and the boats?" in shown


async def test_an_owner_of_whom_nothing_is_known() -> None:
    """Answered at once; but what was read is not kept, since nobody knows what moved when there was no version."""
    async with serving() as trial:
        trial.parts.persistence._metrics = trial.metrics
        trial.parts.store.plant("messages", past(3))
        for number in range(3):
            trial.ledger.clock.now += 1
            await trial.ask(first(number))
        assert trial.ledger.asked["at once"] == 3
        assert (trial.metrics.counted[Event.PAST_READ], trial.metrics.counted[Event.PAST_KEPT]) == (2, 1)


async def test_the_run_was_begun_before() -> None:
    """Its input is in the store: what came after it is left out, as whoever reads once more can tell."""
    async with known() as trial:
        await trial.ask(first(1, "the first"))
        await trial.ask(first(2, "after it"))
        await trial.parts.persistence.flush()
        trial.parts.persistence._tails.forget("ada")
        # What it began with is not kept any more.
        trial.ledger._state.kept.clear()
        trial.ledger.asked.clear()
        content = await trial.ask(
            request("the first", request_id="msg_9", run_id="run_1", run_metadata={"user_profile": PROFILE})
        )
        assert trial.ledger.asked["at once"] == 0
        assert "after it" not in content["messages"][2]["content"]


async def test_a_replica_that_was_just_started() -> None:
    """It claims what it builds: what it is asked for may have killed the one before."""
    async with serving(claims_first_ms=60_000) as trial:
        for number in range(3):
            await trial.ask(first(number))
            trial.ledger.clock.now += 1
        assert (trial.ledger.asked["at once"], trial.ledger.asked["begin"]) == (0, 3)


async def test_how_long_it_counts_as_just_started() -> None:
    """From the first request on, and for some requests at least."""
    now = [100.0]
    young = Young(10_000, 3, lambda: now[0])
    now[0] += 60
    assert [young.is_young() for _ in range(4)] == [True, True, True, True]
    now[0] += 10
    assert not young.is_young()
    busy = Young(0, 3, lambda: now[0])
    assert [busy.is_young() for _ in range(4)] == [True, True, True, False]
    assert not Young(0, 0).is_young()


async def test_one_that_comes_too_late() -> None:
    """Nothing is read or built for it."""
    async with known() as trial:
        trial.parts.persistence._tails.forget("ada")
        trial.parts.store.down = True
        delivery = asking(request(request_id="msg_1", run_id="run_1", run_metadata={"user_profile": PROFILE}))
        await trial.service.answerer.answer(delivery, time.monotonic() - 30)
        (answer,) = await trial.answers()
        assert answer.content["error"]["code"] == "DEADLINE_EXCEEDED"
        assert trial.ledger.asked["at once"] == 0


async def test_nothing_is_remembered_of_what_left_the_journal() -> None:
    """Nor of what was put there and was never stored."""
    async with known() as trial:
        for number in range(1, 5):
            await trial.ask(first(number))
        await trial.parts.persistence.flush()
        assert trial.parts.persistence._journaling
        assert trial.parts.persistence._journaling._put == {}


async def test_the_same_id_in_two_runs() -> None:
    """Each is a row of its own, in memory and beside what was read."""
    async with known() as trial:
        for number, text in ((1, "of the first"), (2, "of the second")):
            asked = first(number, text)
            asked.content["history"][0]["id"] = "the same"
            await trial.ask(asked)
        kept = (await trial.ask(first(3)))["messages"][2]["content"]
        trial.parts.persistence._tails.forget("ada")
        trial.ledger.clock.now += 0.01
        read = (await trial.ask(first(4)))["messages"][2]["content"]
        for shown in (kept, read):
            assert "of the first" in shown
            assert "of the second" in shown


async def test_what_cannot_be_answered_at_once_is_claimed_at_once() -> None:
    """While it is read: nobody waits for a claim after that."""
    for asked in (request(request_id="msg_1", run_id="run_1"), first(1, session_id="other"), first(1, "x" * 20_000)):
        store = HangingStore("newest_messages")
        async with serving(store=store) as trial:
            trial.service.offer(shared(asked))
            await passed(40)
            assert trial.ledger.asked["begin"] == 1


async def test_the_history_is_asked_for_first() -> None:
    """All else is made of a request while the store looks it up, and once."""
    events: list[str] = []

    class NotingStore(FakeStore):
        async def newest_messages(
            self, owner_key: str, *, limit: int, skip: int = 0, excerpt_chars: int | None = None
        ) -> list[Row]:
            events.append("asked")
            await passed(5)
            events.append("replied")
            return await super().newest_messages(owner_key, limit=limit, skip=skip, excerpt_chars=excerpt_chars)

    async with serving(store=NotingStore()) as trial:
        look_ahead, prepare = trial.builder.look_ahead, trial.builder.prepare

        def looking(message: Message, glance: Glance, default_deadline_ms: int) -> Ahead | None:
            events.append("looked")
            return look_ahead(message, glance, default_deadline_ms)

        def preparing(ahead: Ahead) -> Prepared | None:
            events.append("prepared")
            return prepare(ahead)

        trial.builder.look_ahead, trial.builder.prepare = looking, preparing  # type: ignore[method-assign]
        trial.parts.store.plant("messages", past(3))
        trial.ledger.journal.look(Look("ada"), None)
        trial.ledger.clock.now += 1
        content = await trial.ask(first(0))
        assert (content["status"], trial.ledger.asked["at once"]) == ("success", 1)
    assert events == ["asked", "looked", "prepared", "replied"]


@pytest.mark.parametrize("wrong", [{"deadline_ms": "soon"}, {"reply_to": "a b"}, {}])
async def test_a_request_that_is_wrong_beyond_its_run(wrong: dict[str, Any]) -> None:
    """Its history may have been asked for; it is told what is wrong, once, and nothing of it is recorded."""
    metadata = {} if wrong else {"context_window": "wide"}
    async with serving() as trial:
        asked = request(request_id="msg_1", run_id="run_1", run_metadata={"user_profile": PROFILE, **metadata}, **wrong)
        content = await trial.ask(asked)
        assert code(content) == "INVALID_REQUEST"
        assert next(iter(wrong or metadata)) in content["error"]["message"]
        await trial.parts.persistence.flush()
        assert (trial.ledger.asked["at once"], trial.parts.store.messages) == (0, [])


@pytest.mark.parametrize("where", ["prepare", "look_ahead"])
async def test_what_goes_wrong_while_the_history_is_read(where: str) -> None:
    """What cannot be prepared is built with more time, what cannot be read is a dead letter; neither ends anything."""

    def failing(*_: object) -> None:
        raise ZeroDivisionError

    async with known() as trial:
        trial.parts.persistence._tails.forget("ada")
        whole = getattr(trial.builder, where)
        setattr(trial.builder, where, failing)
        with capture_logs() as logs:
            if where == "prepare":
                content = await trial.ask(first(1))
                assert (code(content), trial.ledger.asked["at once"]) == ("success", 0)
            else:
                trial.service.offer(asking(first(1)))
                with anyio.fail_after(5):
                    await trial.service.drained()
                assert await trial.letters.count() == 1
        assert {log["event"] for log in logs} >= {"not_built_at_once" if where == "prepare" else "request_failed"}
        setattr(trial.builder, where, whole)
        assert code(await trial.ask(first(2))) == "success"


async def test_settings_that_are_replaced_while_the_history_is_read() -> None:
    """What was asked for by others is not taken for what is wanted now."""
    async with serving() as trial:
        builder, asked = trial.builder, first(1)
        seen = builder.glance(asked)
        assert seen
        builder.settings = BuilderSettings(default_layout="agent")
        ahead = builder.look_ahead(asked, seen, 5_000)
        assert ahead
        assert (ahead.request.layout, ahead.past, ahead.may_be_at_once) == ("agent", None, False)
        for settings in (BuilderSettings(), BuilderSettings(truncate_chars=100), BuilderSettings(history_size=50)):
            builder.settings = settings
            ahead = builder.look_ahead(asked, seen, 5_000)
            assert ahead
            assert (builder.prepare(ahead) is not None) == (settings == BuilderSettings())


async def test_the_version_has_moved() -> None:
    """Nobody hears what was built, and what is heard has what came meanwhile."""
    async with known() as trial:
        trial.parts.store.plant("messages", [{**past(1)[1], "id": "new", "run_id": "r", "content": "from elsewhere"}])
        await trial.ledger.journal.moved("ada", "new")
        content = await trial.ask(first(1))
        assert trial.ledger.asked["at once"] == 1
        assert "from elsewhere" in content["messages"][2]["content"]
        assert (len(await trial.answers(0)), trial.ledger.asked["finish"]) == (0, 1)
        assert trial.metrics.counted[Event.PAST_READ] == 2
        assert trial.metrics.counted[Event.PAST_KEPT] == 0
        assert Counter(trial.metrics.stages)[Stage.QUEUE] == 2


@pytest.mark.parametrize(
    "asked",
    [
        request(request_id="msg_1", run_id="run_1"),
        first(1, session_id="other"),
        first(1, layout="agent"),
        first(1, "x" * 20_000),
    ],
    ids=["no profile", "another session", "another layout", "a long input"],
)
async def test_what_takes_longer(asked: Message) -> None:
    """Where something has to be read, told to others or waited for, it goes the long way."""
    async with known() as trial:
        content = await trial.ask(asked)
        assert (content["status"], trial.ledger.asked["at once"]) == ("success", 0)
        sources = [trial.metrics.counted[event] for event in (Event.PAST_KEPT, Event.PAST_READ)]
        assert sum(sources) == (1 if asked.content["metadata"].get("layout") == "agent" else 2)


async def test_tools_that_are_not_known_yet() -> None:
    """The context says that they are missing, and is not kept."""
    async with known() as trial:
        trial.parts.registry.complete = False
        content = await trial.ask(first(1))
        assert (content["degraded"], trial.ledger.asked["at once"]) == (["tools"], 0)


async def test_a_second_attempt_is_counted() -> None:
    """What was handed out before, or taken up by another, may be what kills who builds it."""
    async with known() as trial:
        asked = first(1)
        trial.service.offer(shared(asked, deliveries=2))
        await trial.answers()
        assert trial.ledger.asked["at once"] == 0
        asked = first(2)
        await trial.ledger.begin(asked.id, fingerprint(asked), 1)
        trial.ledger.clock.now += 1
        trial.ledger.asked.clear()
        trial.service.offer(asking(asked))
        await trial.answers()
        assert trial.metrics.counted[Event.LEASE_TAKEN_OVER] == 1


async def test_another_has_it() -> None:
    """Then nothing is recorded or published here."""
    async with known() as trial:
        asked = first(1)
        await trial.ledger.begin(asked.id, fingerprint(asked), 60_000)
        trial.service.offer(asking(asked))
        await trial.ledger.times_asked("at once")
        await trial.parts.persistence.flush()
        assert isinstance(await trial.ledger.begin(asked.id, fingerprint(asked), 60_000), Busy)
        assert [row["id"] for row in trial.parts.store.messages if row["run_id"] == "run_1"] == []


async def test_the_bus_is_away() -> None:
    """With charge of it, it is answered when the bus is back, once, and its input is recorded."""
    async with known() as trial:
        trial.ledger.failures["at once"] = 1
        trial.service.offer(shared(first(1)))
        (answer,) = await trial.answers()
        assert answer.content["status"] == "success"
        await trial.service.drained()
        await trial.parts.persistence.flush()
        assert [row["id"] for row in trial.parts.store.messages if row["run_id"] == "run_1"] == ["human_of_run_1"]


async def test_new_tools_are_in_it() -> None:
    """What is in memory are rows, not messages."""
    async with known() as trial:
        await trial.ask(first(1))
        trial.parts.registry.register(definition("dig"))
        content = await trial.ask(first(2))
        assert "dig" in content["messages"][1]["content"]
        assert trial.ledger.asked["at once"] == 2


async def test_two_first_builds_of_a_run_at_once() -> None:
    """Claimed both before either is answered: the later begins as the first did, at once."""
    async with known() as trial:
        trial.parts.persistence._tails.forget("ada")
        reads, gate = 0, anyio.Event()
        newest = trial.parts.store.newest_messages

        async def gated(*arguments: Any, **options: Any) -> Any:
            nonlocal reads
            reads += 1
            await gate.wait()
            return await newest(*arguments, **options)

        trial.parts.store.newest_messages = gated  # type: ignore[method-assign]
        for number in range(2):
            asked = request(request_id=f"two_{number}", run_id="run_1", run_metadata={"user_profile": PROFILE})
            trial.service.offer(shared(asked, entry=f"{number}-0"))
        await trial.ledger.times_asked("begin", 2)
        gate.set()
        one, other = (answer.content for answer in await trial.answers(2))
        assert one["status"] == other["status"] == "success"
        assert one["messages"] == other["messages"]
        assert (reads, trial.ledger.asked["finish"]) == (2, 3)


async def test_another_has_it_and_is_gone() -> None:
    """With charge of the delivery, it is answered when that one's lease has run out, and not reported done before."""
    async with known() as trial:
        metadata = {"user_profile": PROFILE}
        asked = request(request_id="msg_1", run_id="run_1", run_metadata=metadata, deadline_ms=60_000)
        await trial.ledger.begin(asked.id, fingerprint(asked), 10_000)
        trial.service.offer(shared(asked))
        await trial.ledger.times_asked("at once")
        await trial.ledger.times_asked("begin", 3)
        assert trial.bus.settled == []
        trial.ledger.clock.now += 11
        (answer,) = await trial.answers()
        assert answer.content["status"] == "success"
        await trial.service.drained()
        assert len(trial.bus.settled) == 1


async def test_a_service_that_stops_while_it_reads_ahead() -> None:
    """It gives back what it has claimed: whoever is left need not wait for a lease, and the attempt does not count."""
    store, asked = HangingStore("newest_messages"), first(1)
    async with serving(store=store) as trial:
        trial.service.offer(shared(asked))
        await trial.ledger.times_asked("begin")
        await passed()
        assert await trial.ledger.begin(asked.id, fingerprint(asked), 1) == Busy()
        assert trial.builder.begun == []
    assert trial.ledger.asked["release"] == 1
    again = await trial.ledger.begin(asked.id, fingerprint(asked), 1)
    assert isinstance(again, Acquired)
    assert again.attempts == 1


async def test_reading_ahead_takes_longer_than_a_lease() -> None:
    """The request is held meanwhile, and answered once."""
    lease_ms, asked = 100, request(request_id="msg_1", deadline_ms=60_000)
    async with serving(lease_ms=lease_ms) as trial:
        gate, newest = anyio.Event(), trial.parts.store.newest_messages

        async def gated(*arguments: Any, **options: Any) -> Any:
            await gate.wait()
            return await newest(*arguments, **options)

        trial.parts.store.newest_messages = gated  # type: ignore[method-assign]
        trial.service.offer(shared(asked))
        await trial.ledger.times_asked("begin")
        for _ in range(4):
            trial.ledger.clock.now += lease_ms / 1_000 / 2
            await trial.ledger.times_asked("renew", trial.ledger.asked["renew"] + 1)
            assert await trial.ledger.begin(asked.id, fingerprint(asked), 1) == Busy()
        assert trial.builder.begun == []
        gate.set()
        (answer,) = await trial.answers()
        await trial.service.drained()
    assert answer.content["status"] == "success"
    assert (trial.ledger.asked["finish"], len(trial.bus.settled)) == (1, 1)
