"""What passes on the bus, recorded and read back: what the builder needs of it."""

from dataclasses import dataclass
from typing import Protocol

import anyio

from nexus.core.models import Message
from nexus.core.ports.stores import Row, RunOrigin


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
        current_run_id: str,
        last_id: str | None = None,
        continued: Message | None = None,
    ) -> Past:
        """The newest rows of a session, whole, without those of the current run.

        Args:
            owner_key: whose.
            origin: which session, and for which agent.
            messages: rows at most.
            current_run_id: the run that asks.
            last_id: rows stored after the one with this `_id` are left out.
            continued: where `last_id` is not known, the human input of a run that was begun earlier, in its stead.

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
        current_run_id: str,
        continued: Message | None = None,
    ) -> Past:
        """Rows enough for `messages` messages of the memory, every run among them whole.

        Raises:
            StoreUnavailableError: the store did not answer.
        """
        ...
