"""What passes on the bus, recorded and read back: what the builder needs of it."""

from dataclasses import dataclass
from typing import Protocol

import anyio

from nexus.core.models import Message
from nexus.core.ports.rows import Row
from nexus.core.ports.stores import RunOrigin
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


class Conversation(Protocol):
    """What the builder needs of the persistence service."""

    def remember_run(self, owner_key: str, run_id: str, origin: RunOrigin) -> None:
        """Know where a run belongs that was heard of, whose results may come before its input is written."""
        ...

    async def begin_run(self, owner_key: str, run_id: str, origin: RunOrigin, keep_ms: int) -> RunOrigin:
        """Say where a run belongs that is asked for, for so long. Returns what the first has said who asked for it."""
        ...

    def offer_input(self, message: Message, text: str, origin: RunOrigin) -> anyio.Event | None:
        """Accept a run's input for recording. The event is set when it is written; None when it is refused."""
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

        Raises:
            StoreUnavailableError: the store did not answer.
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
    ) -> Past:
        """Rows enough for `messages` messages of the memory, every run among them whole.

        Args:
            owner_key: whose.
            messages: how many messages after merging.
            excerpt_chars: contents longer than twice this may come without their middle.
            asked: as for `get_session`.
            continued: as for `get_session`.

        Raises:
            StoreUnavailableError: the store did not answer.
        """
        ...
