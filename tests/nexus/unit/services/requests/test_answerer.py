"""From one request to its one effective answer (contract §1.4, §1.5): read, claim, build in time, finish."""

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import anyio
import pytest

from nexus.adapters.in_memory import MemoryLedger, MemoryOutbox
from nexus.core.errors import ErrorCode
from nexus.core.metrics import DeadLetterCause, Event, Stage
from nexus.core.models import Message, Role, Topics, utc_now
from nexus.core.signing import Signing
from nexus.core.wire import decode, encode
from tests.nexus.support.waiting import take, until
from tests.nexus.unit.services.parts import request
from tests.nexus.unit.services.serving import (
    ANSWERS,
    LONG_MS,
    asking,
    code,
    fingerprint,
    ids,
    passed,
    serving,
    shared,
)

# The same bytes whenever it is sent.
ASKED = request()
SIGNING = Signing({"k1": b"the first secret"}, required=True)
LENIENT = replace(SIGNING, required=False)
# What strangers send under the id and owner of a request.
STRANGERS: Final[dict[str, Callable[[Message], bytes]]] = {
    "unsigned": lambda asked: encode(asked.model_copy(update={"role": Role.AI})),
    "cut off": lambda asked: encode(asked)[:-20],
    "no message": lambda asked: encode(asked).replace(b'"HUMAN"', b'"NOBODY"', 1),
    "too large": lambda asked: encode(asked.model_copy(update={"metadata": {"x": "x" * 20_000}})),
    "too deep": lambda asked: encode(asked).replace(
        b'"metadata":{', b'"metadata":{"x":' + b"[" * 99 + b"]" * 99 + b",", 1
    ),
    "a run of another owner": lambda asked: encode(
        asked.model_copy(update={"content": {**asked.content, "owner_key": "eve"}})
    ),
    "no run": lambda asked: encode(asked.model_copy(update={"content": "garbage"})),
    "another run": lambda asked: encode(asked.model_copy(update={"content": {**asked.content, "id": "run_of_eve"}})),
}


class TestAnswers:
    """Who asks is answered, where and as it was asked."""

    async def test_a_success(self) -> None:
        """With the ids of the request, and the time that it waited in the manifest; it is counted and measured."""
        async with serving() as trial:
            trial.offer(asking(ASKED))
            (answer,) = await trial.finish()
        metadata = {"request_id": "msg_1", "request_sha256": fingerprint(ASKED)}
        assert (answer.run_id, answer.owner_key, answer.metadata) == ("run_1", "ada", metadata)
        assert answer.content["status"] == "success"
        assert set(answer.content["context"]["timings_ms"]) == {"queue", "gather", "assemble", "build"}
        assert trial.metrics.counted == {None: 1}
        assert trial.metrics.stages == [Stage.QUEUE, Stage.FINISH, Stage.TOTAL]

    @pytest.mark.parametrize(
        ("made", "expected"),
        [
            (lambda: encode(request(deadline_ms=5)), "INVALID_REQUEST"),
            (lambda: encode(request("")), "EMPTY_INPUT"),
            (lambda: encode(ASKED)[:-1], "INVALID_REQUEST"),
            (lambda: encode(request("x" * 2_000)), "PAYLOAD_TOO_LARGE"),
        ],
    )
    @pytest.mark.parametrize("is_shared", [False, True])
    async def test_an_error(self, made: Callable[[], bytes], expected: str, is_shared: bool) -> None:
        """Whatever is wrong, the request is told under its id; it is counted, and done where it was a charge."""
        async with serving(max_payload_bytes=2_000) as trial:
            asked = asking(made(), entry="1-0", shared=is_shared)
            trial.offer(asked)
            (answer,) = await trial.finish()
        assert code(answer.content) == expected
        assert (answer.metadata["request_id"], answer.run_id) == ("msg_1", "run_1")
        assert trial.metrics.counted == {ErrorCode(expected): 1}
        assert trial.bus.settled == ([asked] if is_shared else [])

    async def test_an_answer_that_nobody_hears(self) -> None:
        """It is kept, and counted as unheard; who asks again later hears it."""
        async with serving() as trial:
            asked = asking(request(reply_to="me"))
            trial.offer(asked)
            await trial.service.pending.none()
            assert trial.metrics.counted == {None: 1, Event.ANSWER_UNHEARD: 1}
            trial.ledger.clock.now += 2
            async with trial.bus.subscribe(f"{ANSWERS}.me") as late:
                trial.offer(asked)
                (delivery,) = await take(late, 1)
                await trial.service.pending.none()
            trial.ledger.clock.now += 2
            trial.offer(asked)
            await trial.service.pending.none()
        assert code(decode(delivery.payload).content) == "success"
        assert trial.metrics.counted == {None: 1, Event.ANSWER_REPEATED: 2, Event.ANSWER_UNHEARD: 2}

    async def test_answers_are_signed(self) -> None:
        """For their topic, with the keys of the service, errors like successes."""
        async with serving(signing=SIGNING) as trial:
            for index, text in enumerate(("hello", "")):
                message = request(text, f"msg_{index}").model_copy(update={"timestamp": utc_now()})
                payload = encode(message, topic=Topics.CONTEXT_BUILD_REQUEST, signing=SIGNING)
                trial.offer(asking(payload))
            heard = await take(trial.heard, 2)
        answers = [decode(delivery.payload, topic=ANSWERS, signing=SIGNING) for delivery in heard]
        assert Counter(code(answer.content) for answer in answers) == {"success": 1, "EMPTY_INPUT": 1}

    async def test_a_stranger_does_not_take_the_id_of_another(self) -> None:
        """An unsigned request is told so under a key of its own; the signed one of that id is answered."""
        async with serving(signing=SIGNING) as trial:
            message = ASKED.model_copy(update={"timestamp": utc_now()})
            refused = await trial.ask(message)
            content = await trial.ask(encode(message, topic=Topics.CONTEXT_BUILD_REQUEST, signing=SIGNING))
        assert (code(refused), code(content)) == ("UNAUTHENTICATED", "success")


