"""A run's input between its being offered for recording and its being in the store (CONTRACT §2).

One that goes into the journal with the answer is written after that, together with others: before, writing would only
be in the way of the answer. Any other is written while the context is built, and then the version of its owner moves as
it does for every row. So does that of an input of which no answer comes.
"""

import anyio

from nexus.core.models import utc_now
from nexus.core.ports import LONGEST_JOURNALED, JournalRow, Moved, Row
from nexus.core.row_ids import new_row_id
from nexus.services.journaling import Journaling, journal_row
from nexus.services.recording import Recorder
from nexus.services.rows import said_at


class OfferedInput:
    """An input that is to be recorded.

    Args:
        row: as it is recorded.
        journaling: None where there is no journal.
        recorder: writes it.
    """

    def __init__(self, row: Row, journaling: Journaling | None, recorder: Recorder) -> None:
        self._row = row
        self._journaling = journaling
        self._recorder = recorder
        self._accepted = False
        self._is_written = False
        # Set when it is, once somebody waits for that.
        self._written: anyio.Event | None = None
        self._journaled: JournalRow | None = None
        self._given_up = False
        self._moved = False

    def offer(self) -> bool:
        """Have it written. False when too much is waiting already; once accepted, it stays so."""
        return self._offer(journaled=False)

    def for_journal(self) -> JournalRow | None:
        """What is to be put there with the answer; None for an input that is not."""
        fits = self._journaling and len(self._row["content"]) <= LONGEST_JOURNALED
        return journal_row(self._row) if fits else None

    def journaled(self, row: JournalRow, moved: Moved) -> None:
        """It was put into the journal."""
        if self._journaling is None:
            return
        self._journaled = row
        # One that there is no room for now is written by whoever finds it there.
        in_hand = self._offer(journaled=True)
        self._journaling.put(row, self._row, moved, in_hand=in_hand)
        if self._is_written:
            self._journaling.written(row)

    def not_journaled(self) -> bool:
        """It will not be. False when it is not written either."""
        accepted = self.offer()
        self._given_up = True
        if self._is_written:
            self._move()
        return accepted

    def written(self) -> None:
        """The store has it, or never will."""
        self._is_written = True
        if self._written:
            self._written.set()
        if self._journaling and self._journaled:
            self._journaling.written(self._journaled)
        elif self._given_up:
            self._move()

    async def wait(self) -> None:
        """Return when the store has it and its owner's version has moved: whoever asks after the answer finds it."""
        if not self._is_written:
            self._written = self._written or anyio.Event()
            with self._recorder.heard.awaited.awaiting():
                await self._written.wait()
        if self._journaling and not self._moved:
            await self._journaling.move(self._row["owner_key"], [self._row])
            self._moved = True

    def _offer(self, *, journaled: bool) -> bool:
        if not self._accepted:
            row = self._row
            self._accepted = self._recorder.offer(row, len(row["content"]), self.written, journaled=journaled)
        return self._accepted

    def _move(self) -> None:
        if self._journaling and not self._moved:
            self._journaling.move_later(self._row)


def input_of(recorder: Recorder, journaling: Journaling | None, row: Row) -> OfferedInput:
    """An input that is to be recorded, and counts as said now."""
    # As the recorder does, which may hear of it only when the journal has it.
    row["timestamp"] = said_at(row["timestamp"], utc_now())
    row["_id"] = new_row_id()
    return OfferedInput(row, journaling, recorder)
