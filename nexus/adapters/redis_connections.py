"""Connections to Redis whose loss is an error of Redis, whatever event loop they are on."""

from functools import cache
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError


class _LostIsAnError:
    """Of a redis-py connection: on uvloop, writing to a connection that was lost a moment ago is a RuntimeError."""

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Write, or raise an error of Redis."""
        try:
            await super().send_packed_command(command, check_health=check_health)  # type: ignore[misc]  # of the other base
        except RuntimeError as error:
            await self.disconnect(nowait=True)  # type: ignore[attr-defined]  # of the other base
            raise RedisConnectionError("the connection was lost") from error


@cache
def robust(connection_class: type[Any]) -> type[Any]:
    """A class of redis-py's connections with which no other error comes of a lost one."""
    return type(connection_class.__name__, (_LostIsAnError, connection_class), {})