class TestOnce:
    """One request id has one effective answer."""

    async def test_asked_again_after_the_answer(self) -> None:
        """It is never built again: nothing is said within a second, and the same bytes later."""
        async with serving() as trial:
            asked = asking(ASKED)
            trial.offer(asked)
            (first,) = await take(trial.heard, 1)
            for seconds in (0.5, 0.4, 0.2, 0.5, 0.6):
                trial.ledger.clock.now += seconds
                trial.offer(asked)
                await trial.service.pending.none()
            await trial.heard.stop()
            again = [delivery async for delivery in trial.heard]
        assert trial.builder.begun == ["msg_1"]
        assert again == [first, first]
        assert trial.metrics.counted == {None: 1, Event.ANSWER_REPEATED: 2}

    async def test_two_requests_of_one_id(self) -> None:
        """The second is told so, once; the first gets its own answer, also when it asks again."""
        async with serving() as trial:
            trial.builder.gate = anyio.Event()
            original, other = asking(request("mine")), asking(request("another"))
            trial.offer(original)
            await passed()
            for _ in range(3):
                trial.offer(other)
                await passed()
            trial.builder.gate.set()
            trial.offer(original)
            answers = await trial.finish()
        assert sorted(code(answer.content) for answer in answers) == ["ID_CONFLICT", "success"]
        assert "mine" not in str(next(answer.content for answer in answers if code(answer.content) != "success"))

    async def test_one_id_of_two_owners(self) -> None:
        """They are two requests, and each is answered."""
        async with serving() as trial:
            for asked in 2 * [asking(request(owner=owner)) for owner in ("eve", "ada")]:
                trial.offer(asked)
            answers = await trial.finish()
        assert sorted((answer.owner_key, code(answer.content)) for answer in answers) == [
            ("ada", "success"),
            ("eve", "success"),
        ]

    @pytest.mark.parametrize(
        ("stranger", "signing"),
        # Without keys, what is unsigned is the owner's as far as anybody can tell.
        [
            (name, signing)
            for name in STRANGERS
            for signing in (None, LENIENT, SIGNING)
            if signing or name != "unsigned"
        ],
    )
    async def test_a_stranger_guesses_the_id(self, stranger: str, signing: Signing | None) -> None:
        """Under the owner's own name, before and after the request: it takes neither its place nor its answer."""
        authentic = ASKED.model_copy(update={"timestamp": utc_now()})
        mine = encode(authentic, topic=Topics.CONTEXT_BUILD_REQUEST, signing=signing)
        theirs = STRANGERS[stranger](authentic)
        async with serving(signing=signing, max_payload_bytes=10_000) as trial:
            trial.offer(asking(theirs))
            await trial.service.pending.none()
            for payload in (mine, theirs):
                trial.offer(asking(payload))
            answers = await trial.finish()
        answered = {answer.metadata["request_sha256"]: code(answer.content) for answer in answers}
        assert answered.pop(hashlib.sha256(mine).hexdigest()) == "success"
        assert (*answered,) == (hashlib.sha256(theirs).hexdigest(),)

    async def test_what_another_replica_is_at_is_left_to_it(self) -> None:
        """On a bus that keeps nothing: nothing is built or said, but its run is taken note of."""
        async with serving() as trial:
            await trial.claimed(ASKED)
            trial.offer(asking(ASKED))
            assert await trial.finish() == []
        assert (trial.builder.begun, trial.builder.left_to_others) == ([], ["msg_1"])
        assert trial.metrics.counted == {}

    async def test_a_late_answer_is_discarded(self) -> None:
        """Who was overtaken says nothing, counts it, and has its charge done."""
        async with serving(lease_ms=LONG_MS) as trial:
            trial.builder.gate = anyio.Event()
            trial.offer(shared(ASKED))
            await passed()
            trial.ledger.clock.now += 61
            other = await trial.claimed(ASKED)
            await MemoryLedger.conclude(trial.ledger, other, ANSWERS, encode(ASKED), LONG_MS)
            trial.builder.gate.set()
            answers = await trial.finish()
        assert answers == [ASKED]
        assert trial.metrics.counted == {Event.LATE_ANSWER_DISCARDED: 1}
        assert len(trial.bus.settled) == 1


