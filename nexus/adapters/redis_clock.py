"""What time it is on a server that says so in its replies, as nearly as who hears them can know it."""

import time
from typing import Final

from nexus.adapters.redis_pipeline import Pipelined

# What this process and another on the same machine may differ by in the microsecond.
_MARGIN_US: Final = 200
# What is known of the time is good for so long.
_KNOWN_S: Final = 30.0
# The slower of two clocks may lose so much of the time: what NTP slews by, and what quartz drifts, is half of it.
_DRIFT: Final = 0.001


# When something was asked, in seconds by `time.monotonic`, and how many connections had been opened.
Asked = tuple[float, int]


class ServerClock:
    """The time of a server that is no later than it really is there (F. Cristian, Probabilistic clock synchronization).

    A reply says what time it was when the server made it, which was before it was heard. So by then it is later there,
    and goes on to be by what passes here. The best reply so far counts, less what the clocks may differ by since.

    A server whose clock is set back by more than a reply takes is noticed with the next one: that was made after it was
    asked for. One whose clock is made to go slower than `_DRIFT` allows for is not.
    """

    def __init__(self) -> None:
        self._said_us = 0.0
        self._heard_at: float | None = None

    def heard(self, said_us: int, asked_at: float, heard_at: float) -> None:
        """Take note of a reply.

        Args:
            said_us: what time it was there, in microseconds since 1970.
            asked_at: when it was asked for, in seconds of a clock here that never runs back.
            heard_at: when it was heard.
        """
        before = self.earliest_us(asked_at)
        is_set_back = before is not None and said_us < before
        if is_set_back or self._heard_at is None or said_us >= (self.earliest_us(heard_at) or 0):
            self._said_us, self._heard_at = said_us, heard_at

    def forget(self) -> None:
        """It may be another server."""
        self._heard_at = None

    def earliest_us(self, at: float) -> int | None:
        """What time it was there at least, in microseconds since 1970; None where nothing is known."""
        if self._heard_at is None:
            return None
        passed = at - self._heard_at
        return int(self._said_us + (passed - abs(passed) * _DRIFT) * 1e6)


class RedisTime:
    """The time of the server that a pipeline is connected to, which may be another after each new connection.

    Args:
        redis: the pipeline; where there is none, calls go to whichever server, and no time is known.
    """

    def __init__(self, redis: Pipelined | None) -> None:
        self._redis = redis
        self._clock = ServerClock()
        self._opened = 0
        self._heard_at = 0.0

    def asked(self) -> Asked:
        """What `heard` wants to know of the moment in which something is asked."""
        return time.monotonic(), self._redis.opened if self._redis else 0

    def heard(self, said_us: int, asked: Asked) -> None:
        """Take note of what time it was when a reply was made. One on a connection of before does not count."""
        asked_at, opened = asked
        if self._redis is None or opened != self._redis.opened:
            return
        if opened != self._opened:
            self._opened = opened
            self._clock.forget()
        self._heard_at = time.monotonic()
        self._clock.heard(said_us, asked_at, self._heard_at)

    def earliest_us(self, at: float) -> int | None:
        """What time it was there at least, in microseconds since 1970; None where nobody knows any more.

        Args:
            at: a moment of a little while ago, in seconds by `time.monotonic`.
        """
        if self._redis is None or not self._redis.connections or self._redis.opened != self._opened:
            return None
        if time.monotonic() - self._heard_at > _KNOWN_S:
            return None
        earliest_us = self._clock.earliest_us(at)
        return None if earliest_us is None else earliest_us - _MARGIN_US
