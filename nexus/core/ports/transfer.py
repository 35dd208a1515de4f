"""Recorded messages as other stores can take them: JSON that says all of what is kept (CONTRACT §7)."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nexus.core.ports.rows import Row
from nexus.core.ports.stores import Store


@dataclass(frozen=True, slots=True)
class SpelledRow:
    """A recorded row, whatever wrote it.

    Attributes:
        row_id: its `_id` as a text, as compactions name it.
        document: all of it as JSON, `_id` included; what JSON has no word for is an object with a key like `$date`.
    """

    row_id: str
    document: Row


class TransferStore(Protocol):
    """Whole sessions of recorded messages, spelled as JSON, so that `kept(spelled(x))` is `x` for all that is kept.

    Errors: `StoreUnavailableError`, within the store's time limit; `StoreRejectedError` for what it cannot keep.
    """

    def spelled(self, value: Any) -> Any:
        """A value that the store gave, as JSON."""
        ...

    def unspelled(self, value: Any) -> Any:
        """What `spelled` was given.

        Raises:
            ValueError: it gives no such JSON; says what is wrong.
        """
        ...

    def checked(self, document: Row) -> SpelledRow:
        """The row as it will be spelled once it is kept.

        Raises:
            ValueError: it cannot be kept; says what is wrong.
        """
        ...

    async def count_rows(self, owner_key: str, session_id: str) -> int:
        """How many rows a session has."""
        ...

    def rows(self, owner_key: str, session_id: str) -> AsyncGenerator[list[SpelledRow]]:
        """All rows of a session in the order of their `_id`s, in pages that are read as they are asked for."""
        ...

    async def is_taken(self, owner_key: str, session_id: str, row_ids: Sequence[Any]) -> bool:
        """Whether a row of another session or owner has one of these `_id`s, which are spelled."""
        ...

    async def recorded_in(self, owner_key: str, session_id: str, message_ids: Sequence[str]) -> str | None:
        """Another session of the owner in which a message with one of these `id`s is recorded; None for none."""
        ...

    async def insert_rows(self, documents: Sequence[Row]) -> int:
        """Keep these, in their order, up to the first whose `_id` or `id` is taken. Returns how many were kept."""
        ...

    async def delete_rows(self, owner_key: str, session_id: str) -> int:
        """Remove the rows of a session. Returns how many there were."""
        ...


class TransferableStore(Store, Protocol):
    """A whole document store from which sessions can be taken, and into which they can be put."""

    @property
    def transfer(self) -> TransferStore:
        """Recorded messages as other stores can take them."""
        ...