class TestCharge:
    """A shared delivery is done when its request is answered, once, and not before."""

    async def test_it_waits_for_the_other_replica(self) -> None:
        """Another delivery of the request may be lost with its holder: this one stays until that one has answered."""
        async with serving(lease_ms=200) as trial:
            other = await trial.claimed(ASKED)
            trial.offer(shared(ASKED))
            await trial.ledger.times_asked("claim", 3)
            assert (trial.bus.settled, trial.service.pending.count) == ([], 1)
            await MemoryLedger.conclude(trial.ledger, other, ANSWERS, encode(ASKED), LONG_MS)
            answers = await trial.finish()
        assert answers == [ASKED]
        assert len(trial.bus.settled) == 1
        assert trial.builder.left_to_others == ["msg_1"]

    async def test_it_takes_over_from_the_other_replica(self) -> None:
        """When that one is gone, this one answers."""
        async with serving(lease_ms=200) as trial:
            await trial.claimed(ASKED, 1_000)
            trial.offer(shared(ASKED))
            await trial.ledger.times_asked("claim", 2)
            trial.ledger.clock.now += 1.1
            (answer,) = await trial.finish()
        assert code(answer.content) == "success"
        assert trial.metrics.counted == {None: 1, Event.LEASE_TAKEN_OVER: 1}
        assert len(trial.bus.settled) == 1

    async def test_an_outage_is_no_failed_attempt(self) -> None:
        """What was built is published when the bus is back: it is not built again, and nothing is taken for poison."""
        async with serving(lease_ms=200) as trial:
            trial.ledger.failures["conclude"] = 6
            trial.offer(shared(ASKED))
            for times in range(1, 7):
                await trial.ledger.times_asked("conclude", times)
                trial.ledger.clock.now += 1
            (answer,) = await trial.finish()
        assert code(answer.content) == "success"
        assert trial.builder.begun == ["msg_1"]
        assert trial.metrics.counted == {None: 1}
        assert len(trial.bus.settled) == 1

    @pytest.mark.parametrize("operation", ["claim", "conclude"])
    async def test_a_reply_of_the_ledger_is_lost(self, operation: str) -> None:
        """What the ledger did is known the next time: one answer, done once."""
        async with serving(lease_ms=200) as trial:
            trial.ledger.lost_replies[operation] = 1
            trial.offer(shared(ASKED))
            await trial.ledger.times_asked(operation)
            trial.ledger.clock.now += 0.5
            answers = await trial.finish()
        assert ids(answers) == {"msg_1": 1}
        assert len(trial.bus.settled) == 1

    async def test_an_answer_that_could_not_be_announced(self) -> None:
        """It is not done before it is."""
        async with serving() as trial:
            await trial.ask(shared(ASKED).payload)
            trial.ledger.clock.now += 2
            trial.bus.publish_failures = 1
            trial.offer(shared(ASKED))

            async def failed() -> bool:
                return not trial.bus.publish_failures

            await until(failed)
            assert trial.bus.settled == []
            trial.ledger.clock.now += 2
            answers = await trial.finish()
        assert ids(answers) == {"msg_1": 1}
        assert len(trial.bus.settled) == 1

    async def test_stopping_while_the_bus_is_away(self) -> None:
        """A claim whose answer could not be published is given back at once too, and renewed until then."""
        async with serving(lease_ms=200) as trial:
            trial.ledger.failures["conclude"] = 99
            trial.offer(shared(ASKED))
            await trial.ledger.times_asked("conclude")
            await trial.ledger.times_asked("renew")
        assert trial.bus.settled == []
        assert (await trial.claimed(ASKED)).attempts == 1


