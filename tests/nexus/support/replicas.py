"""Replicas at work on one ledger, one outbox and one store, over slow wires, and a judge of their answers.

A replica is a whole process: it answers requests, records results and drains the outbox. Each operation takes a random
time on its way there and on its way back. A killed replica is never heard of again: what is on its way there is lost.
"""

import json
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import anyio
from anyio.abc import TaskGroup

from nexus.adapters.in_memory import MemoryDeadLetters
from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import NoMetrics
from nexus.core.models import Message, Role, Topics
from nexus.core.ports import Acquired, Bus, Claim, Delivery, Outbox, OutboxRow, RequestLedger, Row, RunOrigin, Store
from nexus.core.wire import encode
from nexus.services.context.builder import ContextBuilder
from nexus.services.history.rows import llm_row
from nexus.services.persistence import PersistenceService
from nexus.services.requests.answerer import RequestService
from nexus.services.requests.claims import DeadLetterWriter
from nexus.services.requests.envelope import RequestSettings, read_incoming
from nexus.services.tools.registry import ToolRegistry
from tests.nexus.support.builder_settings import settings_with
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.tombstones import NO_TOMBSTONES

_Result = TypeVar("_Result")

# All rows are shown, so that a missing row is never missing by rule.
_MESSAGES: Final = 200
_FIRST_RUN: Final = datetime(2025, 12, 10, tzinfo=UTC)
# The content of every row is its id, which names its run and with it the owner.
_SAID: Final = re.compile(r"(?:human|result_\d+)_of_[a-z]+_\d+")
FAST_S: Final = (0.0, 0.0, 0.001, 0.004)
SLOW_S: Final = (0.0, 0.001, 0.01, 0.02, 0.03)
UNEVEN_S: Final = (0.0, 0.0, 0.0, 0.001, 0.004, 0.012, 0.02, 0.03, 0.06, 0.4)
_REPLY_LOST: Final = 0.05


@dataclass(frozen=True)
class Delays:
    """How long operations are on their way, each way: reads of the store, writes to it, and everything else."""

    reads_s: Sequence[float] = UNEVEN_S
    writes_s: Sequence[float] = UNEVEN_S
    others_s: Sequence[float] = UNEVEN_S

    @classmethod
    def random(cls, rng: random.Random) -> "Delays":
        """Any of them."""
        return cls(*(rng.choice((FAST_S, SLOW_S, UNEVEN_S)) for _ in range(3)))


class Wire:
    """A replica's connection to everything else."""

    def __init__(self, rng: random.Random, delays: Delays) -> None:
        self.rng = rng
        self.delays = delays
        self.cut = False

    async def cross(self, delays_s: Sequence[float] | None = None) -> None:
        """Take a while; never arrive if the replica is killed meanwhile."""
        await anyio.sleep(self.rng.choice(delays_s or self.delays.others_s))
        if self.cut:
            await anyio.sleep_forever()

    async def far(self, operation: Callable[[], Awaitable[_Result]]) -> _Result:
        """Do something at the other end."""
        await self.cross()
        result = await operation()
        await self.cross()
        return result


