"""What was heard and is not written yet, by owner: whoever reads waits a moment for it, so that it is not missed.

A model's last answer is often followed at once by the next request, and where one replica hears both, the request is to
find the answer in its history, which stays what it is for a whole run.
"""

from collections.abc import Callable
from itertools import count

import anyio

from nexus.core.tasks import Awaited

# Of one owner, by number, the run that each unwritten row is of, the row's id, and what is set when it is written.
_Unwritten = dict[int, tuple[str, str, anyio.Event]]


class Heard:
    """Rows that were accepted for writing.

    Attributes:
        awaited: whether somebody waits for them to be written.
    """

    def __init__(self) -> None:
        self._of_owner: dict[str, _Unwritten] = {}
        self._numbers = count()
        self.awaited = Awaited()

    def begin(self, owner_key: str, run_id: str, row_id: str = "") -> Callable[[], None]:
        """A row was accepted. Returns what is to be called when it is written, or never will be."""
        number, written = next(self._numbers), anyio.Event()
        self._of_owner.setdefault(owner_key, {})[number] = (run_id, row_id, written)

        def end() -> None:
            written.set()
            self._forget(owner_key, number)

        return end

    def visible(self, owner_key: str, row_id: str) -> None:
        """A row need not be waited for any more: whoever reads finds it elsewhere."""
        for number, (_, heard_id, written) in list(self._of_owner.get(owner_key, {}).items()):
            if heard_id == row_id:
                written.set()
                self._forget(owner_key, number)

    def any_of(self, owner_key: str, *, besides: str = "") -> bool:
        """Whether anything of the owner, but for rows of the run `besides`, is not written yet."""
        return any(run_id != besides for run_id, _, _ in self._of_owner.get(owner_key, {}).values())

    async def written(self, owner_key: str, seconds: float, *, besides: str = "") -> bool:
        """Wait until what has been accepted of the owner by now is written, but for rows of the run `besides`.

        Returns:
            False when that takes longer than so many seconds.
        """
        unwritten = self._of_owner.get(owner_key)
        events = [event for run_id, _, event in unwritten.values() if run_id != besides] if unwritten else []
        if not events:
            return True
        with self.awaited.awaiting(), anyio.move_on_after(seconds):
            for written in events:
                await written.wait()
        return all(written.is_set() for written in events)

    def _forget(self, owner_key: str, number: int) -> None:
        unwritten = self._of_owner.get(owner_key)
        if unwritten and unwritten.pop(number, None) and not unwritten:
            del self._of_owner[owner_key]