class TestDeadline:
    """An answer that comes too late is an error, and comes in time. No sender's clock is asked."""

    @pytest.mark.parametrize(("waited_ms", "expected"), [(999, "success"), (1_001, "DEADLINE_EXCEEDED")])
    async def test_it_lay_on_the_bus(self, waited_ms: int, expected: str) -> None:
        """From when the bus took it, by the ledger's clock; this machine's may show any other year."""
        async with serving() as trial:
            trial.ledger.now_ms = 50_000 + waited_ms
            # So much of it is left that a slow machine does not matter, or nothing at all.
            allowed = 1_000 if expected != "success" else 30_000 + waited_ms
            content = await trial.ask(request(deadline_ms=allowed), shared=True, sent_ms=50_000)
        assert code(content) == expected
        assert trial.metrics.counted == {None if expected == "success" else ErrorCode.DEADLINE_EXCEEDED: 1}
        assert len(trial.builder.begun) == (expected == "success")
        if expected == "success":
            assert content["context"]["timings_ms"]["queue"] >= waited_ms

    async def test_a_builder_that_hangs(self) -> None:
        """The requester is told, and the worker is free again."""
        async with serving(max_in_flight=1) as trial:
            trial.builder.gate = anyio.Event()
            content = await trial.ask(request(deadline_ms=100))
            trial.builder.gate.set()
            after = await trial.ask(request(request_id="msg_2"))
        assert (code(content), code(after)) == ("DEADLINE_EXCEEDED", "success")
        assert content["error"]["message"] == "metadata.deadline_ms: the 100 ms have passed"
        assert content["error"]["retryable"]

    async def test_waiting_counts(self) -> None:
        """What waited in the queue for longer than its deadline is not built."""
        async with serving(max_in_flight=1) as trial:
            trial.builder.gate = anyio.Event()
            await passed()
            trial.offer(asking(request(request_id="msg_1", deadline_ms=200)))
            await passed()
            trial.offer(asking(request(request_id="msg_2", deadline_ms=100)))
            answers = await trial.finish()
        assert [code(answer.content) for answer in answers] == ["DEADLINE_EXCEEDED"] * 2
        assert trial.builder.begun == ["msg_1"]


