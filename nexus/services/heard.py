"""What was heard and is not written yet, by owner: whoever reads waits a moment for it, so that it is not missed.

A model's last answer is often followed at once by the next request, and where one replica hears both, the request is to
find the answer in its history, which stays what it is for a whole run.
"""

from collections.abc import Callable
from itertools import count

import anyio

# Of one owner, by number, the run that each unwritten row is of, and what is set when it is written.
_Unwritten = dict[int, tuple[str, anyio.Event]]


class Heard:
    """Rows that were accepted for writing."""

    def __init__(self) -> None:
        self._of_owner: dict[str, _Unwritten] = {}
        self._numbers = count()

    def begin(self, owner_key: str, run_id: str) -> Callable[[], None]:
        """A row was accepted. Returns what is to be called when it is written, or never will be."""
        number, written = next(self._numbers), anyio.Event()
        unwritten = self._of_owner.setdefault(owner_key, {})
        unwritten[number] = (run_id, written)

        def end() -> None:
            written.set()
            del unwritten[number]
            if not unwritten:
                del self._of_owner[owner_key]

        return end

    async def written(self, owner_key: str, seconds: float, *, besides: str = "") -> bool:
        """Wait until what has been accepted of the owner by now is written, but for rows of the run `besides`.

        Returns:
            False when that takes longer than so many seconds.
        """
        events = [written for run_id, written in self._of_owner.get(owner_key, {}).values() if run_id != besides]
        with anyio.move_on_after(seconds):
            for written in events:
                await written.wait()
        return all(written.is_set() for written in events)
