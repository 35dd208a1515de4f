"""An event loop whose time passes as soon as everybody waits: pauses of a minute take nothing, and order is kept."""

import asyncio
import selectors
from collections.abc import Mapping
from typing import Any


class _Clockwork(selectors.SelectSelector):
    """Passes the time that it should wait for, instead of waiting."""

    now = 1_000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready now."""
        if timeout is None:
            raise RuntimeError("everybody waits for what never comes")
        self.now += max(timeout, 0.0)
        return super().select(0)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """What is registered."""
        return super().get_map() or {}


class VirtualLoop(asyncio.SelectorEventLoop):
    """For code without threads, sockets and processes."""

    def __init__(self) -> None:
        self._clockwork = _Clockwork()
        super().__init__(self._clockwork)

    def pass_time(self, seconds: float) -> None:
        """As if the step that calls this took so long."""
        self._clockwork.now += seconds

    def time(self) -> float:
        """Seconds that never run back."""
        return self._clockwork.now
