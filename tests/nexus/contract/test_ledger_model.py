"""The protocol of leases and answers against a model, through any sequence of what replicas and networks do.

The same machine runs on the ledger in memory, whose clock is the test's, and on the two ledgers on a real Redis. There
no clock can be set: a test-only script moves the moments of a request into the past instead (`ledgers._SHIFT`). All
steps of time are chosen so that nothing of the model happens within ten seconds of a step, so a slow machine changes
no outcome.
"""

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from nexus.adapters import redis_ledger_scripts
from nexus.adapters.memory_bus import MemoryLedger
from nexus.adapters.redis_multiplexed import Script
from nexus.core.ports import Acquired, Announced, Answered, Busy, Claim, Concluded, Conflict, KeptBefore
from tests.nexus.contract.ledgers import Desk, OpenDesk, memory_desk, pubsub_desk, streams_desk
from tests.nexus.support.waiting import PATIENCE_S

pytestmark = pytest.mark.heavy

STEP_MS: Final = 30_000
# None of these is within ten seconds of a number of steps, nor is the sum of any two.
LEASE_MS: Final = 100_000
KNOWN_MS: Final = 600_000
KEEP_MS: Final = 1_000_000
TOPIC: Final = "answers"
_END: Final = b"the end"

REQUESTS: Final = st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["f", "g"]))
REPLICAS: Final = st.integers(0, 2)


@dataclass
class Known:
    """What the model knows of a key: whose it is, who is at it until when, and the answer that counts."""

    fingerprint: str
    known_until: int = 0
    token: str | None = None
    lease_until: int = 0
    attempts: int = 0
    answer: bytes | None = None
    said_at: int = 0


@dataclass(frozen=True)
class Held:
    """A claim in the hands of a replica that has been started so often before."""

    replica: int
    life: int
    claim: Acquired


@dataclass
class Witness:
    """What can be seen from outside, without any knowledge of how a ledger works. All of it ends with a FLUSHALL.

    Attributes:
        leases: until when each holder of a key may believe that it alone is at it, by token.
        begins: how often each key was acquired.
        answers: when which key got which answer.
    """

    leases: dict[str, dict[str, int]] = field(default_factory=dict)
    begins: Counter[str] = field(default_factory=Counter)
    answers: list[tuple[int, str, bytes]] = field(default_factory=list)


