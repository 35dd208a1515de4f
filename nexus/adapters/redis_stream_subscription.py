"""What somebody hears of some streams: the news, read here, and the work that `redis_group` brings."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import anyio
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from nexus.adapters.redis_entries import BLOCK_MS, by_stream, delivery_of, moment
from nexus.adapters.redis_inbox import Inbox
from nexus.core.ports import Delivery

_log = structlog.get_logger(__name__)

_READ_AT_ONCE: Final = 64
_BUFFERED_NEWS: Final = 1_024
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_BEGINNING: Final = b"0-0"
_CLOSING_S: Final = 2.0
_LONGEST_REASON: Final = 200
# The one reader of all the news, among those of one topic each.
_NEWS: Final = ""


class StreamSubscription:
    """Deliveries of some streams."""

    def __init__(self, client: Redis, prefix: str, news: tuple[str, ...], most_work: int) -> None:
        self.reconnects = 0
        self.failure = ""
        self.backlogs: dict[str, int] = {}
        self.stopping = anyio.Event()
        self.news = news
        self._client = client
        self._prefix = prefix
        self._ends: dict[str, bytes] = {}
        self._heard_at: dict[str, float] = {}
        self._lost = False
        self._reading = anyio.CancelScope()
        # Work never fills its part of the buffer: no more is read than may be in hand.
        size = 2 * most_work + _BUFFERED_NEWS
        self._room = anyio.Event()
        self._inbox = Inbox(size, self._read_on)
        # What is read after the last read of all must not be what that one has brought.
        self._hearing = anyio.Lock()

    @property
    def silent_s(self) -> float:
        """For how many seconds a reply is overdue, at the reader that has been without one for longest.

        A read may wait for one second. Once stopped nothing is read, and nothing overdue.
        """
        if self.stopping.is_set() or not self._heard_at:
            return 0.0
        return max(anyio.current_time() - min(self._heard_at.values()) - BLOCK_MS / 1_000, 0.0)

    def begin(self, topics: Iterable[str]) -> None:
        """Expect replies from now on: to the readers of these topics, and to that of the news if there are any."""
        self.backlogs = dict.fromkeys(topics, 0)
        readers = [*self.backlogs, *([_NEWS] if self.news else [])]
        self._heard_at = dict.fromkeys(readers, anyio.current_time())

    def heard(self, topic: str) -> None:
        """Note that Redis has replied to the reader of this topic."""
        self._heard_at[topic] = anyio.current_time()
        if self._lost:
            self._lost = False
            self.reconnects += 1
            _log.info("bus_reconnected", reconnects=self.reconnects)

    def failed(self, topic: str, error: Exception) -> None:
        """Note that Redis has refused, or has not replied. Several readers that lose it at once lose it once."""
        self.failure = type(error).__name__
        if isinstance(error, ResponseError):
            _log.error("topic_unusable", topic=topic, reason=str(error)[:_LONGEST_REASON])
        else:
            _log.warning("bus_disconnected", reason=self.failure)
            self._lost = True

    async def deliver(self, delivery: Delivery) -> None:
        """Put it where the subscriber reads, and wait while there is too much."""
        if self._inbox.put(delivery):
            await self._room.wait()

    def offer_first(self, take: Callable[[Delivery], bool]) -> None:
        """Offer each delivery to `take` in the step in which it arrives, unless one from before it waits."""
        self._inbox.first = take

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self._inbox

    async def stop(self) -> None:
        """Take in no more work, and no more news than there are. Work of a read that is cut off goes to another."""
        if self.stopping.is_set():
            return
        self.stopping.set()
        self._reading.cancel()
        with anyio.move_on_after(_CLOSING_S), suppress(RedisError, OSError):
            while self.news and await self._hear(None):
                pass
        self._inbox.end()

    def close(self) -> None:
        """End iterating."""
        self._inbox.close()

    async def find_ends(self) -> None:
        """Find the end of each stream of news, from which it is heard; waits for Redis."""
        pause = _FIRST_PAUSE
        while len(self._ends) < len(self.news):
            for topic in self.news:
                try:
                    last: Any = await self._client.xrevrange(self._prefix + topic, count=1)
                    self._ends[topic] = last[0][0] if last else _BEGINNING
                except (RedisError, OSError) as error:
                    self.failed(topic, error)
                    await anyio.sleep(pause)
                    pause = min(pause * 2, _LONGEST_PAUSE)
        self._lost = False

    async def hear_news(self) -> None:
        """Read what is appended to the streams of news, until `stop`. Run in a task of its own."""
        pause = _FIRST_PAUSE
        with self._reading:
            while self.news:
                try:
                    await self._hear(BLOCK_MS)
                    pause = _FIRST_PAUSE
                except (RedisError, OSError) as error:
                    self.failed(", ".join(self.news), error)
                    await anyio.sleep(pause)
                    pause = min(pause * 2, _LONGEST_PAUSE)

    def _read_on(self) -> None:
        # All readers who wait, and none who comes later.
        self._room.set()
        self._room = anyio.Event()

    async def _hear(self, block_ms: int | None) -> bool:
        """Read the news once. Whether there were any."""
        async with self._hearing:
            keys: dict[Any, Any] = {self._prefix + topic: end for topic, end in self._ends.items()}
            found = await self._client.xread(keys, count=_READ_AT_ONCE, block=block_ms)
            self.heard(_NEWS)
            await self._take_news(found)
            return bool(found)

    async def _take_news(self, found: Any) -> None:
        entries = [
            (entry, key.decode().removeprefix(self._prefix), fields)
            for key, listed in by_stream(found)
            for entry, fields in listed
        ]
        # Several streams are read at once: in the order in which they were written.
        for entry, topic, fields in sorted(entries, key=lambda item: moment(item[0])):
            await self.deliver(delivery_of(topic, entry, fields))
            self._ends[topic] = entry
