"""What happens to the services of a soak, in an order that its seed gives. The elder replica is never restarted."""

import random
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio

from tests.nexus.faults.fleet import Fleet, Replica
from tests.nexus.support.proxy import Proxy

# Of requests between two of them; a short soak has each of them once all the same.
_EVERY: Final = 4_000
_WAITED_S: Final = 0.1
_LINES_S: Final = 6.0


class Disturbances:
    """One after the other, each when so many requests were answered.

    Args:
        fleet: with two replicas, of which the second one is killed, stopped and put behind bad lines.
        lines: of Redis and MongoDB the server, the proxy before it, and how it is reached through that.
        seed: of their order.
        requests: of the whole soak.

    Attributes:
        done: how often there was each.
        last: what there was last.
        over: set, when there are to be no more; `finished` follows.
    """

    def __init__(self, fleet: Fleet, lines: Mapping[str, tuple[Any, Proxy, str]], seed: int, requests: int) -> None:
        self.done = Counter[str]()
        self.last = ""
        self.over, self.finished = anyio.Event(), anyio.Event()
        self._fleet = fleet
        self._redis, self._redis_proxy, redis_url = lines["redis"]
        self._mongo, self._mongo_proxy, mongo_uri = lines["mongo"]
        self._through = {"NEXUS_BUS__URL": redis_url, "NEXUS_DATABASE__URI": mongo_uri}
        self._kinds: dict[str, Callable[[random.Random], Any]] = {
            "replica killed": self._kill_replica,
            "replica stopped": self._stop_replica,
            "Redis killed": self._kill_redis,
            "MongoDB killed": self._kill_mongo,
            "slow lines": self._slow_lines,
            "cut lines": self._cut_lines,
        }
        self._seed = seed
        self._every = max(1, min(_EVERY, requests // (len(self._kinds) + 2)))

    async def run(self, answered: Callable[[], int]) -> None:
        """Disturb until `over`. Run in a task of its own; one that has begun is brought to its end."""
        number = answered() // self._every
        while not self.over.is_set():
            if answered() >= (number + 1) * self._every:
                await self._disturb(number)
                number += 1
            with anyio.move_on_after(_WAITED_S):
                await self.over.wait()
        self.finished.set()

    async def _disturb(self, number: int) -> None:
        cycle, place = divmod(number, len(self._kinds))
        kinds = [*self._kinds]
        random.Random(f"{self._seed}/{cycle}").shuffle(kinds)  # noqa: S311  # no secret
        self.last = f"(now: {kinds[place]})"
        await self._kinds[kinds[place]](random.Random(f"{self._seed}/{number}"))  # noqa: S311
        self.last = f"({kinds[place]})"
        self.done[kinds[place]] += 1

    async def _kill_replica(self, _: random.Random) -> None:
        await self._younger.end(signal.SIGKILL)
        await self._fleet.start()

    async def _stop_replica(self, _: random.Random) -> None:
        await self._replace()

    async def _replace(self, variables: Mapping[str, str] | None = None) -> None:
        """Another replica in the place of the younger one, as an operator would."""
        old = self._younger
        await self._fleet.start(variables=variables)
        if code := await old.end():
            self._fleet.ended.append(f"{old.name}, which was stopped, with {code}")

    async def _kill_redis(self, chosen: random.Random) -> None:
        await self._redis.kill()
        await anyio.sleep(chosen.uniform(0, 1))
        await self._redis.start()

    async def _kill_mongo(self, chosen: random.Random) -> None:
        await self._mongo.kill()
        await anyio.sleep(chosen.uniform(0, 2))
        await self._mongo.start()

    async def _slow_lines(self, chosen: random.Random) -> None:
        await self._replace(self._through)
        self._redis_proxy.latency_s, self._mongo_proxy.latency_s = chosen.uniform(0, 0.1), chosen.uniform(0, 0.1)
        await anyio.sleep(_LINES_S)
        await self._straighten()

    async def _cut_lines(self, chosen: random.Random) -> None:
        await self._replace(self._through)
        for _ in range(8):
            chosen.choice([self._redis_proxy, self._mongo_proxy]).reset(chosen.choice([1, None]))
            await anyio.sleep(chosen.uniform(0.1, 0.6))
        chosen.choice([self._redis_proxy, self._mongo_proxy]).vanish()
        await anyio.sleep(_LINES_S / 2)
        await self._straighten()

    async def _straighten(self) -> None:
        for proxy in (self._redis_proxy, self._mongo_proxy):
            proxy.behave()
            # Those that were stalled stay so.
            proxy.reset()
        await self._replace()

    @property
    def _younger(self) -> Replica:
        return self._fleet.running[-1]
