"""How much of an owner's past is asked for at first: as many rows as were needed lately (CONTRACT §4.3)."""

from collections import deque
from typing import Final

# For owners of whom nothing is known.
ROWS_A_MESSAGE: Final = 2
# More is asked for in several pages.
LARGEST_PAGE: Final = 500
# A row too many costs the store and the reader microseconds, another question half a millisecond.
_SPARE: Final = 4
_SPARE_PART: Final = 8
# An owner who needed many rows is taken to need many for some time.
_FALLS_BY: Final = 4
_MOST_OWNERS: Final = 10_000


class PageSizes:
    """What the newest messages of owners have needed.

    Too few rows are followed by more, and too many are read for nothing. What is shown is the same, but to a run that
    was asked for before and of which nothing is kept: where its input lies within what is read, its past ends there.

    Args:
        most_owners: of so many it is known; the first goes for another one.
    """

    def __init__(self, most_owners: int = _MOST_OWNERS) -> None:
        self._most_owners = most_owners
        # By owner: for how many messages, and how many rows these needed.
        self._needed: dict[str, tuple[int, int]] = {}
        self._owners: deque[str] = deque()

    def first(self, owner_key: str, messages: int) -> int:
        """How many rows the first page has for so many messages, 1 to 500 where it is known."""
        known, rows = self._needed.get(owner_key, (0, 0))
        if known != messages:
            return ROWS_A_MESSAGE * messages
        return min(rows + max(_SPARE, rows // _SPARE_PART), LARGEST_PAGE)

    def note(self, owner_key: str, messages: int, rows: int) -> None:
        """So many rows were needed for so many messages."""
        known, before = self._needed.get(owner_key, (None, 0))
        if known is None:
            if len(self._owners) >= self._most_owners:
                del self._needed[self._owners.popleft()]
            self._owners.append(owner_key)
        elif known == messages and rows < before:
            rows = before - max((before - rows) // _FALLS_BY, 1)
        self._needed[owner_key] = messages, rows
