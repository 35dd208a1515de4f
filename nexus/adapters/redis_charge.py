"""What one consumer of a group has charge of: the entries of a stream that were handed to it and are not done.

Rules of this module:

- What is in hand is held: while this process lives nobody else is handed it, however long it takes.
- What is done and not acknowledged yet is held as well, so that it does not come again.
- What is left at the end is given back, and can be taken over at once.
"""

from collections.abc import Callable
from typing import Final

import anyio
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from nexus.adapters.redis_group_scripts import GIVE_BACK, HOLD
from nexus.core.ports import Delivery

_log = structlog.get_logger(__name__)

_Argument = bytes | str | int

# The part of a lease after which there is another sign of life, and after which there is one however long the lease is.
_HELD, _HELD_S = 0.25, 1.0
# A script keeps everybody else waiting.
_HELD_AT_ONCE: Final = 500
_AFTER_AN_ERROR_S: Final = 1.0


class Charge:
    """The entries of one stream in the hands of one consumer.

    Args:
        client: where the stream is.
        topic, key: of the stream, without and with prefix.
        names: of the group and the consumer.
        lease_ms: after how long without a sign of life an entry is taken over.
    """

    def __init__(self, client: Redis, topic: str, key: str, names: tuple[str, str], lease_ms: int) -> None:
        self.bytes = 0
        self.surplus = 0
        self._client = client
        self._topic = topic
        self._key = key
        self._names = names
        self._lease_ms = lease_ms
        self._in_hand: dict[str, Delivery] = {}
        # In order; a dictionary because entries are looked for in it.
        self._to_acknowledge: dict[str, None] = {}
        self._freed = anyio.Event()
        self._acknowledgeable = anyio.Event()
        self._hold = client.register_script(HOLD)
        self._give_back = client.register_script(GIVE_BACK)

    def __len__(self) -> int:
        """How many are in hand."""
        return len(self._in_hand)

    @property
    def entries(self) -> list[str]:
        """What is in hand, and what is done and not acknowledged."""
        return [*self._in_hand, *self._to_acknowledge]

    def take(self, delivery: Delivery) -> bool:
        """Take charge of a delivery. False when it is known already."""
        if delivery.entry in self._in_hand or delivery.entry in self._to_acknowledge:
            return False
        self._in_hand[delivery.entry] = delivery
        self.bytes += len(delivery.payload)
        self.surplus += delivery.surplus
        return True

    def done(self, delivery: Delivery, *, acknowledged: bool) -> None:
        """Let go of an entry; it is acknowledged soon, unless it has been."""
        if self._in_hand.pop(delivery.entry, None) is None:
            return
        self.bytes -= len(delivery.payload)
        self.surplus -= delivery.surplus
        self._freed.set()
        if not acknowledged:
            self._to_acknowledge[delivery.entry] = None
            self._acknowledgeable.set()

    async def wait_for_less(self, longest_s: float) -> None:
        """Return when something is let go of, or after `longest_s`."""
        self._freed = anyio.Event()
        with anyio.move_on_after(longest_s):
            await self._freed.wait()

    async def hold_on(self, held: Callable[[], None]) -> None:
        """Give signs of life for what is there, and tell `held` each time. Run in a task of its own."""
        while True:
            await anyio.sleep(min(self._lease_ms / 1_000 * _HELD, _HELD_S))
            entries = self.entries
            if not entries:
                continue
            try:
                for start in range(0, len(entries), _HELD_AT_ONCE):
                    arguments: list[_Argument] = [*self._names, *entries[start : start + _HELD_AT_ONCE]]
                    await self._hold(keys=[self._key], args=arguments)
            except (RedisError, OSError) as error:
                if not is_group_gone(error):
                    _log.warning("lease_not_renewed", topic=self._topic, reason=type(error).__name__)
                    continue
            held()

    async def acknowledge_on(self) -> None:
        """Acknowledge what is done, many at once where many are. Run in a task of its own."""
        while True:
            await self._acknowledgeable.wait()
            self._acknowledgeable = anyio.Event()
            try:
                await self._acknowledge()
            except (RedisError, OSError) as error:
                _log.debug("not_acknowledged", topic=self._topic, reason=type(error).__name__)
                await anyio.sleep(_AFTER_AN_ERROR_S)
                self._acknowledgeable.set()

    async def give_back(self) -> None:
        """Acknowledge what is done, and let others take over the rest at once."""
        try:
            await self._acknowledge()
            arguments: list[_Argument] = [*self._names, self._lease_ms * 1_000]
            left = await self._give_back(keys=[self._key], args=arguments)
        except (RedisError, OSError) as error:
            _log.warning("work_not_given_back", topic=self._topic, reason=type(error).__name__)
            return
        if left:
            _log.info("work_given_back", topic=self._topic, pending=left)

    async def _acknowledge(self) -> None:
        while self._to_acknowledge:
            entries = list(self._to_acknowledge)
            await self._client.xack(self._key, self._names[0], *entries)
            for entry in entries:
                self._to_acknowledge.pop(entry, None)


def is_group_gone(error: Exception) -> bool:
    """Whether Redis says that there is no such group or stream."""
    text = str(error)
    return isinstance(error, ResponseError) and any(
        sign in text for sign in ("NOGROUP", "no longer exists", "no such key", "No such key")
    )
