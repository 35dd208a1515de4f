"""Not falling asleep over one reply (docs/decisions: 0028-one-reply-is-polled-for.md)."""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType

from nexus.core.tasks import Pending


class BusyPolling:
    """Has the event loop look for input again and again, instead of sleeping, while one thing alone is in hand.

    A process that sleeps is woken up some 30 µs after its reply has come, on virtual machines, and finds caches cold.
    Use it as a context around what is awaited. It changes nothing but when the loop sleeps.

    Args:
        in_hand: what is in hand. With more than one there is other work, for this process or for the servers.
        longest_s: how long one thing is polled for, in seconds; 0 for not at all.
        has_others: whether who replies does something else for this process meanwhile, or replies to another of its
            threads. Then he may need the processor.
    """

    def __init__(self, in_hand: Pending, longest_s: float, has_others: Callable[[], bool] = lambda: False) -> None:
        self._in_hand = in_hand
        self._longest_s = longest_s
        self._has_others = has_others
        self._until = 0.0
        self._polls = False

    def __enter__(self) -> None:
        if self._longest_s <= 0 or not self._is_alone:
            return
        self._until = time.monotonic() + self._longest_s
        if not self._polls:
            self._polls = True
            asyncio.get_running_loop().call_soon(self._poll)

    def __exit__(self, _kind: type[BaseException] | None, _error: object, _where: TracebackType | None) -> None:
        self._until = 0.0

    def _poll(self) -> None:
        self._polls = self._is_alone and time.monotonic() < self._until
        if self._polls:
            asyncio.get_running_loop().call_soon(self._poll)

    @property
    def _is_alone(self) -> bool:
        return self._in_hand.count == 1 and not self._has_others()
