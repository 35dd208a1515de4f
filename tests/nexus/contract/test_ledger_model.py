"""Leases, answers and the outbox against a model, through any sequence of what replicas and networks do.

The same machine runs on the ledger in memory, whose clock is the test's, and on the two ledgers on a real Redis. There
no clock can be set: a test-only script moves the moments of a request into the past instead (`ledgers._SHIFT`). All
steps of time are chosen so that nothing of the model happens within ten seconds of a step, so a slow machine changes
no outcome.
"""

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
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
from redis.asyncio import Redis

from nexus.adapters.redis import scripts
from nexus.adapters.redis.ledger import RedisLedger
from nexus.core.ports import Acquired, Announced, Answered, Busy, Claim, Conflict, OutboxRow
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
# Most answers come without a row for the outbox.
ROWS: Final = st.none() | st.tuples(st.sampled_from(["ada", "bea"]), st.sampled_from(["1", "2"]))


@dataclass
class Known:
    """What the model knows of a key: its payload, its holder until when, and its one answer."""

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
        self.outbox: dict[tuple[str, str], bytes] = {}
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
    def claim(self, request: tuple[str, str], replica: int) -> Held | MultipleResults[Held]:
        """A request that is sent, sent again or handed out again reaches a replica."""
        key, fingerprint = request
        self.sent.add(request)
        claim = self._claim(key, fingerprint)
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

    @rule(held=held, repeated=st.integers(1, 2), row=ROWS)
    def conclude(self, held: Held, repeated: int, row: tuple[str, str] | None) -> None:
        """The first answer of a payload counts; again, since a reply was lost, it changes nothing."""
        for _ in range(repeated if self._lives(held) else 0):
            self._conclude(held.claim, row)

    @rule(held=held, row=ROWS)
    def pause_and_conclude(self, held: Held, row: tuple[str, str] | None) -> None:
        """A replica that stood still for longer than its lease goes on where it was."""
        if self._lives(held):
            self._advance(LEASE_MS // STEP_MS + 1)
            self._conclude(held.claim, row)

    @rule(limit=st.integers(1, 3))
    def drain(self, limit: int) -> None:
        """A replica takes the oldest rows out, and once more, since a reply was lost."""
        rows = self._run(self.desk.outbox.oldest(limit))
        assert len(rows) == min(limit, len(self.outbox))
        for row in rows:
            assert self.outbox.pop((row.owner_key, row.id)) == row.content
        for _ in range(2):
            self._run(self.desk.outbox.remove(rows))

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
        self.outbox.clear()
        self.witness = Witness()

    @invariant()
    def one_answer(self) -> None:
        """Within the time for which an answer is kept, a key has no second one."""
        last: dict[str, int] = {}
        for at, key, _ in getattr(self, "witness", Witness()).answers:
            assert key not in last or at >= last[key] + KEEP_MS, f"{key} was answered twice"
            last[key] = at

    @invariant()
    def rows_by_owner(self) -> None:
        """The outbox holds the rows of the answers that count, each once, until they are taken out."""
        for owner_key in ("ada", "bea") if hasattr(self, "outbox") else ():
            found = {row.id: row.content for row in self._run(self.desk.outbox.of_owner(owner_key))}
            assert found == {row_id: content for (owner, row_id), content in self.outbox.items() if owner == owner_key}

    def _claim(self, key: str, fingerprint: str) -> Claim:
        claim: Claim = self._run(self.desk.ledger.claim(key, fingerprint, LEASE_MS))
        if isinstance(claim, Acquired):
            assert claim.outbox_waiting == bool(self.outbox)
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

    def _conclude(self, claim: Acquired, row: tuple[str, str] | None = None) -> bool:
        self.numbers += 1
        answer = b"%d" % self.numbers
        published, received = self._run(self._published(claim, answer, row and OutboxRow(*row, answer)))
        self.witness.answers += [(self.now, claim.key, said) for said in published]
        self.witness.leases.get(claim.key, {}).pop(claim.token, None)
        known = self._known(claim.key)
        if known is not None and (known.answer is not None or known.fingerprint != claim.fingerprint):
            assert published == []
            mine = known.token == claim.token and known.fingerprint == claim.fingerprint
            assert (received is not None) == mine
            return mine
        assert (published, received is None) == ([answer], False)
        if row:
            self.outbox.setdefault(row, answer)
        self.model[claim.key] = Known(
            claim.fingerprint, self.now + KEEP_MS, claim.token, answer=answer, said_at=self.now
        )
        return True

    async def _published(self, claim: Acquired, answer: bytes, row: OutboxRow | None) -> tuple[list[bytes], int | None]:
        """What concluding publishes, and what it returns."""
        published: list[bytes] = []
        async with asyncio.timeout(PATIENCE_S), self.desk.bus.subscribe(TOPIC) as subscription:
            received = await self.desk.ledger.conclude(claim, TOPIC, answer, KEEP_MS, outbox=row)
            await self.desk.bus.publish(TOPIC, _END)
            async for delivery in subscription:
                if delivery.payload == _END:
                    break
                published.append(delivery.payload)
        return published, received

    def _answerable(self, key: str, fingerprint: str) -> bool:
        claim = self._claim(key, fingerprint)
        if isinstance(claim, Acquired):
            return self._conclude(claim)
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


@pytest.mark.parametrize(
    ("script", "right", "wrong"),
    [
        ("claim", "tonumber(lease_until) > now", "false"),
        ("claim", "fingerprint ~= ARGV[2]", "false"),
        ("conclude", "if answer then", "if false then"),
        ("renew", "~= ARGV[1]", "== ''"),
        ("release", "'attempts', -1", "'attempts', 0"),
        ("conclude", "redis.call('ZADD', order, now, member)", ""),
    ],
)
def test_it_finds_a_fault_on_redis(script: str, right: str, wrong: str, redis_url: str) -> None:
    """A machine that finds nothing must be one that can: with one line of a script changed, it says so."""
    texts = {
        "claim": scripts.CLAIM,
        "renew": scripts.RENEW,
        "release": scripts.RELEASE,
        "conclude": scripts.CONCLUDE_PUBSUB,
    }
    assert right in texts[script]

    def broken(client: Redis, *, prefix: str) -> RedisLedger:
        ledger = RedisLedger(client, prefix=prefix)
        setattr(ledger, f"_{script}", client.register_script(texts[script].replace(right, wrong)))
        return ledger

    with pytest.raises(AssertionError):
        check(lambda: pubsub_desk(redis_url, f"t{uuid.uuid4().hex}:", broken), FAULTY)
