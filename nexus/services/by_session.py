"""Moved to `session_queue`; this class goes once the session states use that."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from nexus.services.session_queue import Key as Key
from nexus.services.session_queue import SessionQueue

_Item = TypeVar("_Item")


class BySession(SessionQueue[_Item]):
    """`SessionQueue` with the writes of one session in a mapping."""

    def __init__(
        self,
        do: Callable[[Mapping[Key, Sequence[_Item]]], Awaitable[None]],
        settled: Callable[[_Item, str | None], None],
        delayed: Callable[[str], None],
    ) -> None:
        async def do_session(key: Key, items: Sequence[_Item]) -> None:
            await do({key: items})

        super().__init__(do_session, settled, delayed)
