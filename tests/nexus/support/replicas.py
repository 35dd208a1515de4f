"""Replicas at work on one ledger and one store, over wires that take their time, and a judge of what they answer.

A replica is all that answers requests and records results. What it asks of others takes a random time on the way there
and on the way back, so that whatever can happen in between does. One that is killed is never heard of again: what is on
its way there is lost.
"""

import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from nexus.adapters.memory_dead_letters import MemoryDeadLetters
from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import NoMetrics
from nexus.core.models import Message, Role
from nexus.core.ports import (
    Acquired,
    Answering,
    Asking,
    Bus,
    Claim,
    Concluded,
    Delivery,
    Ending,
    Journal,
    JournalRow,
    KeptBefore,
    Look,
    Moved,
    RequestLedger,
    Row,
    Standing,
    Store,
)
from nexus.core.topics import Topics
from nexus.core.wire import encode
from nexus.services.asks import RequestSettings
from nexus.services.batches import JOURNALED_PAUSE_S
from nexus.services.burying import Burying
from nexus.services.context.builder import BuilderSettings, ContextBuilder
from nexus.services.context.gathering import INCOMPLETE
from nexus.services.persistence import PersistenceService
from nexus.services.requests.admission import RequestService
from nexus.services.tails import Tails
from nexus.tools.registry import ToolRegistry
from tests.nexus.support.fakes import FakeStore

# Every row is shown, so that none that is missing is missing by rule.
_MESSAGES: Final = 200
_TAIL_BYTES: Final = 1 << 20
_FIRST_RUN: Final = datetime(2025, 12, 10, tzinfo=UTC)
# What every row says is its id, which names its run and with it the owner.
_SAID: Final = re.compile(r"(?:human|result_\d+)_of_[a-z]+_\d+")
# Not at all, about as long as a row stays in the journal, as a reader waits for what was heard.
FAST_S: Final = (0.0, 0.0, 0.001, 0.004)
SLOW_S: Final = (0.0, 0.001, 0.01, 0.02, 0.03)
_REPLY_LOST: Final = 0.05
# A tenth of what it is in earnest, as is all that takes time here.
STAYS_S: Final = 0.025
_PAUSE_S: Final = JOURNALED_PAUSE_S / 10
UNEVEN_S: Final = (0.0, 0.0, 0.0, 0.001, 0.004, 0.012, 0.02, 0.03, 0.06, 0.4)


@dataclass(frozen=True)
class Delays:
    """How long what is asked is on its way, and what is answered.

    Attributes:
        reads_s: of the store.
        writes_s: to the store.
        claims_s: of requests.
        others_s: of everything else.
    """

    reads_s: Sequence[float] = UNEVEN_S
    writes_s: Sequence[float] = UNEVEN_S
    claims_s: Sequence[float] = UNEVEN_S
    others_s: Sequence[float] = UNEVEN_S

    @classmethod
    def random(cls, rng: random.Random) -> "Delays":
        """Any of them."""
        return cls(*(rng.choice((FAST_S, SLOW_S, UNEVEN_S)) for _ in range(4)))


class Wire:
    """What a replica has to the others, for as long as it lives."""

    def __init__(self, rng: random.Random, delays: "Delays") -> None:
        self.rng = rng
        self.delays = delays
        self.cut = False

    async def cross(self, delays_s: Sequence[float] | None = None) -> None:
        """Take a while; never arrive if the replica is killed meanwhile."""
        await anyio.sleep(self.rng.choice(delays_s or self.delays.others_s))
        if self.cut:
            await anyio.sleep_forever()


