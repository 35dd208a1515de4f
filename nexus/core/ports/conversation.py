"""What passes on the bus, recorded and read back: what the builder needs of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from nexus.core.models import Message
from nexus.core.ports.bus import OutboxRow
from nexus.core.ports.journal import JournalRow, Moved, Standing, StoreRead
from nexus.core.ports.rows import Row
from nexus.core.ports.store import RunOrigin
from nexus.core.working_memory import WHOLE, Tail


@dataclass(frozen=True, slots=True)
class Past:
    """Rows of one owner, newest first, enough for the messages that were asked for.

    Attributes:
        stopped_early: reading ended at a limit although more could have been needed.
        complete: everything of the owner that was heard before is among what was read.
    """

    rows: list[Row]
    stopped_early: bool = False
    complete: bool = True


class Cutoff(Protocol):
    """Up to which row a history goes."""

    def includes(self, row: Row) -> bool:
        """Whether the row is part of the history."""
        ...


class OfferedInput(Protocol):
    """A run's input on its way to the store."""

    def offer(self) -> bool:
        """Have it written now, and not when it is told what becomes of it. False when too much is waiting."""
        ...

    def for_journal(self) -> JournalRow | None:
        """What is to be put into the journal with the answer; None where the answer waits for the store instead."""
        ...

    def journaled(self, row: JournalRow, moved: Moved) -> None:
        """It was put there."""
        ...

    def not_journaled(self) -> bool:
        """It will not be. False when too much is waiting for it to be written."""
        ...

    async def wait(self) -> None:
        """Return when the store has it, or never will."""
        ...


class OwnersPast(Protocol):
    """One owner's past, for a run that has not been built before."""

    @property
    def version(self) -> str:
        """The version of the owner that is known already, with all that there was then; `""` for none."""
        ...

    @property
    def is_journaled(self) -> bool:
        """Whether inputs of the owner go into a journal, so that an answer need not wait for them."""
        ...

    @property
    def is_worth_reading_ahead(self) -> bool:
        """Whether a read that begins now is likely to be of use."""
        ...

    def kept(self) -> Past | None:
        """What was kept in memory: good if the owner's version is still `version`. None for what has to be read."""
        ...

    def shown(self, moved: Moved | None) -> None:
        """What was given last has been shown, with this move of the owner's version; None where it is not known."""
        ...

    async def read_ahead(self) -> None:
        """Read what the store has, before the request is claimed or meanwhile. What fails, fails in `get`."""
        ...

    def as_read(self) -> Past | None:
        """What was read ahead: good if all that `read` tells holds. None for what has to be looked at once more."""
        ...

    @property
    def read(self) -> StoreRead | None:
        """Of what the past was made that was given last; None where that is known by its version."""
        ...

    def claimed(self) -> None:
        """The request has been claimed: now."""
        ...

    def at_hand(self, standing: Standing | None) -> Past | None:
        """What `get` would return, if nothing has to be read or waited for; else None."""
        ...

    async def get(self, standing: Standing | None) -> Past:
        """The past, given how things were with the owner when the request was claimed; None where nobody can tell.

        Raises:
            StoreUnavailableError: the store did not answer.
        """
        ...


class Conversation(Protocol):
    """What the builder needs of the persistence service."""

    def remember_run(self, owner_key: str, run_id: str, origin: RunOrigin) -> None:
        """Know where a run belongs that was heard of, whose results may come before its input is written."""
        ...

    async def begin_run(self, owner_key: str, run_id: str, origin: RunOrigin, keep_ms: int) -> RunOrigin:
        """Say where a run belongs that is asked for, for so long. Returns what the first has said who asked for it."""
        ...

    def input_row(self, message: Message, text: str, origin: RunOrigin) -> Row:
        """The row of a run's human input, with its `_id`, and with a time that is not later than now."""
        ...

    async def insert_input(self, row: Row) -> None:
        """Return when the store has the row; the caller sets the deadline.

        Raises:
            StoreUnavailableError: it is not known whether the store has it.
            StoreRejectedError: the store will never accept it.
        """
        ...

    def outbox_row(self, row: Row) -> OutboxRow:
        """The row as the outbox keeps it until the store takes it."""
        ...

    def input_of(self, message: Message, text: str, origin: RunOrigin) -> OfferedInput:
        """A run's input, to be recorded."""
        ...

    def past(self, owner_key: str, *, messages: int, excerpt_chars: int, asked: Message) -> OwnersPast:
        """The past for a run that has not been built before; arguments as for `get_past`."""
        ...

    async def write_journal(self, contents: Sequence[bytes]) -> bool:
        """Write what the journal holds, for a reader who looks into the store alone. False if not in time."""
        ...

    async def get_session(
        self,
        owner_key: str,
        origin: RunOrigin,
        *,
        messages: int,
        asked: Message,
        until: Cutoff | None = None,
        tail: Tail = WHOLE,
        continued: bool = False,
        outbox_waiting: bool = False,
    ) -> Past:
        """The newest rows of a session, whole, without those of the current run.

        Args:
            owner_key: whose.
            origin: which session, and for which agent.
            messages: rows at most.
            asked: the human input of the run that asks. What was stored after it, if it has been, is left out.
            until: where the history ends, where that is known better.
            tail: which rows are under no compaction; others are not read.
            continued: the run was begun earlier.
            outbox_waiting: the outbox holds rows, of which some may be the owner's: it is read before the store.

        Raises:
            StoreUnavailableError: the store, or the outbox, did not answer.
        """
        ...

    async def get_past(
        self,
        owner_key: str,
        *,
        messages: int,
        excerpt_chars: int,
        asked: Message,
        continued: bool = False,
        outbox_waiting: bool | None = None,
    ) -> Past:
        """Rows enough for `messages` messages of the memory, every run among them whole.

        Args:
            owner_key: whose.
            messages: how many messages after merging.
            excerpt_chars: contents longer than twice this may come without their middle.
            asked: as for `get_session`.
            continued: as for `get_session`.
            outbox_waiting: as for `get_session`; None: as long as the old way through the journal is used.

        Raises:
            StoreUnavailableError: the store, or the outbox, did not answer.
        """
        ...
