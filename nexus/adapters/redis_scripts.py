"""Where scripts and single commands run: on connections that all callers share, or on those of a client's pool."""

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from redis.asyncio import Redis

from nexus.adapters.redis.errors import repeated
from nexus.adapters.redis_multiplexed import Argument, Script


class Runner(Protocol):
    """Runs scripts and commands. Errors are redis-py's."""

    async def run(self, script: Script, keys: Sequence[Argument] = (), args: Sequence[Argument] = ()) -> Any:
        """What the script returns."""
        ...

    async def execute(self, *command: Argument) -> Any:
        """What Redis replies to a command; see `Pipelined`."""
        ...


class Repeated:
    """A `Runner` that tries what has failed again, for scripts and commands whose repetition does no harm.

    Its errors are `BusUnavailableError`, when they have failed to the end or were refused.

    Args:
        runner: what they run on.
        for_s: for how many seconds each is tried.
    """

    def __init__(self, runner: Runner, for_s: float) -> None:
        self._runner = runner
        self._for_s = for_s

    def run(
        self, script: Script, keys: Sequence[Argument] = (), args: Sequence[Argument] = ()
    ) -> Coroutine[Any, Any, Any]:
        """What the script returns."""
        return repeated(self._runner.run, script, keys, args, for_s=self._for_s)

    def run_with_others(
        self, script: Script, keys: Sequence[Argument], args: Sequence[Argument], later: Sequence[Argument]
    ) -> Coroutine[Any, Any, Any]:
        """What the script returns; all attempts but the first are with the arguments `later`."""
        first = iter((args,))
        return repeated(lambda: self._runner.run(script, keys, next(first, later)), for_s=self._for_s)

    def execute(self, *command: Argument) -> Coroutine[Any, Any, Any]:
        """What Redis replies to a command."""
        return repeated(self._runner.execute, *command, for_s=self._for_s)


class OnClient:
    """A `Runner` on a client, one connection a call: for a cluster, and where nothing else is open."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._registered: dict[str, Any] = {}

    async def run(self, script: Script, keys: Sequence[Argument] = (), args: Sequence[Argument] = ()) -> Any:
        """What the script returns."""
        if script.sha not in self._registered:
            self._registered[script.sha] = self._client.register_script(script.text)
        return await self._registered[script.sha](keys=list(keys), args=list(args))

    async def execute(self, *command: Argument) -> Any:
        """What Redis replies to a command, as redis-py converts it; to a SET with GET, what was there."""
        reply: Any = await self._client.execute_command(*command, get="GET" in command)  # type: ignore[no-untyped-call]  # redis-py has no types here
        return reply