class SlowStore(FakeStore):
    """A store in memory that many share, far away."""

    def __init__(self, shared: FakeStore, scene: "Scene", wire: Wire) -> None:
        super().__init__()
        self.messages, self.identities = shared.messages, shared.identities
        self.scene, self.wire = scene, wire

    async def insert_messages(self, rows: Sequence[Row]) -> list[bool | StoreRejectedError | StoreUnavailableError]:
        """Record rows."""
        await self.wire.cross(self.wire.delays.writes_s)
        fates = await super().insert_messages(rows)
        await self.wire.cross(self.wire.delays.writes_s)
        return fates

    async def newest_messages(
        self, owner_key: str, *, limit: int, skip: int = 0, excerpt_chars: int | None = None
    ) -> list[Row]:
        """Rows as of some moment between the question and the answer."""
        await self.wire.cross(self.wire.delays.reads_s)
        rows = await super().newest_messages(owner_key, limit=limit, skip=skip, excerpt_chars=excerpt_chars)
        await self.wire.cross(self.wire.delays.reads_s)
        return rows


class SlowJournal:
    """A journal that many share, far away. What is not answered is asked once more, as the one on Redis does."""

    def __init__(self, shared: Journal, scene: "Scene", wire: Wire) -> None:
        self.shared, self.scene, self.wire = shared, scene, wire

    @property
    def epoch(self) -> int:
        """That of what is shared."""
        return self.shared.epoch

    async def standing(self, look: Look) -> Standing:
        """How things are."""
        await self.wire.cross()
        standing = await self.shared.standing(look)
        await self.wire.cross()
        return standing

    async def moved(self, owner_key: str, row_id: str) -> Moved:
        """Have the version move."""
        for _ in range(self.wire.rng.choice((1, 1, 1, 2))):
            await self.wire.cross()
            moved = await self.shared.moved(owner_key, row_id)
            self.scene.stood[owner_key].add(row_id)
        await self.wire.cross()
        return moved

    async def written(self, rows: Sequence[JournalRow]) -> None:
        """Take rows out."""
        for _ in range(self.wire.rng.choice((1, 1, 1, 2))):
            await self.wire.cross()
            await self.shared.written(rows)
        await self.wire.cross()

    async def unwritten(self, older_than_ms: int, limit: int) -> list[bytes]:
        """What was left."""
        await self.wire.cross()
        rows = await self.shared.unwritten(older_than_ms, limit)
        await self.wire.cross()
        return rows


class SlowLedger:
    """A ledger that many share, far away; what it says and is told is judged."""

    def __init__(self, shared: RequestLedger, scene: "Scene", wire: Wire) -> None:
        self.shared, self.scene, self.wire = shared, scene, wire

    async def begin(
        self, key: str, fingerprint: str, lease_ms: int, waited_ms: int = 0, look: Look | None = None
    ) -> Claim:
        """Ask for a request."""
        await self.wire.cross(self.wire.delays.claims_s)
        stood = frozenset(self.scene.stood[look.owner_key]) if look else frozenset()
        claim = await self.shared.begin(key, fingerprint, lease_ms, waited_ms, look)
        if isinstance(claim, Acquired):
            self.scene.claim(claim, stood, look.version if look else "")
        await self.wire.cross(self.wire.delays.claims_s)
        return claim

    async def begin_and_conclude(self, asking: Asking, answering: Answering) -> Claim | Concluded:
        """Ask for a request with its answer; again, where a reply was lost."""
        await self.wire.cross(self.wire.delays.claims_s)
        look, read = asking.look, answering.read
        assert look
        stood = frozenset(self.scene.stood[look.owner_key])
        with anyio.CancelScope(shield=True):
            done = await self.shared.begin_and_conclude(asking, answering)
            token = f"at once {asking.key} {self.wire.rng.random()}"
            if isinstance(done, Concluded):
                # Of an owner without a version it is told of none, and nothing is kept.
                version = done.moved.before if read else look.version
                claim = Acquired(asking.key, asking.fingerprint, token, 0, standing=Standing(version))
                self.scene.claim(claim, stood, version or "none")
                self.scene.counted["read at once" if read else "at once"] += 1
                self.scene.judge(claim, answering.answer, answering.ending)
            elif isinstance(done, Acquired):
                self.scene.claim(done, stood, look.version)
        await self.wire.cross(self.wire.delays.claims_s)
        return done

    async def conclude(  # noqa: PLR0917  # as the port has it
        self, claim: Acquired, topic: str, answer: bytes, keep_ms: int, delivery: Delivery | None, ending: Ending
    ) -> Concluded | KeptBefore | None:
        """Finish a request; again, where a reply was lost."""
        await self.wire.cross()
        again = self.wire.rng.random() < _REPLY_LOST
        # What was done is judged, whoever is killed.
        with anyio.CancelScope(shield=True):
            done = await self.shared.conclude(claim, topic, answer, keep_ms, delivery, ending)
            if isinstance(done, Concluded):
                self.scene.judge(claim, answer, ending)
                if again:
                    done = await self.shared.conclude(claim, topic, answer, keep_ms, delivery, ending)
        await self.wire.cross()
        return done

    async def finish(
        self, claim: Acquired, topic: str, answer: bytes, keep_ms: int, delivery: Delivery | None = None
    ) -> int | None:
        """Finish a request with nothing else."""
        done = await self.conclude(claim, topic, answer, keep_ms, delivery, Ending())
        return done.heard if isinstance(done, Concluded) else None

    async def renew(self, claim: Acquired, lease_ms: int) -> bool:
        """Hold a request."""
        await self.wire.cross()
        return await self.shared.renew(claim, lease_ms)

    async def release(self, claim: Acquired) -> None:
        """Give a request back."""
        await self.wire.cross()
        await self.shared.release(claim)

    async def keep_first(self, key: str, value: bytes, keep_ms: int) -> bytes:
        """Keep a value."""
        await self.wire.cross()
        return await self.shared.keep_first(key, value, keep_ms)

    async def kept(self, key: str) -> bytes | None:
        """What is kept."""
        await self.wire.cross()
        return await self.shared.kept(key)