@pytest.mark.parametrize(
    ("kind", "signing", "ttl_ms", "kept_ms"),
    [
        ("final", None, 1_234_567, 1_234_567),
        ("error", None, 1_234_567, 1_234_567),
        ("final", None, 1_000, 120_000),
        ("final", SIGNING, 1_000, 600_000),
        ("large", None, 3_600_000, 120_000),
        ("retry", None, 3_600_000, 120_000),
        ("retry", SIGNING, 3_600_000, 600_000),
        ("retry", None, 50_000, 120_000),
    ],
)
async def test_how_long_an_answer_is_kept(kind: str, signing: Signing | None, ttl_ms: int, kept_ms: int) -> None:
    """For `answer_ttl_s`, and while copies of the request may turn up; one that is large or "try again" no longer."""
    said = [{"id": f"later_{number}", "role": "HUMAN", "content": "x" * 20_000} for number in range(14)]
    message = request("" if kind == "error" else "hi", later=said if kind == "large" else [])
    message = message.model_copy(update={"timestamp": utc_now()})
    async with serving(answer_ttl_ms=ttl_ms, signing=signing) as trial:
        payload = encode(message, topic=Topics.CONTEXT_BUILD_REQUEST, signing=signing)
        await trial.ask(payload, shared=True, surplus=kind == "retry")
    assert [*trial.ledger.kept_ms.values()] == [kept_ms]


