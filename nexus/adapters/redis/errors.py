"""Errors of redis-py at the edge: their translation, and which operations are repeated after one."""

import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar, TypeVarTuple

import anyio
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from nexus.core.errors import BusRefusedError, BusUnavailableError

_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5


@contextmanager
def translated() -> Iterator[None]:
    """Turn errors of Redis and of the socket into `BusUnavailableError`, whose text names no host."""
    try:
        yield
    except (RedisError, OSError) as error:
        raise _translation(error) from error


def _translation(error: RedisError | OSError) -> BusUnavailableError:
    if "WRONGTYPE" in str(error):
        return BusRefusedError("a key of that name is of another type")
    return BusUnavailableError(type(error).__name__)


async def repeated(
    operation: Callable[[*_Arguments], Awaitable[_Result]], *arguments: *_Arguments, for_s: float
) -> _Result:
    """Call `operation`, whose repetition does no harm, again after errors until `for_s` seconds have passed.

    Raises:
        BusUnavailableError: every attempt failed, or Redis refused one.
    """
    end = time.monotonic() + for_s
    pause = _FIRST_PAUSE
    while True:
        try:
            return await operation(*arguments)
        except (RedisError, OSError) as error:
            failed = error
        failure = _translation(failed)
        pause = min(pause * 2, _LONGEST_PAUSE)
        if isinstance(failure, BusRefusedError) or time.monotonic() + pause > end:
            raise failure from failed
        await anyio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311  # jitter needs no secrecy


@cache
def robust(connection_class: type[Any]) -> type[Any]:
    """A subclass of one of redis-py's connection classes, to which writing fails with an error of Redis.

    On uvloop, writing to a connection that was lost a moment ago is a RuntimeError, which redis-py lets pass.
    """

    class RobustConnection(connection_class):  # type: ignore[misc]  # the base is a parameter
        async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
            """Write, or raise an error of Redis."""
            try:
                await super().send_packed_command(command, check_health=check_health)
            except RuntimeError as error:
                await self.disconnect(nowait=True)
                raise RedisConnectionError("the connection was lost") from error

    return RobustConnection
