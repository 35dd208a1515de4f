"""Checks of whether the service is ready, each with a time limit (contract §10)."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

import anyio

from nexus.core.errors import NexusError

# Returns the fault, or raises a NexusError that names it, without addresses or content; None when all is well.
Check: TypeAlias = Callable[[], Awaitable[str | None]]


class CachedCheck:
    """A check whose outcome counts for `keep_s` seconds, so that frequent probes do not burden the server behind it.

    The check runs at most once in that time, for at most `limit_s` seconds, however many callers wait for it.
    """

    def __init__(self, check: Check, *, limit_s: float = 1.0, keep_s: float = 1.0) -> None:
        self._check = check
        self._limit_s = limit_s
        self._keep_s = keep_s
        self._lock = anyio.Lock()
        self._next = float("-inf")
        self._outcome: str | None = "not known yet"

    async def __call__(self) -> str | None:
        """The outcome of the latest run of the check."""
        async with self._lock:
            if anyio.current_time() >= self._next:
                self._next = anyio.current_time() + self._keep_s
                self._outcome = await _run(self._check, self._limit_s)
        return self._outcome


async def run_checks(checks: Mapping[str, Check], limit_s: float) -> dict[str, str]:
    """Run all checks at once, each for at most `limit_s` seconds. Returns by name `"ok"` or the fault."""
    outcomes = dict.fromkeys(checks, "")

    async def run(name: str, check: Check) -> None:
        outcomes[name] = await _run(check, limit_s) or "ok"

    async with anyio.create_task_group() as tasks:
        for name, check in checks.items():
            tasks.start_soon(run, name, check)
    return outcomes


async def _run(check: Check, seconds: float) -> str | None:
    with anyio.move_on_after(seconds):
        try:
            return await check()
        except NexusError as error:
            return str(error) or type(error).__name__
    return "no answer in time"
