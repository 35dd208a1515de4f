"""A subscription to streams: news, read here from where each stream ended, and work from `consumer_group`."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

import anyio
import structlog
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from nexus.adapters.redis.client import FAULTS, BufferedSubscription, kind_of, payload_of
from nexus.core.concurrency import Pauses
from nexus.core.ports import Delivery

_log = structlog.get_logger(__name__)

# How long a read may wait. Shorter than the time-out of the socket, which would end the read with an error.
BLOCK_MS: Final = 1_000

_READ_AT_ONCE: Final = 64
_BUFFERED_NEWS: Final = 1_024
LONGEST_PAUSE_S: Final = 1.0
_BEGINNING: Final = b"0-0"
_CLOSING_S: Final = 2.0
_LONGEST_REASON: Final = 200
# The one reader of all the news, beside those of one topic each.
_NEWS: Final = ""


class StreamSubscription(BufferedSubscription):
    """Deliveries of some streams, of which those of `news` are read here, until `stopping` is set."""

    def __init__(self, client: Redis, prefix: str, news: tuple[str, ...], most_work: int) -> None:
        # Work never fills its part of the buffer: no more is read than may be in hand.
        super().__init__(2 * most_work + _BUFFERED_NEWS)
        self.stopping = anyio.Event()
        self.news = news
        self._client = client
        self._prefix = prefix
        self._ends: dict[str, bytes] = {}
        self._replied_at: dict[str, float] = {}
        self._lost = False
        self._reading = anyio.CancelScope()
        # The last read of news, in `stop`, must not overlap another.
        self._reading_news = anyio.Lock()

    @property
    def silent_s(self) -> float:
        """For how many seconds a reply is overdue, at the reader that has waited for one longest.

        A read may wait for one second. Once stopped nothing is read, and nothing overdue.
        """
        if self.stopping.is_set() or not self._replied_at:
            return 0.0
        return max(anyio.current_time() - min(self._replied_at.values()) - BLOCK_MS / 1_000, 0.0)

    def begin(self, topics: Iterable[str]) -> None:
        """Expect replies from now on: to the readers of these topics, and to that of the news if there are any."""
        self.backlogs = dict.fromkeys(topics, 0)
        readers = [*self.backlogs, *([_NEWS] if self.news else [])]
        self._replied_at = dict.fromkeys(readers, anyio.current_time())

    def replied(self, topic: str) -> None:
        """Note that Redis has replied to the reader of this topic."""
        self._replied_at[topic] = anyio.current_time()
        if self._lost:
            self._lost = False
            self.reconnects += 1
            _log.info("bus_reconnected", reconnects=self.reconnects)

    def failed(self, topic: str, error: Exception) -> None:
        """Note that Redis has refused a read, or has not replied. Readers that lose Redis at once lose it once."""
        self.failure = kind_of(error)
        if isinstance(error, ResponseError):
            _log.error("topic_unusable", topic=topic, reason=str(error)[:_LONGEST_REASON])
        else:
            _log.warning("bus_disconnected", reason=self.failure)
            self._lost = True

    async def deliver(self, delivery: Delivery) -> bool:
        """Put a delivery where the subscriber reads, and wait while the buffer is full; False where that has ended."""
        try:
            # `stop` cannot come in between, as it could where `send` first lets other tasks run.
            self._send.send_nowait(delivery)
        except anyio.WouldBlock:
            try:
                await self._send.send(delivery)
            except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                return False
        return True

    async def stop(self) -> None:
        """Take in no more work, and no more news than there are. Work of a read that is cut off goes to another."""
        if self.stopping.is_set():
            return
        self.stopping.set()
        self._reading.cancel()
        with anyio.move_on_after(_CLOSING_S), suppress(*FAULTS):
            while self.news and await self._read_news(None):
                pass
        self._send.close()

    async def find_ends(self) -> None:
        """Find the end of each stream of news, from which it is read; waits for Redis."""
        pauses = Pauses(longest_s=LONGEST_PAUSE_S)
        while len(self._ends) < len(self.news):
            for topic in self.news:
                try:
                    last: Any = await self._client.xrevrange(self._prefix + topic, count=1)
                    self._ends[topic] = last[0][0] if last else _BEGINNING
                except FAULTS as error:
                    self.failed(topic, error)
                    await pauses.wait()
        self._lost = False

    async def read_news(self) -> None:
        """Read what is appended to the streams of news, until `stop`. Run in a task of its own."""
        pauses = Pauses(longest_s=LONGEST_PAUSE_S)
        with self._reading:
            while self.news:
                try:
                    await self._read_news(BLOCK_MS)
                    pauses.end()
                except FAULTS as error:
                    self.failed(", ".join(self.news), error)
                    await pauses.wait()

    async def _read_news(self, block_ms: int | None) -> bool:
        """Read the news once. Whether there were any."""
        async with self._reading_news:
            keys: dict[Any, Any] = {self._prefix + topic: end for topic, end in self._ends.items()}
            found = await self._client.xread(keys, count=_READ_AT_ONCE, block=block_ms)
            self.replied(_NEWS)
            entries = [
                (entry, key.decode().removeprefix(self._prefix), fields)
                for key, listed in _by_stream(found)
                for entry, fields in listed
            ]
            # Several streams are read at once: in the order in which they were written.
            for entry, topic, fields in sorted(entries, key=lambda item: order_of(item[0])):
                await self.deliver(delivery_of(topic, entry, fields))
                self._ends[topic] = entry
            return bool(found)


def delivery_of(
    topic: str, entry: bytes, fields: Any, *, shared: bool = False, deliveries: int = 1, surplus: bool = False
) -> Delivery:
    """An entry of a stream as a delivery. One without a `message` is an empty payload, which cannot be decoded.

    TypeError where the reply was spoilt on its way; the entry comes again.
    """
    payload = payload_of((fields or {}).get(b"message", b""))
    entry_id = entry.decode()
    return Delivery(topic, payload, entry_id, int(entry_id.partition("-")[0]), deliveries, shared, surplus)


def entries_of(found: Any) -> list[tuple[bytes, Any]]:
    """The entries in a reply to a read of one stream."""
    return [entry for _, entries in _by_stream(found) for entry in entries]


def _by_stream(found: Any) -> Sequence[tuple[bytes, Any]]:
    """What XREAD gives, in both of redis-py's forms."""
    return [(key, listed[0]) for key, listed in found.items()] if isinstance(found, dict) else found or []


def order_of(entry: bytes) -> tuple[int, int]:
    """An entry's place in time: milliseconds, and the number within them."""
    ms, _, number = entry.partition(b"-")
    return int(ms), int(number)
