"""Not falling asleep over one reply (docs/decisions: 0028-one-reply-is-polled-for.md)."""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

from nexus.core.tasks import Pending

# Who is to reply is done sooner, as a rule; a busy process has the processor for one to four times as long.
_LONG_S: Final = 0.001
# For so long nothing is polled for after that.
PAUSE_S: Final = 1.0


class BusyPolling:
    """Has the event loop look for input again and again, instead of sleeping, while one thing alone is in hand.

    A process that sleeps is woken up some 30 µs after its reply has come, on virtual machines, and finds caches cold.
    Between two looks it gives way: whoever is to reply may be waiting for this very processor. Where others keep that
    for long, it sleeps as ever for a while, since who sleeps is not behind them when his reply comes. Use it as a
    context around what is awaited. It changes nothing but when the loop sleeps.

    Args:
        in_hand: what is in hand. With more than one there is other work, for this process or for the servers.
        longest_s: how long one thing is polled for, in seconds; 0 for not at all.
        has_others: whether who replies does something else for this process meanwhile, or replies to another of its
            threads. Then he may need the processor.
        give_way: lets others have the processor who wait for it, and returns when it is this one's turn again.
    """

    def __init__(
        self,
        in_hand: Pending,
        longest_s: float,
        has_others: Callable[[], bool] = lambda: False,
        give_way: Callable[[], None] = lambda: None,
    ) -> None:
        self._in_hand = in_hand
        self._longest_s = longest_s
        self._has_others = has_others
        self._give_way = give_way
        self._until = 0.0
        self._polls = False
        self._not_before = 0.0

    def __enter__(self) -> None:
        now = time.monotonic()
        if self._longest_s <= 0 or now < self._not_before or not self._is_alone:
            return
        self._until = now + self._longest_s
        if not self._polls:
            self._polls = True
            asyncio.get_running_loop().call_soon(self._poll)

    def __exit__(self, _kind: type[BaseException] | None, _error: object, _where: TracebackType | None) -> None:
        self._until = 0.0

    def _poll(self) -> None:
        now = time.monotonic()
        self._polls = self._is_alone and now < self._until
        if not self._polls:
            return
        self._give_way()
        back = time.monotonic()
        if back - now > _LONG_S:
            self._not_before = back + PAUSE_S
        asyncio.get_running_loop().call_soon(self._poll)

    @property
    def _is_alone(self) -> bool:
        return self._in_hand.count == 1 and not self._has_others()
