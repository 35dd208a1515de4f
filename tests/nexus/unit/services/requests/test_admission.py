"""How many requests are in hand, and which are refused because there are too many (contract §1.6)."""

import time
from types import SimpleNamespace

import anyio
import pytest

from nexus.core.errors import ErrorCode
from nexus.core.metrics import Event, Reading
from nexus.core.models import Message
from nexus.services.requests import answerer, claims
from nexus.services.requests.answerer import RequestService
from nexus.services.requests.claims import DeadLetterWriter
from nexus.services.requests.envelope import read_incoming
from tests.nexus.unit.services.parts import request
from tests.nexus.unit.services.serving import asking, code, ids, passed, serving, shared

# The same bytes whenever it is sent.
ASKED = request()


def numbered(count: int, owner: str = "") -> list[Message]:
    """So many requests of as many runs, and of as many owners but where it is one."""
    return [
        request("hi", f"msg_{number}", f"run_{number}", owner=owner or f"owner_{number}") for number in range(count)
    ]


class TestOneAtATime:
    """On a bus that keeps nothing, the same bytes are in hand once."""

    async def test_asked_again_while_it_is_built(self) -> None:
        """The builder works once, and so is it answered."""
        async with serving() as trial:
            trial.builder.gate = anyio.Event()
            for _ in range(100):
                trial.offer(asking(ASKED))
                await anyio.lowlevel.checkpoint()
            assert trial.service.pending.count == 1
            trial.builder.gate.set()
            answers = await trial.finish()
        assert ids(answers) == {"msg_1": 1}
        assert trial.builder.begun == ["msg_1"]

    async def test_who_waits_may_ask_again(self) -> None:
        """The same bytes are not refused while they wait in the queue."""
        async with serving(max_in_flight=1) as trial:
            trial.builder.gate = anyio.Event()
            await passed()
            first, second = numbered(2)
            for message in (first, second) * 3:
                trial.offer(asking(message))
                await passed()
            trial.builder.gate.set()
            answers = await trial.finish()
        assert [code(answer.content) for answer in answers] == ["success", "success"]


