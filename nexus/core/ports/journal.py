"""What is recorded and not yet in the store, and how recent what is known of an owner is (CONTRACT §1.5, §2).

An answer does not wait until the input of its run is stored. The input is put into the journal in the same step in
which the answer is published, and written to the store in the background. Whoever reads an owner's history adds what
the journal holds of it, so that a run that is asked for next, of whichever replica, has it.

The version of an owner is a number that grows with everything that is recorded of that owner, by whichever replica.
While it stays what it was, so does the history.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

# Of one owner at most: a claim carries all of them.
MOST_JOURNALED: Final = 64
# Stands for an answer, which need not come twice.
THE_ANSWER: Final = b"="
# Claims carry what the journal holds, so what is longer is written before its answer is given.
LONGEST_JOURNALED: Final = 16_000


@dataclass(frozen=True, slots=True)
class Look:
    """What whoever claims a request wants to know of its owner, in the same step.

    Attributes:
        owner_key: whose.
        kept: what `keep_first` may have kept under this key; `""` for nothing.
        version: the version that the caller knows.
    """

    owner_key: str
    kept: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """How things were with an owner at one moment.

    Attributes:
        version: at that moment.
        quiet_us: for how many microseconds it had been that.
        rows: what the journal held; None where that was not told, because the version is the one that the caller
            knows.
        kept: what was kept under the key; None for nothing.
        waiting: how many rows the journal held.
    """

    version: str
    quiet_us: int = 0
    rows: tuple[bytes, ...] | None = ()
    kept: bytes | None = None
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class StoreRead:
    """Of what an answer was made, where no version of the owner was known: of what the store had, and of the journal.

    Attributes:
        began_at: when the store began to be read, in seconds by the monotonic clock of this machine.
        lasts_us: for how many microseconds a row stays in the journal when the store has it.
        journaled: the ids of the rows of the journal of which it was made too.
    """

    began_at: float
    lasts_us: int
    journaled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JournalRow:
    """A row for the journal.

    Attributes:
        owner_key: whose.
        id: that of the row; the journal has one row with it.
        content: the row as bytes, which the journal does not look into.
    """

    owner_key: str
    id: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Ending:
    """What happens in one step with an answer's being published.

    Attributes:
        row: is put into the journal, and the version moves with it.
        kept_key, kept, keep_ms: is kept as `keep_first` would; nothing of all that happens where something else is kept
            already. `b""` for nothing, `THE_ANSWER` for the answer itself.
    """

    row: JournalRow | None = None
    kept_key: str = ""
    kept: bytes = b""
    keep_ms: int = 0

    def kept_with(self, answer: bytes) -> bytes:
        """What is kept where this is the answer."""
        return answer if self.kept == THE_ANSWER else self.kept


@dataclass(frozen=True, slots=True)
class Moved:
    """The version of an owner, before and after one row; `""` where that is not known."""

    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class Concluded:
    """A request is finished.

    Attributes:
        heard: how many heard the answer, as for `Bus.publish`.
        moved: where a row was journaled.
    """

    heard: int
    moved: Moved = Moved()


@dataclass(frozen=True, slots=True)
class KeptBefore:
    """Nothing has happened, because this was kept under the key already."""

    kept: bytes


class Journal(Protocol):
    """Rows on their way to the store, and the versions of owners.

    - A row is put there by `RequestLedger.conclude`, and stays until `written` says that the store has it.
    - Every operation may be repeated after an error: its effect is that of doing it once, or for `moved`, harmless.
    - Errors: `BusUnavailableError`, and nothing else.
    """

    @property
    def epoch(self) -> int:
        """Grows whenever a version that was told may be one that Redis knows no more: with each new connection."""
        ...

    async def standing(self, look: Look) -> Standing:
        """How things are with an owner now."""
        ...

    async def moved(self, owner_key: str, row_id: str) -> Moved:
        """Have the version move because of a row that is in the store now. Once for each row, if they come in a row."""
        ...

    async def written(self, rows: Sequence[JournalRow]) -> None:
        """Take rows out that the store has. The versions do not move: what there is to be read is the same."""
        ...

    async def unwritten(self, older_than_ms: int, limit: int) -> list[bytes]:
        """Up to `limit` rows that have been in the journal for so long: those who should have written them are gone."""
        ...
