"""A long session on services that are killed meanwhile: nothing is lost, no context is too long (CONTRACT §7)."""

import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import anyio
import pytest
from pymongo import MongoClient
from pymongo.database import Database

from tests.nexus.e2e.harness import Service, serving
from tests.nexus.e2e.long_judge import Account, Judge, account
from tests.nexus.e2e.long_player import Mode, Player, Said, on_bus
from tests.nexus.support.long_session import Run, session
from tests.nexus.support.waiting import until

Document = dict[str, Any]
Environment = dict[str, str]

SESSION: Final = "long"
# The identity alone would be half of a small window.
BRIEF: Final = {"kind": "main", "system_prompt": "You watch a river. Keep your memory in order."}


@dataclass(frozen=True)
class Size:
    """Of a session: its runs, the window, and how many characters a tool's result and those of a run are at most."""

    runs: int
    window: int
    longest: int
    most_of_a_run: int
    metadata: Mapping[str, Any]

    def script(self) -> list[Run]:
        """What is played, and a run more."""
        return [*session(self.runs + 1, longest=self.longest, most_of_a_run=self.most_of_a_run)]


# The packaged MongoDB takes some 20 ms for what a real one does in one; and CI has 20 minutes for everything.
RUNS: Final = 300 if os.environ.get("NEXUS_TEST_MONGO_URI") and not os.environ.get("CI") else 60
LONG: Final = Size(RUNS, 32_000, 6_000, 12_000, {})
SHORT: Final = Size(60, 8_000, 1_000, 1_600, {"agent": BRIEF})


class Keeper:
    """Keeps a service running: when one has ended, another is started."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._services: list[Service] = []
        self._started = anyio.Event()

    async def run(self) -> None:
        """Run services, one after the other."""
        while True:
            async with serving(self._environment) as service:
                self._services.append(service)
                self._started.set()
                await service.process.wait()

    async def replace(self, sign: signal.Signals) -> None:
        """End the service with that signal, and wait for the next."""
        self._started = anyio.Event()
        await self._services[-1].stop(sign)
        await self._started.wait()

    async def started(self) -> None:
        """Wait for the first one."""
        await self._started.wait()


@asynccontextmanager
async def kept(environment: Mapping[str, str]) -> AsyncIterator[Keeper]:
    """A service that comes back."""
    async with anyio.create_task_group() as tasks:
        keeper = Keeper(environment)
        tasks.start_soon(keeper.run)
        await keeper.started()
        yield keeper
        tasks.cancel_scope.cancel()


@dataclass(frozen=True)
class Scene:
    """Where a session is played."""

    environment: Environment
    prefix: str
    database: Database[Document]

    async def play(self, mode: Mode, size: Size, sign: signal.Signals, *moments: tuple[int, int | str]) -> Account:
        """Play a session and judge each of its contexts; at these moments the service is ended with that signal.

        A moment is a run, and which of its requests is on its way, or the name of the tool of Nexus that is called.
        """
        *past, last = size.script()
        left, said = set(moments), Said()
        judge = Judge(size.window, said)
        environment = self.environment | {"NEXUS_BUS__MODE": mode, "NEXUS_BUS__LEASE_MS": "1000"}

        async def meanwhile(run: Run, what: int | str) -> None:
            if (run.number, what) in left:
                left.remove((run.number, what))
                if mode == "pubsub":
                    # A bus that keeps nothing keeps no result that was heard and not yet written.
                    await self.recorded(player)
                await keeper.replace(sign)

        async with kept(environment) as keeper, on_bus(environment["NEXUS_BUS__URL"], self.prefix, mode) as ends:
            metadata = {"context_window": size.window, **size.metadata}
            player = Player(*ends, session=SESSION, metadata=metadata, said=said, watch=judge, meanwhile=meanwhile)
            for run in past:
                await player.play(run)
            content = await player.begin(last)
            await self.recorded(player)
        assert not left
        found = account(self.database, SESSION, content)
        print(mode, sign.name, found, f"longest context {max(judge.tokens):,} tokens")  # noqa: T201  # shown with -s
        assert found.messages == len(said.messages)
        return found

    async def recorded(self, player: Player) -> None:
        """Wait until all that was said is stored."""
        wanted = player.said.messages[:]

        async def are() -> bool:
            return self.database["messages"].count_documents({"id": {"$in": wanted}}) == len(wanted)

        await until(are)


@pytest.fixture
def scene(
    environment: Environment,
    channel_prefix: str,
    mongo_janitor: MongoClient[Document],
    database_name: str,
) -> Scene:
    """A place of the test's own."""
    return Scene(environment, channel_prefix, mongo_janitor[database_name])


@pytest.mark.once
@pytest.mark.timeout(300)
async def test_three_hundred_runs(scene: Scene) -> None:
    """With tools, restarted in the middle of a run: every message is in the context, or under one summary."""
    found = await scene.play("pubsub", LONG, signal.SIGTERM, (RUNS // 2, 1))
    assert (found.lost, found.twice) == (0, 0)
    assert found.in_context + found.summarised == found.messages > 6 * RUNS
    assert found.summarised > found.in_context > 0


@pytest.mark.once
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["pubsub", "streams"])
async def test_killed_while_it_compacts(mode: Mode, scene: Scene) -> None:
    """SIGKILL while a request is under way, and while the model has the history compacted: nothing comes of it."""
    found = await scene.play(mode, SHORT, signal.SIGKILL, (29, "compact_history"), (35, 0), (41, 1))
    assert (found.lost, found.twice) == (0, 0)
    assert found.in_context + found.summarised == found.messages
    assert found.summarised > found.in_context > 0
