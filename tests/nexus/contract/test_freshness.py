"""No context is older than the version of its owner that it claims, whatever happens to whom (CONTRACT §1.5, §4.3).

Several replicas build and record at random, over wires that take a random time each way, and are killed at any await;
tails are let go, and Redis loses keys. On the ledger in memory all of this is in virtual time, so that minutes pass in
no time; and on real servers for a moment.

What is expected of each first context of a run, when its request was claimed:

- every row that has moved the version by then is in it, and what was acknowledged before the request was sent;
- no row is there twice, none of another owner, and all are in order;
- every answer of a run begins with the same five messages.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import anyio
import pytest
from anyio.abc import TaskGroup
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from nexus.adapters.redis_journal import JournalKeys, RedisJournal, short
from nexus.adapters.redis_pipeline import pipelined

from nexus.adapters.memory_bus import MemoryBus, MemoryLedger
from nexus.adapters.mongo import open_mongo
from nexus.adapters.redis_client import open_redis
from nexus.adapters.redis_ledger import RedisLedger
from nexus.adapters.redis_pubsub import RedisPubSubBus
from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.ports import Acquired, Answering, Asking, Claim, Concluded, Look, Moved, Row
from nexus.services.journaling import journal_row, read_journal
from nexus.services.tails import Tails
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.replicas import (
    FAST_S,
    SLOW_S,
    Delays,
    Making,
    Scene,
    Shared,
    SlowJournal,
    SlowLedger,
    SlowStore,
    result_message,
    run_message,
)
from tests.nexus.support.virtual_time import VirtualLoop

_REPLICAS: Final = 3
_OWNERS: Final = ("ada", "bob")
_STEPS: Final = 25
# Longer than anything takes that is left over: a lease, what is looked for of the killed.
_QUIET_S: Final = 30.0
_WEIGHTS: Final = {
    "ask": 30,
    "say": 20,
    "ask_twice": 3,
    "resend": 3,
    "kill": 1.5,
    "evict": 1.5,
    "lose_versions": 1,
    "lose_all": 0.3,
    "rest": 1,
}
_APART_S: Final = (0.0, 0.001, 0.004, 0.01, 0.02, 0.03)
# Longer than a lease, than rows are forsaken, than tails are kept.
_RESTS_S: Final = (2.0, 20.0, 61.0)
_PAUSES_S: Final = (0.0, 0.05, 0.2, 1.0)
# Which scene it is that fails is enough: no other seed is simpler.
_PHASES: Final = (Phase.explicit, Phase.reuse, Phase.generate)
_SLOW: Final = (HealthCheck.too_slow,)


def shared_in_memory() -> Shared:
    """One ledger and one store within this process."""
    bus = MemoryBus()
    ledger = MemoryLedger(bus, clock=asyncio.get_running_loop().time)
    journal = ledger.journal

    async def lose_versions() -> None:
        for owner in journal._owners.values():
            owner.version, owner.moved_by = journal._next(), ""

    async def lose_all() -> None:
        journal._owners.clear()
        ledger._state.requests.clear()
        ledger._state.kept.clear()

    async def left() -> int:
        return sum(len(owner.rows) for owner in journal._owners.values())

    return Shared(bus, ledger, journal, lose_versions, lose_all, left, fake=FakeStore())


class Play:
    """What happens in a scene, at random."""

    def __init__(self, scene: Scene, tasks: TaskGroup, rests_s: Sequence[float]) -> None:
        self.rests_s = rests_s
        self.scene, self.rng, self.tasks = scene, scene.rng, tasks
        self.runs = dict.fromkeys(_OWNERS, 0)
        self.numbers = 0
        self.owner = _OWNERS[0]

    async def step(self) -> None:
        """A few things closely on each other, most of them of one owner; and a pause."""
        self.owner = self.rng.choice(_OWNERS)
        for _ in range(self.rng.randint(1, 4)):
            self.numbers += 1
            (happens,) = self.rng.choices([*_WEIGHTS], [*_WEIGHTS.values()])
            await getattr(self, happens)()
            await anyio.sleep(self.rng.choice(_APART_S))
        await anyio.sleep(self.rng.choice(_PAUSES_S))

    async def ask(self) -> None:
        """A new run asks for its first context."""
        self.runs[self.owner] += 1
        self.scene.ask(run_message(self.owner, self.runs[self.owner]))

    async def ask_twice(self) -> None:
        """A run asks for another first context."""
        run = self.rng.randint(max(self.runs[self.owner] - 2, 1), max(self.runs[self.owner], 1))
        self.runs[self.owner] = max(self.runs[self.owner], run)
        self.scene.ask(run_message(self.owner, run, self.numbers))

    async def resend(self) -> None:
        """A request is sent again."""
        if self.scene.asked:
            self.scene.ask(self.rng.choice([*self.scene.asked.values()]))

    async def say(self) -> None:
        """A model answers in one of the latest runs."""
        if last := self.runs[self.owner]:
            self.scene.say(result_message(f"{self.owner}_{self.rng.randint(max(last - 3, 1), last)}", self.numbers))

    async def kill(self) -> None:
        """A replica dies, and the bus hands out again what nobody has finished."""
        await self.scene.kill_one(self.tasks)
        self.scene.hand_out_again()

    async def evict(self) -> None:
        """A replica needs its memory for others."""
        self.rng.choice(self.scene.replicas).tails.forget(self.owner)

    async def lose_versions(self) -> None:
        """Redis has forgotten the versions."""
        await self.scene.shared.lose_versions()

    async def lose_all(self) -> None:
        """Redis is emptied: what the store does not have of the journal is nowhere."""
        scene = self.scene
        for owner in _OWNERS:
            scene.lost |= scene.stood[owner] - {*await scene.shared.stored(owner)}
        scene.unsure |= {message.run_id for message in scene.asked.values()}
        scene.answered.clear()
        await scene.shared.lose_all()

    async def rest(self) -> None:
        """Nothing happens for as long as rows are forsaken, or tails are kept."""
        await anyio.sleep(self.rng.choice(self.rests_s))


async def play(scene: Scene, steps: int, *, patiently: bool = True) -> None:
    """So many things happen, and then nothing until everything is done, as far as there is time for it."""
    quiet_s = _QUIET_S if patiently else 0.5
    async with anyio.create_task_group() as tasks:
        await scene.start(tasks, scene.rng.randint(2, _REPLICAS))
        acts = Play(scene, tasks, _RESTS_S if patiently else [0.1])
        for _ in range(steps):
            await acts.step()
        for _ in range(2):
            scene.hand_out_again()
            await anyio.sleep(quiet_s)
        for acts.owner in _OWNERS:
            await acts.ask()
        await anyio.sleep(quiet_s)
        if patiently:
            await check_the_end(scene)
        for replica in scene.replicas:
            replica.kill()


async def check_the_end(scene: Scene) -> None:
    """Everything that was acknowledged is in the store, once, and nothing is left in the journal."""
    for owner in _OWNERS:
        stored = Counter(await scene.shared.stored(owner))
        if twice := [row for row, count in stored.items() if count > 1]:
            scene.faults.append(f"stored twice: {twice}")
        if missing := scene.acknowledged[owner] - {*stored} - scene.lost:
            scene.faults.append(f"never stored: {sorted(missing)}")
    if left := await scene.shared.left():
        scene.faults.append(f"left in the journal: {left}")
    if unanswered := {*scene.asked} - scene.answered:
        scene.faults.append(f"never answered: {sorted(unanswered)}")


def played(seed: int, making: Making | None = None) -> Scene:
    """A scene that has been played in virtual time."""

    async def run() -> Scene:
        rng = random.Random(seed)  # noqa: S311  # scenes are to be the same again
        scene = Scene(
            rng,
            shared_in_memory(),
            making or Making(),
            to_one=rng.choice((0.0, 0.5, 1.0)),
            to_first=rng.choice((0.0, 0.8)),
            delays=Delays.random(rng),
        )
        await play(scene, _STEPS)
        return scene

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


@pytest.mark.heavy
def test_in_virtual_time() -> None:
    """Nothing is missing from any context, and what was kept is used."""
    counted: Counter[str] = Counter()

    @settings(max_examples=30, phases=_PHASES, suppress_health_check=_SLOW)
    @given(st.integers(0, 2**32))
    def check(seed: int) -> None:
        scene = played(seed)
        assert scene.faults == []
        counted.update(scene.counted)

    check()
    assert counted["warm"] > counted.total() / 50
    assert counted["at once"] > counted.total() / 50
    assert counted["read at once"] > counted.total() / 50
    assert counted["continued"] > 0


async def test_on_real_servers(redis_url: str, channel_prefix: str, mongo_uri: str, database_name: str) -> None:
    """Nor on Redis and MongoDB, as far as a moment shows. What is forsaken is not waited for."""
    async with (
        open_redis(redis_url) as client,
        open_mongo(mongo_uri, database_name) as store,
        pipelined(client) as runner,
    ):
        await store.prepare()

        keys = JournalKeys(channel_prefix)
        versions = [keys.version(short(owner)) for owner in _OWNERS]
        others = [key(short(owner)) for owner in _OWNERS for key in (keys.last, keys.journal)]

        bus = RedisPubSubBus(client, prefix=channel_prefix)
        shared = Shared(
            bus,
            RedisLedger(client, prefix=channel_prefix, runner=runner),
            RedisJournal(runner, prefix=channel_prefix),
            partial(client.delete, *versions),
            partial(client.delete, *versions, *others, keys.unwritten),
            partial(client.zcard, keys.unwritten),
            real=store,
        )
        rng = random.Random(1)  # noqa: S311  # as far as servers allow it
        scene = Scene(rng, shared, delays=Delays(FAST_S, SLOW_S, FAST_S, FAST_S))
        await play(scene, 12, patiently=False)
    assert scene.faults == []
    assert scene.counted["warm"] + scene.counted["cold"] > 0


class IgnoringLedger(SlowLedger):
    """Whatever is kept is good."""

    async def begin(self, *arguments: Any) -> Claim:
        """Say that nothing has moved."""
        claim = await super().begin(*arguments)
        look = arguments[-1]
        if isinstance(claim, Acquired) and claim.standing and look.version:
            return replace(claim, standing=replace(claim.standing, version=look.version))
        return claim


class ForgetfulLedger(SlowLedger):
    """What the journal holds is told to nobody."""

    async def begin(self, *arguments: Any) -> Claim:
        """Leave it out."""
        claim = await super().begin(*arguments)
        if isinstance(claim, Acquired) and claim.standing:
            return replace(claim, standing=replace(claim.standing, rows=()))
        return claim


class RestlessLedger(SlowLedger):
    """What was read ahead is always as good as what is read afterwards."""

    async def begin(self, *arguments: Any) -> Claim:
        """Say that nothing has moved for long."""
        claim = await super().begin(*arguments)
        if isinstance(claim, Acquired) and claim.standing:
            return replace(claim, standing=replace(claim.standing, quiet_us=10**9))
        return claim


class TrustingLedger(SlowLedger):
    """What was built before the request was claimed is published, whatever the version is."""

    async def begin_and_conclude(self, asking: Asking, answering: Answering) -> Claim | Concluded:
        """Ask with the version that stands."""
        assert asking.look
        standing = await self.scene.shared.journal.standing(asking.look)
        asking = replace(asking, look=replace(asking.look, version=standing.version))
        return await super().begin_and_conclude(asking, answering)


class CredulousLedger(SlowLedger):
    """What was read from the store counts as read just now."""

    async def begin_and_conclude(self, asking: Asking, answering: Answering) -> Claim | Concluded:
        """Ask as if it were."""
        read = answering.read and replace(answering.read, began_at=anyio.current_time() + 1_000)
        return await super().begin_and_conclude(asking, replace(answering, read=read))


class PatientLedger(SlowLedger):
    """Rows count as being in the journal for as long as anybody reads."""

    async def begin_and_conclude(self, asking: Asking, answering: Answering) -> Claim | Concluded:
        """Ask as if they were."""
        read = answering.read and replace(answering.read, lasts_us=10**12)
        return await super().begin_and_conclude(asking, replace(answering, read=read))


class BlindLedger(SlowLedger):
    """What others have put into the journal counts as read."""

    async def begin_and_conclude(self, asking: Asking, answering: Answering) -> Claim | Concluded:
        """Ask as if it were."""
        assert asking.look
        if answering.read:
            standing = await self.scene.shared.journal.standing(Look(asking.look.owner_key))
            rows = read_journal(standing.rows or ())
            journaled = tuple(journal_row(each).id for each in rows)
            answering = replace(answering, read=replace(answering.read, journaled=journaled))
        return await super().begin_and_conclude(asking, answering)


class HastyJournal(SlowJournal):
    """The version moves before the store has the row, and not after it."""

    async def moved(self, owner_key: str, row_id: str) -> Moved:
        """Say what the move was, and do nothing."""
        self.scene.stood[owner_key].add(row_id)
        return self.scene.moved_before.get(row_id, Moved())


class HastyStore(SlowStore):
    """With `HastyJournal`."""

    async def insert_messages(self, rows: Sequence[Row]) -> list[bool | StoreRejectedError | StoreUnavailableError]:
        """Move, and record."""
        for row in rows:
            if row["role"] != "HUMAN":
                moved = await self.scene.shared.journal.moved(row["owner_key"], row["id"])
                self.scene.moved_before[row["id"]] = moved
        return await super().insert_messages(rows)


class ClearingStore(SlowStore):
    """What the store has is taken out of the journal at once."""

    async def insert_message(self, row: Row) -> bool:
        """Record, and take out."""
        new = await super().insert_message(row)
        await self.scene.shared.journal.written([journal_row(row)])
        return new


class LateJournal(SlowJournal):
    """A move that is repeated says what moved the version since."""

    async def moved(self, owner_key: str, row_id: str) -> Moved:
        """Say what the version is now."""
        moved = await super().moved(owner_key, row_id)
        return replace(moved, after=(await self.shared.standing(Look(owner_key))).version)


class RepeatingTails(Tails):
    """What moves the version is taken for new."""

    def moved(self, owner_key: str, moved: Moved, row: Row | None) -> None:
        """Add it under another id, as one that has none would be."""
        super().moved(owner_key, moved, row and {**row, "id": f"{row['id']} again"})


# Of each fault, scenes in which it shows.
_SHOWS: Final = {
    "ignoring": ((0, 1, 3), Making(ledger=IgnoringLedger)),
    "forgetful": ((0, 1, 2), Making(ledger=ForgetfulLedger)),
    "restless": ((204, 333, 774), Making(ledger=RestlessLedger)),
    "trusting": ((5, 6, 7), Making(ledger=TrustingLedger)),
    "credulous": ((10, 11, 16), Making(ledger=CredulousLedger)),
    "patient": ((16, 53, 58), Making(ledger=PatientLedger)),
    "blind": ((7, 9, 13), Making(ledger=BlindLedger)),
    "hasty": ((84, 94, 122), Making(journal=HastyJournal, store=HastyStore)),
    "clearing": ((24, 58, 97), Making(store=ClearingStore)),
    "late": ((7, 99, 100), Making(journal=LateJournal)),
    "repeating": ((12, 13, 14), Making(tails=RepeatingTails)),
}


@pytest.mark.parametrize(("seeds", "making"), _SHOWS.values(), ids=_SHOWS)
def test_it_finds_a_fault(seeds: tuple[int, ...], making: Making) -> None:
    """A judge who finds nothing must not be one who cannot find anything."""
    assert any(played(seed, making).faults for seed in seeds)