class SlowStore(FakeStore):
    """A store in memory that many share, far away, and at times away altogether."""

    def __init__(self, shared: "AwayStore", wire: Wire) -> None:
        super().__init__()
        self.messages, self.identities = shared.messages, shared.identities
        self.shared, self.wire = shared, wire

    async def insert_message(self, row: Row) -> bool:
        """Record a row."""
        return await self._far(lambda: self.shared.insert_message(row), self.wire.delays.writes_s)

    async def insert_messages(self, rows: Sequence[Row]) -> list[bool | StoreRejectedError | StoreUnavailableError]:
        """Record rows."""
        return await self._far(lambda: self.shared.insert_messages(rows), self.wire.delays.writes_s)

    async def newest_messages(self, owner_key: str, **page: Any) -> list[Row]:
        """Rows as of some moment between the question and the answer."""
        return await self._far(lambda: self.shared.newest_messages(owner_key, **page))

    async def messages_of_runs(self, owner_key: str, run_ids: Sequence[str], **page: Any) -> list[Row]:
        """Rows of runs."""
        return await self._far(lambda: self.shared.messages_of_runs(owner_key, run_ids, **page))

    async def results_of_runs(self, owner_key: str, run_ids: Sequence[str], **page: Any) -> list[Row]:
        """Rows of tools in runs."""
        return await self._far(lambda: self.shared.results_of_runs(owner_key, run_ids, **page))

    async def find_message(self, owner_key: str, message_id: str) -> Row | None:
        """A row."""
        return await self._far(lambda: self.shared.find_message(owner_key, message_id))

    async def find_origin(self, owner_key: str, run_id: str) -> RunOrigin | None:
        """The origin of a run."""
        return await self._far(lambda: self.shared.find_origin(owner_key, run_id))

    async def _far(
        self, operation: Callable[[], Awaitable[_Result]], delays_s: Sequence[float] | None = None
    ) -> _Result:
        delays_s = delays_s or self.wire.delays.reads_s
        await self.wire.cross(delays_s)
        await self.shared.may_answer()
        result = await operation()
        await self.wire.cross(delays_s)
        if self.shared.way == "deaf":
            raise StoreUnavailableError("the reply was lost")
        return result


class AwayStore(FakeStore):
    """The store that all share.

    Attributes:
        way: how it is away: it `refuses`, it `hangs`, or it does what it is asked to and is `deaf` to its client; `""`
            while it is there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.way = ""
        self._back = anyio.Event()

    async def away(self, way: str, seconds: float) -> None:
        """Be away for a while."""
        self.way, self._back = way, anyio.Event()
        await anyio.sleep(seconds)
        self.way = ""
        self._back.set()

    async def may_answer(self) -> None:
        """Return when it is there.

        Raises:
            StoreUnavailableError: it was away.
        """
        if self.way == "hangs":
            await self._back.wait()
        if self.way == "refuses":
            raise StoreUnavailableError("away")


class SlowLedger:
    """A ledger that many share, far away; its answers are judged."""

    def __init__(self, shared: RequestLedger, scene: "Scene", wire: Wire) -> None:
        self.shared, self.scene, self.wire = shared, scene, wire

    async def claim(self, key: str, fingerprint: str, lease_ms: int, waited_ms: int = 0) -> Claim:
        """Ask for a request."""
        return await self.wire.far(lambda: self.shared.claim(key, fingerprint, lease_ms, waited_ms))

    async def conclude(  # noqa: PLR0917  # the port's arguments
        self,
        claim: Acquired,
        topic: str,
        answer: bytes,
        keep_ms: int,
        delivery: Delivery | None = None,
        outbox: OutboxRow | None = None,
    ) -> int | None:
        """Finish a request; again, where a reply was lost."""
        await self.wire.cross()
        again = self.wire.rng.random() < _REPLY_LOST
        # A finished request is judged, even if the replica is killed in this step.
        with anyio.CancelScope(shield=True):
            heard = await self.shared.conclude(claim, topic, answer, keep_ms, delivery, outbox)
            if heard is not None:
                self.scene.judge(answer, outbox)
                if again:
                    heard = await self.shared.conclude(claim, topic, answer, keep_ms, delivery, outbox)
        await self.wire.cross()
        return heard

    async def renew(self, claim: Acquired, lease_ms: int) -> bool:
        """Hold a request."""
        return await self.wire.far(lambda: self.shared.renew(claim, lease_ms))

    async def release(self, claim: Acquired) -> None:
        """Give a request back."""
        await self.wire.far(lambda: self.shared.release(claim))

    async def keep_first(self, key: str, value: bytes, keep_ms: int) -> bytes:
        """Keep a value."""
        return await self.wire.far(lambda: self.shared.keep_first(key, value, keep_ms))

    async def kept(self, key: str) -> bytes | None:
        """What is kept."""
        return await self.wire.far(lambda: self.shared.kept(key))


class SlowOutbox:
    """An outbox that many share, far away."""

    def __init__(self, shared: Outbox, wire: Wire) -> None:
        self.shared, self.wire = shared, wire

    async def of_owner(self, owner_key: str) -> list[OutboxRow]:
        """The rows of one owner."""
        return await self.wire.far(lambda: self.shared.of_owner(owner_key))

    async def oldest(self, limit: int, offset: int = 0) -> list[OutboxRow]:
        """The rows that have waited longest."""
        return await self.wire.far(lambda: self.shared.oldest(limit, offset))

    async def count(self) -> int:
        """How many rows there are."""
        return await self.wire.far(self.shared.count)

    async def remove(self, rows: Sequence[OutboxRow]) -> None:
        """Take rows out."""
        await self.wire.far(lambda: self.shared.remove(rows))


@dataclass(frozen=True)
class Making:
    """The classes that replicas are made of."""

    ledger: Callable[..., SlowLedger] = SlowLedger
    outbox: Callable[..., SlowOutbox] = SlowOutbox
    store: Callable[..., SlowStore] = SlowStore
    persistence: Callable[..., PersistenceService] = PersistenceService


@dataclass
class Shared:
    """The servers that all replicas share.

    Attributes:
        away: the store, in memory.
        real: the store, where it is another.
    """

    bus: Bus
    ledger: RequestLedger
    outbox: Outbox
    away: AwayStore | None = None
    real: Store | None = None

    async def stored(self, owner_key: str) -> list[str]:
        """The ids of the rows of an owner."""
        store = self.away or self.real
        assert store
        return [row["id"] for row in await store.all_messages(owner_key, limit=10_000)]


class Replica:
    """One process of the service, in one of its lives."""

    def __init__(self, scene: "Scene") -> None:
        self.wire = Wire(scene.rng, scene.delays)
        shared, making = scene.shared, scene.making
        store: Any = making.store(shared.away, self.wire) if shared.away else shared.real
        ledger = making.ledger(shared.ledger, scene, self.wire)
        outbox = making.outbox(shared.outbox, self.wire)
        self.persistence = making.persistence(store, NO_TOMBSTONES, outbox=outbox)
        builder = ContextBuilder(self.persistence, store, ToolRegistry(), ledger, settings_with(history_size=_MESSAGES))
        letters = DeadLetterWriter(MemoryDeadLetters(), NoMetrics(), None)
        self.requests = RequestService(builder, shared.bus, ledger, letters, RequestSettings(max_in_flight=16))
        self._life = anyio.CancelScope()

    async def live(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Be at work until it is killed."""
        with self._life:
            async with self.persistence.running(), self.requests.running():
                task_status.started()
                await anyio.sleep_forever()

    def kill(self) -> None:
        """End it, in the middle of its work."""
        self.wire.cut = True
        self._life.cancel()


