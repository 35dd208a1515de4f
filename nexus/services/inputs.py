"""A run's input between its being offered for recording and its being in the store (CONTRACT §2).

It is written while the context is built. What becomes known first, that it is in the store or that it is in the
journal, is chance; once both are known it is taken out of the journal. An input of which no answer comes is in the
store alone, and then the version of its owner moves as it does for any other row.
"""

from typing import Final

import anyio

from nexus.core.ports import JournalRow, Moved, Row
from nexus.core.row_ids import new_row_id
from nexus.services.heard import Heard
from nexus.services.journaling import Journaling, journal_row
from nexus.services.recording import Recorder
from nexus.services.rows import as_stored

# Claims carry what the journal holds, so what is longer is written before its answer is given.
_LONGEST: Final = 16_000


class OfferedInput:
    """An input that was accepted for recording.

    Args:
        row: as it is recorded.
        journaling: None where there is no journal.
        heard: where it is told that somebody waits.
    """

    def __init__(self, row: Row, journaling: Journaling | None, heard: Heard) -> None:
        self._row = row
        self._journaling = journaling
        self._heard = heard
        self._written = anyio.Event()
        self._journaled: JournalRow | None = None
        self._given_up = False
        self._moved = False

    def for_journal(self) -> JournalRow | None:
        """What is to be put there with the answer; None for an input that is not."""
        fits = self._journaling and len(self._row["content"]) <= _LONGEST
        return journal_row(as_stored(self._row)) if fits else None

    def journaled(self, row: JournalRow, moved: Moved) -> None:
        """It was put into the journal."""
        if self._journaling is None:
            return
        self._journaled = row
        self._journaling.put(row, as_stored(self._row), moved)
        if self._written.is_set():
            self._journaling.written(row)

    def not_journaled(self) -> None:
        """It will not be."""
        self._given_up = True
        if self._written.is_set():
            self._move()

    def written(self) -> None:
        """The store has it, or never will."""
        self._written.set()
        if self._journaling and self._journaled:
            self._journaling.written(self._journaled)
        elif self._given_up:
            self._move()

    async def wait(self) -> None:
        """Return when the store has it and its owner's version has moved: whoever asks after the answer finds it."""
        with self._heard.awaited.awaiting():
            await self._written.wait()
        if self._journaling and not self._moved:
            row = as_stored(self._row)
            await self._journaling.move(row["owner_key"], [row])
            self._moved = True

    def _move(self) -> None:
        if self._journaling and not self._moved:
            self._journaling.move_later(as_stored(self._row))


def offer_input(recorder: Recorder, journaling: Journaling | None, row: Row) -> OfferedInput | None:
    """Have an input recorded; None when too much is waiting already."""
    row["_id"] = new_row_id()
    offered = OfferedInput(row, journaling, recorder.heard)
    accepted = recorder.offer(row, len(row["content"]), offered.written)
    return offered if accepted else None