@dataclass(frozen=True)
class Making:
    """Of what replicas are made."""

    ledger: Callable[..., SlowLedger] = SlowLedger
    journal: Callable[..., SlowJournal] = SlowJournal
    store: Callable[..., SlowStore] = SlowStore
    tails: Callable[[int], Tails] = Tails


@dataclass
class Shared:
    """What all replicas stand on.

    Attributes:
        lose_versions, lose_all: have Redis lose the versions, and everything.
        left: how many rows are in the journal.
        fake: the store, in memory.
        real: the store, where it is another.
    """

    bus: Bus
    ledger: RequestLedger
    journal: Journal
    lose_versions: Callable[[], Awaitable[object]]
    lose_all: Callable[[], Awaitable[object]]
    left: Callable[[], Awaitable[int]]
    fake: FakeStore | None = None
    real: Store | None = None

    async def stored(self, owner_key: str) -> list[str]:
        """The ids of the rows of an owner."""
        store = self.fake or self.real
        assert store
        return [row["id"] for row in await store.all_messages(owner_key, limit=10_000)]


class Replica:
    """One process of the service, in one of its lives."""

    def __init__(self, scene: "Scene") -> None:
        self.wire = Wire(scene.rng, scene.delays)
        shared, making = scene.shared, scene.making
        store: Any = making.store(shared.fake, scene, self.wire) if shared.fake else shared.real
        journal = making.journal(shared.journal, scene, self.wire)
        ledger = making.ledger(shared.ledger, scene, self.wire)
        self.tails = making.tails(_TAIL_BYTES)
        self.persistence = PersistenceService(
            store,
            journal=journal,
            tails=self.tails,
            clock=anyio.current_time,
            stays_s=STAYS_S,
            pause_s=_PAUSE_S,
        )
        builder = ContextBuilder(
            self.persistence, store, ToolRegistry(), ledger, BuilderSettings(history_size=_MESSAGES)
        )
        burying = Burying(MemoryDeadLetters(), NoMetrics(), None)
        self.requests = RequestService(builder, shared.bus, ledger, burying, RequestSettings(max_in_flight=16))
        self._life = anyio.CancelScope()

    async def live(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Be at work until it is killed."""
        with self._life:
            async with self.persistence.running(), self.requests.running():
                task_status.started()
                await anyio.sleep_forever()

    def kill(self) -> None:
        """End it, in the middle of whatever it does."""
        self.wire.cut = True
        self._life.cancel()


@dataclass
class Scene:
    """Replicas, what they were asked, and what has to be in their answers.

    Attributes:
        to_one: which part of requests and results are handed to one replica, as in streams, and not to all.
        to_first: which part of those goes to the first, as where the others are busy.
        stood: by owner, the rows that have moved the version.
        acknowledged: by owner, the rows of which somebody was told that they are safe.
        claims: by token, what has to be shown, and whether what the replica kept was the newest.
        asked: the requests.
        before: by run, what was acknowledged when it was asked for first.
        claimed: the runs of which a request has been claimed.
        lost: rows that went with Redis before the store had them.
        unsure: runs that were begun before Redis was emptied, of which there may be two beginnings.
        begun: by run, the first five messages of all its answers.
        moved_before: what moved the version before the store had it, where that is done.
        counted: answers, by how they came about.
    """

    rng: random.Random
    shared: Shared
    making: Making = field(default_factory=Making)
    to_one: float = 0.5
    to_first: float = 0.5
    delays: Delays = Delays()
    stood: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    acknowledged: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    claims: dict[str, tuple[frozenset[str], bool]] = field(default_factory=dict)
    asked: dict[str, Message] = field(default_factory=dict)
    before: dict[str, frozenset[str]] = field(default_factory=dict)
    claimed: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    unsure: set[str] = field(default_factory=set)
    begun: dict[str, Any] = field(default_factory=dict)
    unsettled: dict[str, Message] = field(default_factory=dict)
    moved_before: dict[str, Moved] = field(default_factory=dict)
    counted: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    replicas: list[Replica] = field(default_factory=list)

    async def start(self, tasks: TaskGroup, count: int) -> None:
        """Have so many replicas at work."""
        for _ in range(count):
            self.replicas.append(await self._started(tasks))

    async def kill_one(self, tasks: TaskGroup) -> None:
        """Kill a replica; another takes its place, and is handed what that one had not finished."""
        place = self.rng.randrange(len(self.replicas))
        self.replicas[place].kill()
        self.replicas[place] = await self._started(tasks)

    def ask(self, message: Message) -> None:
        """A request is sent: on a bus where everybody hears it, or to one who has charge of it."""
        self.asked.setdefault(message.id, message)
        self.before.setdefault(message.run_id, frozenset(self.acknowledged[message.owner_key]))
        shared = self.rng.random() < self.to_one
        delivery = Delivery(Topics.CONTEXT_BUILD_REQUEST, encode(message), entry="1-0" if shared else "", shared=shared)
        for replica in self._hearing(shared=shared):
            replica.requests.offer(delivery)

    def say(self, message: Message) -> None:
        """A result is published, and kept by the bus until somebody has settled it."""
        self.unsettled[message.id] = message

        def settled() -> None:
            self.unsettled.pop(message.id, None)
            self.acknowledged[message.owner_key].add(message.id)

        for replica in self._hearing(shared=self.rng.random() < self.to_one):
            replica.persistence.offer(Topics.LLM_RESULTS, message, 100, settled)

    def hand_out_again(self) -> None:
        """What nobody has finished comes again."""
        for message in list(self.unsettled.values()):
            self.say(message)
        for message in list(self.asked.values()):
            if message.id not in self.answered:
                self.ask(message)

    def claim(self, claim: Acquired, stood: frozenset[str], version: str) -> None:
        """A request was claimed, when so many rows had moved the version, by who knew this one."""
        run_id = self.asked[claim.key].run_id
        warm = claim.standing is not None and claim.standing.version == version
        # A run that is begun once more is shown what was there when its input was stored. And what was read while the
        # request was being claimed may lack what came meanwhile, but is never kept then.
        fresh = warm and run_id not in self.claimed
        self.claims[claim.token] = stood | self.before[run_id] if fresh else self.before[run_id], warm
        self.claimed.add(run_id)

    def judge(self, claim: Acquired, answer: bytes, ending: Ending) -> None:
        """A request has its answer."""
        try:
            self._judge(claim, answer, ending)
        except Exception as error:  # noqa: BLE001  # whoever is judged catches what is raised here
            self.faults.append(f"not judged: {error!r}")

    def _judge(self, claim: Acquired, answer: bytes, ending: Ending) -> None:
        """Only the first counts."""
        if claim.key in self.answered:
            return
        self.answered.add(claim.key)
        message = self.asked[claim.key]
        if ending.row:
            self.stood[message.owner_key].add(json.loads(ending.row.content)["id"])
            self.acknowledged[message.owner_key].add(json.loads(ending.row.content)["id"])
        content = json.loads(answer)["content"]
        if content["status"] != "success":
            self.counted[content["error"]["code"]] += 1
        elif ending.kept:
            self._judge_first(message, claim, content)
        elif message.run_id in self.unsure:
            self.counted["unsure"] += 1
        elif content["degraded"] or INCOMPLETE in content["context"]["notes"]:
            self.counted["degraded"] += 1
        elif message.run_id in self.begun:
            self.counted["continued"] += 1
            self._expect(content["messages"][:5] == self.begun[message.run_id], f"{claim.key} begins otherwise")
        else:
            self.counted["kept elsewhere"] += 1

    def _judge_first(self, message: Message, claim: Acquired, content: Any) -> None:
        expected, warm = self.claims[claim.token]
        self.counted["warm" if warm else "cold"] += 1
        if message.run_id not in self.unsure:
            self.begun[message.run_id] = content["messages"][:5]
        memory = next((m["content"] for m in content["messages"] if m["content"].startswith("[SHARED_MEMORY")), "")
        shown = _SAID.findall(memory)
        about = f"{claim.key} ({'warm' if warm else 'cold'})"
        self._expect(len(shown) == len({*shown}), f"{about} shows a row twice: {sorted(shown)}")
        others = [row for row in shown if f"_of_{message.owner_key}_" not in row]
        self._expect(not others, f"{about} shows rows of others: {others}")
        own = {row for row in expected if row.endswith(f"_of_{message.run_id}")}
        missing = expected - {*shown} - own - self.lost
        self._expect(not missing, f"{about} lacks {sorted(missing)}")
        runs = [int(row.rpartition("_")[2]) for row in shown if row.startswith("human")]
        self._expect(runs == sorted(runs), f"{about} is out of order: {runs}")

    def _expect(self, holds: bool, otherwise: str) -> None:  # as `assert` takes it
        if not holds:
            self.faults.append(otherwise)

    def _hearing(self, *, shared: bool) -> list[Replica]:
        return (
            [self.replicas[0] if self.rng.random() < self.to_first else self.rng.choice(self.replicas)]
            if shared
            else self.replicas
        )

    async def _started(self, tasks: TaskGroup) -> Replica:
        replica = Replica(self)
        await tasks.start(replica.live)
        return replica


def run_message(owner: str, number: int, request: int = 0) -> Message:
    """A request for the first context of a run."""
    run_id = f"{owner}_{number}"
    asked_at = (_FIRST_RUN + timedelta(minutes=number)).isoformat()
    human = {"id": f"human_of_{run_id}", "run_id": run_id, "owner_key": owner, "role": "HUMAN", "timestamp": asked_at}
    content = {
        "id": run_id,
        "owner_key": owner,
        "history": [{**human, "content": f"human_of_{run_id}"}],
        # Without its profile a context cannot be built of what is at hand.
        "metadata": {"user_profile": {"public_key": owner}} if number % 3 else {},
    }
    return Message(id=f"msg_{request}_of_{run_id}", run_id=run_id, owner_key=owner, role=Role.HUMAN, content=content)


def result_message(run_id: str, number: int) -> Message:
    """What a model answers in a run."""
    said = f"result_{number}_of_{run_id}"
    return Message(id=said, run_id=run_id, owner_key=run_id.partition("_")[0], role=Role.AI, content={"content": said})
