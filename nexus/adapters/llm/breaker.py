"""A circuit breaker.

- After `failures` failed calls in a row it opens: for about `rest_s` seconds every call fails at once.
- Then one trial call is made, and other calls wait for its outcome: a success closes the breaker, a failure opens it
  again.
- A cancelled call counts neither way. If it was the trial, the next call is.
"""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import anyio

from nexus.core.errors import ModelUnavailableError, PromptTooLongError

# A rest lasts up to this factor longer, so that replicas do not all come back at once.
_LONGEST_FACTOR: Final = 1.25


class Breaker:
    """Wraps calls in `call()`; see the module."""

    def __init__(self, failures: int, rest_s: float, clock: Callable[[], float] = anyio.current_time) -> None:
        self._most = failures
        self._rest_s = rest_s
        self._clock = clock
        self._in_a_row = 0
        # Until when no call is made; None while the breaker is closed.
        self._until: float | None = None
        self._trial: anyio.Event | None = None

    @property
    def resting_s(self) -> float:
        """For how many seconds from now calls fail at once; 0 when the next one is made."""
        return 0.0 if self._until is None else max(self._until - self._clock(), 0.0)

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """A call, which fails by `ModelUnavailableError`; `PromptTooLongError` is an answer.

        Raises:
            ModelUnavailableError: the breaker is open.
        """
        trial = await self._admitted()
        try:
            yield
        except ModelUnavailableError:
            self._failed(is_trial=trial is not None)
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

    async def _admitted(self) -> anyio.Event | None:
        """Wait until the call may be made. Returns the event to set at its end when it is the trial."""
        while self._until is not None:
            if self.resting_s:
                raise ModelUnavailableError(f"no call is made for {self.resting_s:.1f} s, after failures")
            if self._trial is None:
                self._trial = anyio.Event()
                return self._trial
            await self._trial.wait()
        return None

    def _failed(self, *, is_trial: bool) -> None:
        self._in_a_row += 1
        # A call that was begun before the rest and fails in it does not prolong it.
        if is_trial or (self._until is None and self._in_a_row >= self._most):
            self._until = self._clock() + self._rest_s * random.uniform(1, _LONGEST_FACTOR)  # noqa: S311  # jitter

    def _succeeded(self) -> None:
        self._in_a_row, self._until = 0, None