@dataclass
class Scene:
    """Replicas, the requests they were sent, and the rows that have to be in their answers.

    Attributes:
        to_one: which part of requests and results are handed to one replica, as in streams, and not to all.
        to_first: which part of those goes to the first, as where the others are busy.
        acknowledged: by owner, the rows that their senders know to be safe.
        asked: the requests.
        before: by run, the rows that were acknowledged when it was asked for first.
        begun: by run, the first five messages of all its answers.
        counted: answers, by how they came about.
    """

    rng: random.Random
    shared: Shared
    making: Making = field(default_factory=Making)
    to_one: float = 0.5
    to_first: float = 0.5
    delays: Delays = Delays()
    acknowledged: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    asked: dict[str, Message] = field(default_factory=dict)
    before: dict[str, frozenset[str]] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    begun: dict[str, Any] = field(default_factory=dict)
    unsettled: dict[str, Message] = field(default_factory=dict)
    counted: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    replicas: list[Replica] = field(default_factory=list)

    async def start(self, tasks: TaskGroup, count: int) -> None:
        """Have so many replicas at work."""
        for _ in range(count):
            self.replicas.append(await self._started(tasks))

    async def kill_one(self, tasks: TaskGroup) -> None:
        """Kill a replica; another takes its place."""
        place = self.rng.randrange(len(self.replicas))
        self.replicas[place].kill()
        self.replicas[place] = await self._started(tasks)

    def ask(self, message: Message) -> None:
        """A request is sent: on a bus where every replica hears it, or to one that has charge of it."""
        self.asked.setdefault(message.id, message)
        self.before.setdefault(message.run_id, frozenset(self.acknowledged[message.owner_key]))
        shared = self.rng.random() < self.to_one
        delivery = Delivery(Topics.CONTEXT_BUILD_REQUEST, encode(message), entry="1-0" if shared else "", shared=shared)
        for replica in self._hearing(shared=shared):
            replica.requests.offer(read_incoming(delivery, time.monotonic(), replica.requests.settings))

    def say(self, message: Message) -> None:
        """A result is published, and kept by the bus until a replica has settled it."""
        self.unsettled[message.id] = message

        def settled(_refused: str | None) -> None:
            self.unsettled.pop(message.id, None)
            self.acknowledged[message.owner_key].add(message.id)

        for replica in self._hearing(shared=self.rng.random() < self.to_one):
            replica.persistence.offer(llm_row(message, 100), 100, settled)

    def hand_out_again(self) -> None:
        """Unfinished requests and results come again."""
        for message in list(self.unsettled.values()):
            self.say(message)
        for message in list(self.asked.values()):
            if message.id not in self.answered:
                self.ask(message)

    def judge(self, answer: bytes, outbox: OutboxRow | None) -> None:
        """A request has its answer."""
        try:
            said = json.loads(answer)
            self._judge(said["metadata"]["request_id"], said["content"], outbox)
        except Exception as error:  # noqa: BLE001  # the replica that is judged would catch it
            self.faults.append(f"not judged: {error!r}")

    def _judge(self, request_id: str, content: Any, outbox: OutboxRow | None) -> None:
        # Only the first answer counts.
        if request_id in self.answered:
            return
        self.answered.add(request_id)
        self.counted["through the outbox"] += outbox is not None
        message = self.asked[request_id]
        if content["status"] != "success":
            self.counted[content["error"]["code"]] += 1
            return
        self.acknowledged[message.owner_key].add(f"human_of_{message.run_id}")
        if content["degraded"] or any(note.startswith("history: ") for note in content["context"]["notes"]):
            self.counted["degraded"] += 1
        elif message.run_id in self.begun:
            self.counted["continued"] += 1
            self._expect(content["messages"][:5] == self.begun[message.run_id], f"{request_id} begins otherwise")
        else:
            self.counted["first"] += 1
            self.begun[message.run_id] = content["messages"][:5]
            self._judge_memory(message, request_id, content)

    def _judge_memory(self, message: Message, key: str, content: Any) -> None:
        memory = next(m["content"] for m in content["messages"] if m["content"].startswith("[SHARED_MEMORY"))
        shown = _SAID.findall(memory)
        self._expect(len(shown) == len({*shown}), f"{key} shows a row twice: {sorted(shown)}")
        others = [row for row in shown if f"_of_{message.owner_key}_" not in row]
        self._expect(not others, f"{key} shows rows of others: {others}")
        expected = self.before[message.run_id]
        own = {row for row in expected if row.endswith(f"_of_{message.run_id}")}
        missing = expected - {*shown} - own
        self._expect(not missing, f"{key} lacks {sorted(missing)}")
        runs = [int(row.rpartition("_")[2]) for row in shown if row.startswith("human")]
        self._expect(runs == sorted(runs), f"{key} is out of order: {runs}")

    def _expect(self, holds: bool, otherwise: str) -> None:  # as `assert` takes it
        if not holds:
            self.faults.append(otherwise)

    def _hearing(self, *, shared: bool) -> list[Replica]:
        if not shared:
            return self.replicas
        return [self.replicas[0] if self.rng.random() < self.to_first else self.rng.choice(self.replicas)]

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
        "metadata": {"user_profile": {"public_key": owner}} if number % 3 else {},
    }
    return Message(id=f"msg_{request}_of_{run_id}", run_id=run_id, owner_key=owner, role=Role.HUMAN, content=content)


def result_message(run_id: str, number: int) -> Message:
    """A model's answer in a run."""
    said = f"result_{number}_of_{run_id}"
    return Message(id=said, run_id=run_id, owner_key=run_id.partition("_")[0], role=Role.AI, content={"content": said})
