"""Messages that could not be used (CONTRACT §1.6)."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that could not be used (CONTRACT §1.6).

    Attributes:
        topic: where it came from, without prefix.
        reason: why it could not be used; no content.
        sha256, size: of its bytes.
        deliveries: how often it had been handed out.
        message_id: the id of the message, where it could be read.
        body: the bytes, only where settings allow them to be kept.
        letter_id: under which it is kept; `""` before it is.
        at_ms: when it was buried, in milliseconds since 1970 by the bus's clock; 0 before it is.
    """

    topic: str
    reason: str
    sha256: str
    size: int
    deliveries: int = 1
    message_id: str = ""
    body: bytes | None = None
    letter_id: str = ""
    at_ms: int = 0


class DeadLetters(Protocol):
    """Messages that could not be used, newest last, at most `bus.dead_letter_max` of them.

    Errors: `BusUnavailableError`, and nothing else.
    """

    async def bury(self, letter: DeadLetter) -> None:
        """Keep a dead letter. The same bytes for the same reason within a minute are one letter."""
        ...

    async def count(self) -> int:
        """How many there are."""
        ...

    async def newest(self, limit: int, *, before: str = "") -> list[DeadLetter]:
        """Up to `limit` letters, newest first; those older than the letter `before`, where it is given."""
        ...

    async def find(self, letter_id: str) -> DeadLetter | None:
        """The letter with that id."""
        ...

    async def drop(self, letter_id: str) -> bool:
        """Remove a letter; the same bytes become a letter again from now on. False when there is none of that id."""
        ...

    async def expect_again(self, letter: DeadLetter) -> None:
        """Let the same bytes become a letter of their own at once. For a letter that is sent again."""
        ...

    async def forget_answer(self, key: str) -> None:
        """Let the request `key` be answered anew, as if it had never been asked. For a letter that is sent again."""
        ...