class TestFailures:
    """Nothing that goes wrong with one request touches the next."""

    async def test_an_input_without_room_in_the_outbox(self) -> None:
        """The request is answered; its input is counted as lost, and a dead letter names the request."""
        async with serving() as trial:
            trial.parts.store.down = True
            trial.ledger.outbox = MemoryOutbox(most_rows=0)
            content = await trial.ask(ASKED, shared=True)
        assert code(content) == "success"
        (letter,) = await trial.letters.newest(9)
        assert (letter.message_id, letter.reason.partition(":")[0]) == ("msg_1", "its input is not recorded")
        assert trial.metrics.counted[Event.ROW_LOST] == 1
        assert trial.metrics.counted[DeadLetterCause.BACKLOG] == 1

    @pytest.mark.parametrize("failure", [RuntimeError("secret"), KeyError("secret"), ExceptionGroup("g", [OSError()])])
    async def test_a_builder_that_raises(self, failure: Exception) -> None:
        """INTERNAL without a word of the exception, a dead letter that names the request, and the next is served."""
        async with serving() as trial:
            trial.builder.failure = failure
            content = await trial.ask(ASKED, shared=True)
            trial.builder.failure = None
            after = await trial.ask(request(request_id="msg_2"))
        assert content["error"]["code"] == "INTERNAL"
        assert content["error"]["retryable"]
        assert "secret" not in str(content)
        assert code(after) == "success"
        (letter,) = await trial.letters.newest(9)
        assert (letter.message_id, letter.reason) == ("msg_1", "building it failed")
        assert trial.metrics.counted == {ErrorCode.INTERNAL: 1, DeadLetterCause.POISON: 1, None: 1}
        assert len(trial.bus.settled) == 1

    async def test_a_request_that_kills_who_builds_it(self) -> None:
        """It is built five times; then it is told INTERNAL and becomes a dead letter. Its neighbours are untouched."""
        async with serving(lease_ms=LONG_MS) as trial:
            for _ in range(5):
                await trial.claimed(ASKED)
                trial.ledger.clock.now += 61
            content = await trial.ask(ASKED, shared=True, deliveries=3)
            after = await trial.ask(request(request_id="msg_2"))
        assert (code(content), code(after)) == ("INTERNAL", "success")
        assert trial.builder.begun == ["msg_2"]
        (letter,) = await trial.letters.newest(9)
        assert (letter.message_id, letter.reason) == ("msg_1", "taken up 5 times, and never answered")
        counted = {ErrorCode.INTERNAL: 1, DeadLetterCause.POISON: 1, Event.LEASE_TAKEN_OVER: 1, None: 1}
        assert trial.metrics.counted == counted
        assert len(trial.bus.settled) == 1

    async def test_a_copy_begins_no_new_deadline(self) -> None:
        """Who takes over, or is given the request back, has what is left of its time since somebody heard it first."""
        async with serving() as trial:
            claim = await trial.claimed(ASKED, 1_000)
            await trial.ledger.release(claim)
            trial.ledger.clock.now += 4
            await trial.claimed(ASKED, 1_000)
            trial.ledger.clock.now += 1.5
            content = await trial.ask(ASKED)
        assert code(content) == "DEADLINE_EXCEEDED"
        assert trial.builder.begun == []

    async def test_suspects_are_built_one_at_a_time(self) -> None:
        """What is taken up for the third time waits for its like unclaimed, so that no death is counted for it."""
        suspects = [request(request_id=f"msg_{number}") for number in range(3)]
        async with serving(lease_ms=LONG_MS) as trial:
            for message in suspects:
                await trial.claimed(message, 100)
            trial.ledger.clock.now += 0.2
            for message in suspects:
                await trial.claimed(message, 100)
            trial.ledger.clock.now += 0.2
            trial.builder.gate = anyio.Event()
            for message in suspects:
                trial.offer(shared(message, entry=f"{message.id}-0"))

            async def one_is_built() -> bool:
                return len(trial.builder.begun) == 1

            await until(one_is_built)
            await passed()
            waiting = [message for message in suspects if message.id not in trial.builder.begun]
            # Nobody has claimed them: another replica would get them at once.
            claims = [await trial.claimed(message) for message in waiting]
            assert [claim.attempts for claim in claims] == [3, 3]
            for claim in claims:
                await trial.ledger.release(claim)
            trial.builder.gate.set()
            answers = await trial.finish()
        assert [code(answer.content) for answer in answers] == ["success"] * 3
        assert len(trial.bus.settled) == 3

    async def test_a_long_build_keeps_its_lease(self) -> None:
        """Renewed until it is finished, also through an outage of the bus."""
        async with serving(lease_ms=200) as trial:
            trial.builder.gate = anyio.Event()
            trial.ledger.failures["renew"] = 1
            trial.offer(asking(request(deadline_ms=20_000)))
            await trial.ledger.times_asked("renew", 2)
            trial.builder.gate.set()
            (answer,) = await trial.answers()
            renewals = trial.ledger.asked["renew"]
            await trial.finish()
        assert code(answer.content) == "success"
        assert trial.ledger.asked["renew"] == renewals

    async def test_a_fault_in_a_renewal(self) -> None:
        """Is counted, and renewing goes on."""
        async with serving(lease_ms=200) as trial:
            trial.builder.gate = anyio.Event()
            trial.ledger.renewal_faults.append(LookupError("boom"))
            trial.offer(asking(request(deadline_ms=20_000)))
            await trial.ledger.times_asked("renew", 2)
            trial.builder.gate.set()
            (answer,) = await trial.finish()
        assert code(answer.content) == "success"
        assert trial.metrics.counted[Event.BACKGROUND_FAULT] == 1

    @pytest.mark.parametrize(
        ("broken", "letter"),
        [
            ({"fault": LookupError("a secret")}, ("", "answering it failed")),
            ({"refusing": True}, ("msg_1", "another kind")),
        ],
    )
    async def test_a_ledger_that_fails(self, broken: dict[str, Any], letter: tuple[str, str]) -> None:
        """By a fault of ours, or because a key is of another kind: a dead letter, and the next request is answered."""
        async with serving() as trial:
            vars(trial.ledger).update(broken)
            trial.offer(shared(ASKED))
            await trial.service.pending.none()
            vars(trial.ledger).update({"fault": None, "refusing": False})
            after = await trial.ask(request(request_id="msg_2"))
            (found,) = await trial.letters.newest(9)
        assert code(after) == "success"
        assert (found.message_id, found.reason) == letter
        assert len(trial.bus.settled) == 1

    @pytest.mark.parametrize("operation", ["claim", "conclude"])
    async def test_a_bus_that_is_away(self, operation: str) -> None:
        """Where nothing is kept no answer can be given; the service goes on, and the request sent again is answered."""
        async with serving() as trial:
            trial.ledger.failures[operation] = 1
            trial.offer(asking(ASKED))
            await trial.service.pending.none()
            trial.ledger.clock.now += 2
            content = await trial.ask(ASKED)
        assert code(content) == "success"
