"""A circuit breaker: who fails again and again is left alone for a while, and then tried with one call. No I/O.

- After so many failures in a row no call is made for a while; every one fails at once.
- Then one call is made. While it is under way, others wait for what becomes of it: if it succeeds everything is as
  before, if it fails the rest begins anew.
- A call that is given up says nothing. If it was the one that tries, the next one does.
"""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import anyio

from nexus.core.errors import ModelUnavailableError, PromptTooLongError

# A rest is up to so much longer than it need be, so that replicas do not all come back at once.
_LONGEST_FACTOR: Final = 1.25


class Breaker:
    """Whether calls are made.

    Args:
        failures: after how many in a row no call is made.
        rest_s: for how long at least.
        clock: seconds, as `anyio.current_time` counts them.
    """

    def __init__(self, failures: int, rest_s: float, clock: Callable[[], float] = anyio.current_time) -> None:
        self._most = failures
        self._rest_s = rest_s
        self._clock = clock
        self._in_a_row = 0
        # Until when no call is made; None while nothing is wrong.
        self._until: float | None = None
        self._trial: anyio.Event | None = None

    @property
    def resting_s(self) -> float:
        """For how many seconds from now calls fail at once; 0 when the next one is made."""
        return 0.0 if self._until is None else max(self._until - self._clock(), 0.0)

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """A call. It has failed when it raises `ModelUnavailableError`; a prompt that is too long was answered.

        Raises:
            ModelUnavailableError: this is a rest, and the call is not to be made.
        """
        trial = await self._admitted()
        try:
            yield
        except ModelUnavailableError:
            self._failed(tried=trial is not None)
            raise
        except PromptTooLongError:
            self._succeeded()
            raise
        else:
            self._succeeded()
        finally:
            if trial is not None:
                self._trial = None
                trial.set()

    def rest(self, seconds: float) -> None:
        """Make no call for so long, because the other side asked for it."""
        self._until = max(self._until or 0.0, self._clock() + seconds)

    async def _admitted(self) -> anyio.Event | None:
        """Wait until the call may be made. Returns what to set at its end when it is the one that tries."""
        while self._until is not None:
            if self.resting_s:
                raise ModelUnavailableError(f"no call is made for {self.resting_s:.1f} s, after failures")
            if self._trial is None:
                self._trial = anyio.Event()
                return self._trial
            await self._trial.wait()
        return None

    def _failed(self, *, tried: bool) -> None:
        self._in_a_row += 1
        # One that was begun before the rest, and fails in it, does not prolong it.
        if tried or (self._until is None and self._in_a_row >= self._most):
            self._until = self._clock() + self._rest_s * random.uniform(1, _LONGEST_FACTOR)  # noqa: S311  # jitter

    def _succeeded(self) -> None:
        self._in_a_row, self._until = 0, None