class TestOverload:
    """Work is bounded, and who is not served is told."""

    async def test_beyond_the_queue_is_refused(self) -> None:
        """Two are built, two wait, six are OVERLOADED while the others are still at it; nobody is lost."""
        async with serving(max_in_flight=2) as trial:
            trial.builder.gate = anyio.Event()
            await passed()
            for message in numbered(10):
                trial.offer(asking(message))
            read = {reading: trial.metrics.readings[reading]() for reading in _READINGS}
            assert (read[Reading.WAITING_REQUESTS], trial.service.pending.count) == (2, 10)
            # Refusers have taken up what waits to be refused.
            assert read[Reading.IN_FLIGHT] + read[Reading.WAITING_REFUSALS] == 8
            refused = await trial.answers(6)
            assert {code(answer.content) for answer in refused} == {"OVERLOADED"}
            trial.builder.gate.set()
            served = await trial.finish()
        assert {code(answer.content) for answer in served} == {"success"}
        assert ids([*refused, *served]) == {f"msg_{number}": 1 for number in range(10)}
        assert trial.builder.begun == ["msg_0", "msg_1", "msg_2", "msg_3"]
        assert trial.metrics.counted == {None: 4, ErrorCode.OVERLOADED: 6}
        assert {trial.metrics.readings[reading]() for reading in _READINGS} == {0}

    async def test_a_refusal_says_when_to_try_again(self) -> None:
        """In milliseconds, in the error and in its text; never at once and never later than in a minute."""
        async with serving() as trial:
            content = await trial.ask(ASKED, shared=True, surplus=True)
        error = content["error"]
        assert (error["code"], error["retryable"]) == ("OVERLOADED", True)
        assert 100 <= error["retry_after_ms"] <= 60_000
        assert f"about {error['retry_after_ms']} ms" in error["message"]

    async def test_an_idle_hour_is_no_pace(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The time between the end of all work and the next request does not count for when to try again."""
        idle_s = 0.0
        clock = SimpleNamespace(monotonic=lambda: time.monotonic() + idle_s)
        for module in (answerer, claims):
            monkeypatch.setattr(module, "time", clock)
        async with serving() as trial:
            first, second, refused = numbered(3)
            await trial.ask(first)
            idle_s = 3_600.0
            await trial.ask(second)
            content = await trial.ask(refused, shared=True, surplus=True)
        assert content["error"]["retry_after_ms"] == 100

    async def test_one_that_has_room_has_the_first_word(self) -> None:
        """A replica without room leaves a request to the others for a moment: nobody is told OVERLOADED."""
        async with serving(max_in_flight=1) as trial:
            trial.builder.gate = anyio.Event()
            await passed()
            writer = DeadLetterWriter(trial.letters, trial.metrics, None)
            other = RequestService(trial.parts.builder, trial.bus, trial.ledger, writer)
            async with other.running():
                for message in numbered(2):
                    trial.offer(asking(message))
                    await passed()
                for message in numbered(6)[2:]:
                    trial.offer(asking(message))
                    other.offer(read_incoming(asking(message), time.monotonic(), other.settings))
                    await passed()
                elsewhere = await trial.answers(4)
                trial.builder.gate.set()
                here = await trial.finish()
        assert ids(elsewhere) == {f"msg_{number}": 1 for number in range(2, 6)}
        assert {code(answer.content) for answer in [*elsewhere, *here]} == {"success"}
        assert trial.metrics.counted == {None: 2}

    async def test_surplus_is_refused_whatever_room_there_is(self) -> None:
        """The bus has judged: it is not built, answered once and done once."""
        async with serving() as trial:
            surplus = [shared(message, f"{index}-0", surplus=True) for index, message in enumerate(numbered(50))]
            for delivery in surplus:
                trial.offer(delivery)
            answers = await trial.finish()
        assert {code(answer.content) for answer in answers} == {"OVERLOADED"}
        assert ids(answers) == {f"msg_{number}": 1 for number in range(50)}
        assert trial.builder.begun == []
        assert sorted(trial.bus.settled, key=surplus.index) == surplus

    async def test_what_is_wrong_is_said_also_when_there_is_no_room(self) -> None:
        """An error that will not change is worth more than "try again", and an answer that there is stays."""
        async with serving() as trial:
            content = await trial.ask(request(reply_to="a b"), shared=True, surplus=True)
            answered = request(request_id="msg_2")
            await trial.ask(answered)
            trial.offer(shared(answered, "2-0", surplus=True))
            assert await trial.finish() == []
        assert code(content) == "INVALID_REQUEST"
        assert len(trial.bus.settled) == 2

    async def test_more_refusals_than_can_be_held(self) -> None:
        """What of one owner comes on top of 4,096 refusals is let go and counted; its sender asks again."""
        async with serving(max_in_flight=1) as trial:
            for message in numbered(4_110, "ada"):
                trial.offer(asking(message))
            # One is built, one waits, and eight are being refused.
            assert trial.service.pending.count == 4_096 + 10
            assert trial.metrics.counted == {Event.REQUEST_DROPPED: 4}
            trial.offer(asking(request(request_id="msg_of_bob", owner="bob")))
            assert trial.metrics.counted == {Event.REQUEST_DROPPED: 4}


class TestOwners:
    """What one owner sends takes no place of others."""

    @pytest.mark.parametrize("is_shared", [False, True])
    async def test_a_flood_of_one_owner(self, is_shared: bool) -> None:
        """Of five hundred at once its share is built and half the room waits; the rest is OVERLOADED, for it alone.

        What others ask meanwhile is built at once, each in turn.
        """
        async with serving(max_in_flight=64, max_in_flight_per_owner=8, deadline_ms=60_000) as trial:
            trial.builder.gate = anyio.Event()
            flood = numbered(500, "ada")
            others = [request("hi", f"msg_of_{owner}", f"run_of_{owner}", owner=owner) for owner in ("bob", "eve")]
            for number, message in enumerate([*flood, *others]):
                trial.offer(shared(message, f"{number}-0") if is_shared else asking(message))
            await passed()
            assert trial.builder.begun == [*(message.id for message in flood[:8]), "msg_of_bob", "msg_of_eve"]
            refused = await trial.answers(500 - 8 - 32)
            assert {code(answer.content) for answer in refused} == {"OVERLOADED"}
            assert {answer.owner_key for answer in refused} == {"ada"}
            trial.builder.gate.set()
            served = await trial.finish()
        assert {code(answer.content) for answer in served} == {"success"}
        assert ids([*refused, *served]) == {message.id: 1 for message in [*flood, *others]}

    async def test_what_is_set_aside(self) -> None:
        """On a bus that keeps messages, what waits or is refused keeps nothing else from being handed out."""
        async with serving(max_in_flight=4, max_in_flight_per_owner=1) as trial:
            trial.builder.gate = anyio.Event()
            for number, message in enumerate(numbered(4, "ada")):
                trial.offer(shared(message, f"{number}-0"))
            trial.offer(shared(request(request_id="msg_wrong", reply_to="a b", owner="bob"), "8-0"))
            assert trial.bus.aside == {"1-0", "2-0", "3-0", "8-0"}
            trial.builder.gate.set()
            await trial.finish()
            assert "1-0" not in trial.bus.aside


_READINGS = (Reading.IN_FLIGHT, Reading.WAITING_REQUESTS, Reading.WAITING_REFUSALS)


class TestDrain:
    """What was accepted is finished."""

    async def test_after_the_last_request(self) -> None:
        """Requests that wait, that are refused and that are built are all waited for."""
        drained = anyio.Event()
        async with serving(max_in_flight=1) as trial, anyio.create_task_group() as tasks:
            trial.builder.gate = anyio.Event()
            for message in numbered(4):
                trial.offer(asking(message))

            async def drain() -> None:
                await trial.service.pending.none()
                drained.set()

            tasks.start_soon(drain)
            await trial.answers(2)
            assert not drained.is_set()
            trial.builder.gate.set()
            answers = await trial.finish()
            await drained.wait()
        assert len(answers) == 2
