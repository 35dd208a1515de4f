"""Whether a request is claimed before its history is read, and before it is built.

Who gets the request has it sooner; who does not has read for nothing. On a bus where every replica hears every request
it is worth it for one that gets nearly all of them.
"""

import time
from collections.abc import Callable
from typing import Final

from nexus.core.ports import Delivery

_WEIGHT: Final = 0.1
_ENOUGH: Final = 0.75


class ReadingAhead:
    """Which part of the requests that were heard lately this replica got."""

    def __init__(self) -> None:
        self._got = 1.0

    def note(self, *, got: bool) -> None:
        """A request is this replica's, or another has it."""
        self._got += _WEIGHT * (got - self._got)

    def is_worth_it(self, delivery: Delivery) -> bool:
        """Whether to read before it is known who gets this one."""
        return delivery.shared or self._got >= _ENOUGH


class Young:
    """Whether a process was started so lately that what it is asked for may have ended the one before.

    Args:
        for_ms: how long it counts as young, from when it is asked for the first time.
        requests: for how many requests it does, at least.
        clock: seconds that never run back.
    """

    def __init__(self, for_ms: int, requests: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._for_s = for_ms / 1_000
        self._requests = requests
        self._clock = clock
        self._until: float | None = None

    def is_young(self) -> bool:
        """Whether it is, as of one more request."""
        if self._until is None:
            self._until = self._clock() + self._for_s
        left, self._requests = self._requests, max(self._requests - 1, 0)
        return left > 0 or self._clock() < self._until
