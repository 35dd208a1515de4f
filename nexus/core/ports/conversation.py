"""The conversation, as a build records it and reads it back."""

from dataclasses import dataclass
from typing import Protocol

from nexus.core.models import Message
from nexus.core.ports.bus import OutboxRow
from nexus.core.ports.rows import Row
from nexus.core.ports.store import RunOrigin
from nexus.core.working_memory import WHOLE, Tail


@dataclass(frozen=True, slots=True)
class Past:
    """Rows of one owner, newest first, enough for the messages that were asked for.

    Attributes:
        stopped_early: reading ended at a limit although more could have been needed.
        complete: every row of the owner that this process accepted before is among what was read.
    """

    rows: list[Row]
    stopped_early: bool = False
    complete: bool = True


class Cutoff(Protocol):
    """The row up to which a history goes."""

    def includes(self, row: Row) -> bool:
        """Whether the row is part of the history."""
        ...


class Conversation(Protocol):
    """The persistence service, as the builder uses it.

    - A build finds every row that was acknowledged before its request was sent: an input by its answer, a result by its
      being settled. It waits a moment for results that this process has accepted and not written yet; where that is not
      enough, the past is not `complete`.
    - Where a claim says that the outbox holds rows, those of the owner are read from it before the store is read.
    - Errors: `StoreUnavailableError` where the store, or the outbox, did not answer.
    """

    def remember_run(self, owner_key: str, run_id: str, origin: RunOrigin) -> None:
        """Keep the origin of a run in this process: its results may come before its input is written."""
        ...

    async def begin_run(self, owner_key: str, run_id: str, origin: RunOrigin, keep_ms: int) -> RunOrigin:
        """Keep the origin of a run that is asked for, for all replicas. Returns that of the first request for it."""
        ...

    def input_row(self, message: Message, text: str, origin: RunOrigin) -> Row:
        """The row of a run's human input, with its `_id`, and with a time that is not later than now."""
        ...

    async def insert_input(self, row: Row, *, outbox_waiting: bool = False) -> None:
        """Return when the store has the row; the caller sets the deadline.

        Args:
            row: as `input_row` made it.
            outbox_waiting: the outbox holds rows, of which one may be the input, from an earlier request of the run.

        Raises:
            StoreUnavailableError: it is not known whether the store has it.
            StoreRejectedError: the store will never accept it.
        """
        ...

    def outbox_row(self, row: Row) -> OutboxRow:
        """The row as the outbox keeps it until the store takes it."""
        ...

    async def get_past(
        self,
        owner_key: str,
        *,
        messages: int,
        excerpt_chars: int,
        asked: Message,
        continued: bool = False,
        outbox_waiting: bool = False,
    ) -> Past:
        """Rows enough for `messages` messages of the memory, every run among them whole.

        Args:
            owner_key: the owner.
            messages: how many messages after merging.
            excerpt_chars: contents longer than twice this may come without their middle.
            asked: the human input of the run that asks. What was stored after it, if it has been, is left out.
            continued: the run was begun earlier.
            outbox_waiting: the outbox holds rows, of which some may be the owner's.
        """
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
            owner_key: the owner.
            origin: which session, and for which agent.
            messages: rows at most.
            asked: as for `get_past`.
            until: where the history ends, where that is known better.
            tail: which rows are under no compaction; others are not read.
            continued: as for `get_past`.
            outbox_waiting: as for `get_past`.
        """
        ...