class LedgerMachine(RuleBasedStateMachine):
    """Three replicas that get, hold, answer, lose and give back two requests, each of which has a double."""

    held = Bundle[Held]("held")

    open_desk: OpenDesk

    @initialize()
    def open(self) -> None:
        """Start with nothing known."""
        self.runner = asyncio.Runner()
        self.closing = asyncio.Event()
        opened: asyncio.Future[Desk] = self.runner.get_loop().create_future()
        self.holding = self.runner.get_loop().create_task(self._hold(opened))
        self.desk: Desk = self._run(asyncio.wait_for(opened, PATIENCE_S))
        self.now = 0
        self.model: dict[str, Known] = {}
        self.witness = Witness()
        self.sent: set[tuple[str, str]] = set()
        self.lives = [0, 0, 0]
        self.numbers = 0

    def teardown(self) -> None:
        """With one replica that lives and time that passes, every request that was sent can be answered."""
        if not hasattr(self, "desk"):
            return
        try:
            self._advance(LEASE_MS // STEP_MS + 1)
            answered = {key for key, fingerprint in sorted(self.sent) if self._answerable(key, fingerprint)}
            assert answered == {key for key, _ in self.sent}
        finally:
            self._run(self.desk.forget())
            self.closing.set()
            self._run(asyncio.wait_for(self.holding, PATIENCE_S))
            self.runner.close()

    @rule(target=held, request=REQUESTS, replica=REPLICAS)
    def begin(self, request: tuple[str, str], replica: int) -> Held | MultipleResults[Held]:
        """A request that is sent, sent again or handed out again reaches a replica."""
        key, fingerprint = request
        self.sent.add(request)
        claim = self._begin(key, fingerprint)
        return Held(replica, self.lives[replica], claim) if isinstance(claim, Acquired) else multiple()

    @rule(held=held)
    def renew(self, held: Held) -> None:
        """Only the holder of an unanswered request may hold it for longer, also after its lease."""
        if not self._lives(held):
            return
        claim = held.claim
        known = self._known(claim.key)
        holds = known is not None and known.token == claim.token and known.answer is None
        assert self._run(self.desk.ledger.renew(claim, LEASE_MS)) == holds
        if known is not None and holds:
            self._lease(claim.key, known)

    @rule(held=held, repeated=st.integers(1, 2))
    def finish(self, held: Held, repeated: int) -> None:
        """The first answer of a payload counts; again, since a reply was lost, it changes nothing."""
        for _ in range(repeated if self._lives(held) else 0):
            self._finish(held.claim)

    @rule(held=held)
    def pause_and_finish(self, held: Held) -> None:
        """A replica that stood still for longer than its lease goes on where it was."""
        if self._lives(held):
            self._advance(LEASE_MS // STEP_MS + 1)
            self._finish(held.claim)

    @rule(held=consumes(held))
    def release(self, held: Held) -> None:
        """Only the holder of an unanswered request gives it back, and its attempt with it."""
        if not self._lives(held):
            return
        claim = held.claim
        self._run(self.desk.ledger.release(claim))
        self.witness.leases.get(claim.key, {}).pop(claim.token, None)
        known = self._known(claim.key)
        if known is None or known.token != claim.token or known.answer is not None:
            return
        known.token = None
        known.attempts -= 1
        if not known.attempts:
            del self.model[claim.key]

    @rule(held=consumes(held))
    def crash(self, held: Held) -> None:
        """Who held it is never heard of again; its lease is."""

    @rule(replica=REPLICAS)
    def restart(self, replica: int) -> None:
        """A replica starts anew and knows nothing of what it held."""
        self.lives[replica] += 1

    @rule(steps=st.sampled_from([1, 2, 4, 24, 34]))
    def advance(self, steps: int) -> None:
        """Time passes: less than a lease, more, more than a request is known, more than its answer is kept."""
        self._advance(steps)

    @rule()
    def flush(self) -> None:
        """Redis loses everything; no promise reaches over this."""
        self._run(self.desk.forget())
        self.model.clear()
        self.witness = Witness()

    @invariant()
    def one_answer(self) -> None:
        """Within the time for which an answer is kept, a key has no second one."""
        last: dict[str, int] = {}
        for at, key, _ in getattr(self, "witness", Witness()).answers:
            assert key not in last or at >= last[key] + KEEP_MS, f"{key} was answered twice"
            last[key] = at

    def _begin(self, key: str, fingerprint: str) -> Claim:
        claim: Claim = self._run(self.desk.ledger.begin(key, fingerprint, LEASE_MS))
        if isinstance(claim, Acquired):
            leases = self.witness.leases.setdefault(key, {})
            assert all(until <= self.now for until in leases.values()), f"{key} is held twice"
            self.witness.begins[key] += 1
            assert 1 <= claim.attempts <= self.witness.begins[key]
        known = self._known(key) or self.model.setdefault(key, Known(fingerprint))
        if known.fingerprint != fingerprint:
            assert claim == Conflict()
        elif known.answer is not None:
            announced = self.now == known.said_at
            # A machine that is slow enough lets a second pass by itself.
            slow = self.desk.redis is not None and isinstance(claim, Answered)
            assert claim == (Announced() if announced and not slow else Answered(TOPIC, known.answer))
            known.said_at = self.now
        elif known.token is not None and known.lease_until > self.now:
            assert claim == Busy()
        else:
            assert isinstance(claim, Acquired)
            known.token, known.attempts = claim.token, known.attempts + 1
            assert claim.attempts == known.attempts
            self._lease(key, known)
        return claim

    def _finish(self, claim: Acquired) -> bool:
        self.numbers += 1
        answer = b"%d" % self.numbers
        published, heard = self._run(self._published(claim, answer))
        self.witness.answers += [(self.now, claim.key, said) for said in published]
        self.witness.leases.get(claim.key, {}).pop(claim.token, None)
        known = self._known(claim.key)
        if known is not None and (known.answer is not None or known.fingerprint != claim.fingerprint):
            assert published == []
            mine = known.token == claim.token and known.fingerprint == claim.fingerprint
            assert (heard is not None) == mine
            return mine
        assert (published, heard is None) == ([answer], False)
        self.model[claim.key] = Known(
            claim.fingerprint, self.now + KEEP_MS, claim.token, answer=answer, said_at=self.now
        )
        return True

    async def _published(self, claim: Acquired, answer: bytes) -> tuple[list[bytes], int | None]:
        """What finishing publishes, and what it returns."""
        published: list[bytes] = []
        async with asyncio.timeout(PATIENCE_S), self.desk.bus.subscribe(TOPIC) as subscription:
            heard = await self.desk.ledger.finish(claim, TOPIC, answer, KEEP_MS)
            await self.desk.bus.publish(TOPIC, _END)
            async for delivery in subscription:
                if delivery.payload == _END:
                    break
                published.append(delivery.payload)
        return published, heard

    def _answerable(self, key: str, fingerprint: str) -> bool:
        claim = self._begin(key, fingerprint)
        if isinstance(claim, Acquired):
            return self._finish(claim)
        return isinstance(claim, Answered | Announced)

    def _advance(self, steps: int) -> None:
        self._run(self.desk.advance(steps * STEP_MS))
        self.now += steps * STEP_MS

    def _lease(self, key: str, known: Known) -> None:
        assert known.token is not None
        known.lease_until = self.now + LEASE_MS
        known.known_until = known.lease_until + KNOWN_MS
        self.witness.leases.setdefault(key, {})[known.token] = known.lease_until

    def _known(self, key: str) -> Known | None:
        known = self.model.get(key)
        if known is not None and known.known_until <= self.now:
            del self.model[key]
            return None
        return known

    def _lives(self, held: Held) -> bool:
        return self.lives[held.replica] == held.life

    async def _hold(self, opened: asyncio.Future[Desk]) -> None:
        """Have the desk open until it is to be closed; by one task, as what it is made of demands."""
        async with type(self).open_desk() as desk:
            opened.set_result(desk)
            await self.closing.wait()

    def _run(self, operation: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(operation)


_SLOW: Final = (HealthCheck.too_slow, HealthCheck.data_too_large)
ON_MEMORY: Final = settings(max_examples=200, stateful_step_count=40, suppress_health_check=_SLOW)
ON_REDIS: Final = settings(max_examples=20, stateful_step_count=40, suppress_health_check=_SLOW)
# That there is a fault is enough; the smallest sequence that shows it is not asked for.
FAULTY: Final = settings(
    max_examples=300,
    stateful_step_count=40,
    suppress_health_check=_SLOW,
    phases=[Phase.generate],
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
)


def check(open_desk: OpenDesk, how: settings) -> None:
    """Run the machine on a ledger."""
    machine = type("Machine", (LedgerMachine,), {"open_desk": staticmethod(open_desk)})
    run_state_machine_as_test(machine, settings=how)


def test_in_memory() -> None:
    """The ledger within one process keeps to the model."""
    check(memory_desk, ON_MEMORY)


@pytest.mark.parametrize("desk", [pubsub_desk, streams_desk])
def test_on_redis(desk: Callable[[str, str], Any], redis_url: str) -> None:
    """Both ledgers on Redis do."""
    check(lambda: desk(redis_url, f"t{uuid.uuid4().hex}:"), ON_REDIS)


class LeaselessLedger(MemoryLedger):
    """Whoever asks gets the request."""

    async def begin(self, key: str, *arguments: Any) -> Claim:
        """Ask, with every lease run out."""
        if entry := self._state.requests.get(key):
            entry.lease_until = 0
        return await super().begin(key, *arguments)


class OverwritingLedger(MemoryLedger):
    """The last answer wins."""

    async def conclude(self, claim: Acquired, *arguments: Any) -> Concluded | KeptBefore | None:
        """Finish as if nothing were known."""
        self._state.requests.pop(claim.key, None)
        return await super().conclude(claim, *arguments)


class ClingingLedger(MemoryLedger):
    """A lease never runs out."""

    async def begin(self, key: str, fingerprint: str, lease_ms: int, *arguments: Any) -> Claim:
        """Ask, for ever."""
        return await super().begin(key, fingerprint, lease_ms * 1_000, *arguments)


class CountingLedger(MemoryLedger):
    """A release is an attempt."""

    async def release(self, claim: Acquired) -> None:
        """Give back, and count."""
        entry = self._state.requests.get(claim.key)
        if entry and entry.token == claim.token:
            entry.attempts += 1
        await super().release(claim)


class HastyLedger(MemoryLedger):
    """Publishes before it looks whether there is an answer."""

    async def conclude(
        self, claim: Acquired, topic: str, answer: bytes, *arguments: Any
    ) -> Concluded | KeptBefore | None:
        """Publish, and finish."""
        entry = self._state.requests.get(claim.key)
        if entry and entry.answer is not None:
            await self._bus.publish(topic, answer)
        return await super().conclude(claim, topic, answer, *arguments)


class GenerousLedger(MemoryLedger):
    """Anybody may hold a request for longer."""

    async def renew(self, claim: Acquired, lease_ms: int) -> bool:
        """Renew whatever the token."""
        del lease_ms
        entry = self._state.requests.get(claim.key)
        return entry is not None and entry.answer is None


class BlindLedger(MemoryLedger):
    """All payloads of a key are one."""

    async def begin(self, key: str, fingerprint: str, *arguments: Any) -> Claim:
        """Ask with the fingerprint that is known."""
        entry = self._state.requests.get(key)
        return await super().begin(key, entry.fingerprint if entry else fingerprint, *arguments)


@pytest.mark.parametrize(
    "broken",
    [
        LeaselessLedger,
        OverwritingLedger,
        ClingingLedger,
        CountingLedger,
        HastyLedger,
        GenerousLedger,
        BlindLedger,
    ],
)
def test_it_finds_a_fault_in_memory(broken: type[MemoryLedger]) -> None:
    """A machine that finds nothing must not be one that cannot find anything."""
    with pytest.raises(AssertionError):
        check(partial(memory_desk, broken), FAULTY)


@asynccontextmanager
async def broken_desk(redis_url: str, script: str, source: str) -> AsyncIterator[Desk]:
    """A desk on Redis with another text of one script."""
    async with pubsub_desk(redis_url, f"t{uuid.uuid4().hex}:") as desk:
        setattr(desk.ledger, script, Script(source))
        yield desk


@pytest.mark.parametrize(
    ("script", "right", "wrong"),
    [
        ("_begin", "known.lease_until - now > 0", "false"),
        ("_finish", "if known[3] or foreign then", "if foreign then"),
        ("_renew", "~= ARGV[1]", "== ''"),
        ("_release", "'attempts', -1", "'attempts', 0"),
    ],
)
def test_it_finds_a_fault_on_redis(script: str, right: str, wrong: str, redis_url: str) -> None:
    """Nor on Redis: with one condition of a script turned, it says so."""
    sources = {
        "_begin": redis_ledger_scripts.BEGIN.text,
        "_renew": redis_ledger_scripts.RENEW.text,
        "_release": redis_ledger_scripts.RELEASE.text,
        "_finish": redis_ledger_scripts.FINISH_PUBSUB.text,
    }
    assert right in sources[script]
    with pytest.raises(AssertionError):
        check(partial(broken_desk, redis_url, script, sources[script].replace(right, wrong)), FAULTY)
