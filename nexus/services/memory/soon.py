"""Compactions in the background, of one session one at a time (CONTRACT §7).

Rules of this module:

- A compaction goes on when whoever wanted it does not wait any more: an answer has a deadline, and what was begun
  for it is of use to the next one.
- Those that somebody waits for are begun at once. Those of sessions with more messages than are ever read for a
  context, such as sessions from before there was working memory, take long, and only so many are done at once.
- What is left undone at the end of the service is asked for again by the session's next context.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, Self

import anyio
import structlog

from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.working_memory import Compaction, CompactionJob, Wish

_log = structlog.get_logger(__name__)

_AT_ONCE: Final = 2
_MOST_JOBS: Final = 1_000


class CompactingSoon:
    """Brings compactions about. Use `running()` to have it at work.

    Args:
        compact: brings one about.
    """

    def __init__(self, compact: Callable[[Wish], Awaitable[Compaction | None]]) -> None:
        self._compact = compact
        self._jobs: dict[tuple[str, str], CompactionJob] = {}
        self._long = anyio.Semaphore(_AT_ONCE)
        self._tasks = anyio.create_task_group()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Do what is wanted, until the context ends."""
        async with self._tasks:
            try:
                yield self
            finally:
                self._tasks.cancel_scope.cancel()

    def want(self, wish: Wish, *, long: bool) -> CompactionJob | None:
        """Have it brought about; that of the session which is under way, if one is. None when too many are.

        Args:
            wish: what is wanted.
            long: nobody waits for it, and it may take long.
        """
        session = (wish.owner_key, wish.session_id)
        if job := self._jobs.get(session):
            return job
        if len(self._jobs) >= _MOST_JOBS:
            return None
        job = self._jobs[session] = CompactionJob()
        self._tasks.start_soon(self._do, wish, job, long)
        return job

    async def _do(self, wish: Wish, job: CompactionJob, long: bool) -> None:  # start_soon has no keywords
        try:
            if long:
                async with self._long:
                    job.made = await self._compact(wish)
            else:
                job.made = await self._compact(wish)
        except (StoreUnavailableError, StoreRejectedError) as error:
            job.failed = True
            _log.warning("compaction_delayed", run_id=wish.run_id, reason=str(error))
        except Exception as error:  # noqa: BLE001  # one session must not stop the work on all others
            job.failed = True
            _log.exception("compaction_failed", run_id=wish.run_id, reason=type(error).__name__)
        finally:
            del self._jobs[wish.owner_key, wish.session_id]
            job.done.set()
