"""What was heard and is not written yet, by owner: whoever reads waits a moment for it, so that it is not missed.

A model's last answer is often followed at once by the next request, and where one replica hears both, the request is to
find the answer in its history, which stays what it is for a whole run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count

import anyio

from nexus.core.tasks import Awaited


@dataclass(slots=True)
class _Unwritten:
    """A row, and what is set when it is written, once somebody waits for that."""

    run_id: str
    row_id: str
    written: anyio.Event | None = None


class Heard:
    """Rows that were accepted for writing.

    Attributes:
        awaited: whether somebody waits for them to be written.
    """

    def __init__(self) -> None:
        self._of_owner: dict[str, dict[int, _Unwritten]] = {}
        self._numbers = count()
        self.awaited = Awaited()

    def begin(self, owner_key: str, run_id: str, row_id: str = "") -> Callable[[], None]:
        """A row was accepted. Returns what is to be called when it is written, or never will be."""
        number = next(self._numbers)
        self._of_owner.setdefault(owner_key, {})[number] = _Unwritten(run_id, row_id)
        return partial(self._end, owner_key, number)

    def visible(self, owner_key: str, row_id: str) -> None:
        """A row need not be waited for any more: whoever reads finds it elsewhere."""
        for number, row in list(self._of_owner.get(owner_key, {}).items()):
            if row.row_id == row_id:
                self._end(owner_key, number)

    def any_of(self, owner_key: str, *, besides: str = "") -> bool:
        """Whether anything of the owner, but for rows of the run `besides`, is not written yet."""
        return any(row.run_id != besides for row in self._of_owner.get(owner_key, {}).values())

    async def written(self, owner_key: str, seconds: float, *, besides: str = "") -> bool:
        """Wait until what has been accepted of the owner by now is written, but for rows of the run `besides`.

        Returns:
            False when that takes longer than so many seconds.
        """
        rows = [row for row in self._of_owner.get(owner_key, {}).values() if row.run_id != besides]
        if not rows:
            return True
        events = [row.written or anyio.Event() for row in rows]
        for row, written in zip(rows, events, strict=True):
            row.written = written
        with self.awaited.awaiting(), anyio.move_on_after(seconds):
            for written in events:
                await written.wait()
        return all(written.is_set() for written in events)

    def _end(self, owner_key: str, number: int) -> None:
        rows = self._of_owner.get(owner_key, {})
        row = rows.pop(number, None)
        if row is None:
            return
        if row.written:
            row.written.set()
        if not rows:
            del self._of_owner[owner_key]
