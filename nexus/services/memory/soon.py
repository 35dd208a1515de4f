"""Compactions that nobody waits for (CONTRACT §7).

A session with more messages than are ever read for a context, such as one from before there was working memory, takes
longer to compact than an answer may. What is left undone at the end of the service is asked for again by the session's
next context.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Self

import anyio
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream

from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.working_memory import Wish

_log = structlog.get_logger(__name__)

_AT_ONCE: Final = 2
_MOST_WAITING: Final = 1_000


class CompactingSoon:
    """Brings compactions about in the background, of one session one at a time. Use `running()` to have it at work.

    Args:
        compact: brings one about.
    """

    def __init__(self, compact: Callable[[Wish], Awaitable[Any]]) -> None:
        self._compact = compact
        self._send, self._receive = anyio.create_memory_object_stream[Wish](_MOST_WAITING)
        self._wanted: set[tuple[str, str]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Do what is wanted, until the context ends."""
        async with anyio.create_task_group() as tasks:
            for _ in range(_AT_ONCE):
                tasks.start_soon(self._do_all, self._receive.clone())
            try:
                yield self
            finally:
                tasks.cancel_scope.cancel()
                self._send.close()
                self._receive.close()

    def want(self, wish: Wish) -> None:
        """Have it brought about, unless one of the session is wanted already or too many are."""
        session = (wish.owner_key, wish.session_id)
        if session in self._wanted:
            return
        try:
            self._send.send_nowait(wish)
        except (anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return
        self._wanted.add(session)

    async def _do_all(self, wishes: MemoryObjectReceiveStream[Wish]) -> None:
        async with wishes:
            async for wish in wishes:
                try:
                    await self._compact(wish)
                except (StoreUnavailableError, StoreRejectedError) as error:
                    _log.warning("compaction_delayed", run_id=wish.run_id, reason=str(error))
                except Exception as error:  # noqa: BLE001  # one session must not stop the work on all others
                    _log.exception("compaction_failed", run_id=wish.run_id, reason=type(error).__name__)
                finally:
                    self._wanted.discard((wish.owner_key, wish.session_id))
