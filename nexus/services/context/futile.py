"""Compactions that would find nothing: a session that is heavy with runs in progress asks for one with every build."""

from collections import OrderedDict
from typing import Final

import anyio

from nexus.core.working_memory import Wish

# For so long nothing is tried again: runs end, but seldom between two steps of an agent.
_RESTS_S: Final = 10.0
_MOST_SESSIONS: Final = 1_000


class Futile:
    """For which sessions there was nothing to compact a moment ago."""

    def __init__(self) -> None:
        self._until: OrderedDict[tuple[str, str], float] = OrderedDict()

    def note(self, wish: Wish) -> None:
        """There was nothing."""
        self._until[wish.owner_key, wish.session_id] = anyio.current_time() + _RESTS_S
        if len(self._until) > _MOST_SESSIONS:
            self._until.popitem(last=False)

    def lately(self, wish: Wish) -> bool:
        """Whether that was a moment ago."""
        return anyio.current_time() < self._until.get((wish.owner_key, wish.session_id), 0.0)
