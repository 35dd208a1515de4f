"""A long session on services that are killed meanwhile: nothing is lost, no context is too long (contract §7)."""

import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import anyio
import pytest
from pymongo import MongoClient
from pymongo.database import Database

from tests.nexus.e2e.harness import Document, Environment, Service, serving
from tests.nexus.e2e.long_judge import Account, Judge, account
from tests.nexus.e2e.long_player import Player, Said, on_bus
from tests.nexus.support.long_session import Run, session
from tests.nexus.support.waiting import until

SESSION: Final = "long"
# The identity alone would be half of a small window.
BRIEF: Final = {"kind": "main", "system_prompt": "You watch a river. Keep your memory in order."}


RUNS, WINDOW = 36, 8_000


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
    database: Database[Document]

    async def play(self, mode: str, sign: signal.Signals, *moments: tuple[int, int | str]) -> Account:
        """Play a session and judge each of its contexts; at these moments the service is ended with that signal.

        A moment is a run, and which of its requests is on its way, or the name of the tool of Nexus that is called.
        """
        *past, last = session(RUNS + 1, longest=1_000, most_of_a_run=1_600)
        left, said = set(moments), Said()
        judge = Judge(WINDOW, said)
        environment = self.environment | {"NEXUS_BUS__MODE": mode, "NEXUS_BUS__LEASE_MS": "1000"}

        async def meanwhile(run: Run, what: int | str) -> None:
            if (run.number, what) in left:
                left.remove((run.number, what))
                if mode == "pubsub":
                    # A bus that keeps nothing keeps no result that was heard and not yet written.
                    await self.recorded(player)
                await keeper.replace(sign)

        async with kept(environment) as keeper, on_bus(environment) as ends:
            metadata = {"context_window": WINDOW, "agent": BRIEF}
            player = Player(*ends, session=SESSION, metadata=metadata, said=said, watch=judge, meanwhile=meanwhile)
            for run in past:
                await player.play(run)
            content = await player.begin(last)
            await self.recorded(player)
        assert not left
        found = account(self.database, SESSION, content)
        assert found.messages == len(said.messages)
        return found

    async def recorded(self, player: Player) -> None:
        """Wait until all that was said is stored."""
        wanted = player.said.messages[:]

        async def are() -> bool:
            return self.database["messages"].count_documents({"id": {"$in": wanted}}) == len(wanted)

        await until(are)


@pytest.fixture
def scene(environment: Environment, mongo_janitor: MongoClient[Document], database_name: str) -> Scene:
    """A place of the test's own."""
    return Scene(environment, mongo_janitor[database_name])


@pytest.mark.heavy
@pytest.mark.once
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("mode", "sign"), [("pubsub", signal.SIGTERM), ("streams", signal.SIGKILL)])
async def test_ended_while_it_compacts(mode: str, sign: signal.Signals, scene: Scene) -> None:
    """While a request is under way, and while the model has the history compacted: no message is lost or twice."""
    found = await scene.play(mode, sign, (29, "compact_history"), (31, 0), (33, 1))
    assert (found.lost, found.twice) == (0, 0)
    assert found.in_context + found.summarised == found.messages > 5 * RUNS
    assert found.summarised > found.in_context > 0
