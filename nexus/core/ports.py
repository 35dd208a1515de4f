"""What the services need from the outside, each with its guarantees.

Adapters keep the guarantees; the tests under `tests/nexus/contract` check them on every adapter.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import anyio

from nexus.core.models import Message

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message as it came: the topic without prefix, and the bytes."""

    topic: str
    payload: bytes


class Bus(Protocol):
    """Topics that carry bytes to everybody who listens.

    - Order: what one publisher sends to one topic arrives in that order, or not at all.
    - Loss: at most once. What is published while a subscriber reconnects does not reach it; the subscriber reconnects
      by itself, also from a connection that is open at one end only. `Subscription.reconnects` counts how often it did.
    - A subscriber that reads too slowly holds nobody else up. It loses what the bus cannot keep for it.
    - Errors: `BusUnavailableError`, and nothing else. A failed `publish` may or may not have been heard. What is raised
      in the context of a subscription leaves it as it is.
    """

    async def publish(self, topic: str, payload: bytes) -> int:
        """Send `payload` once. Returns how many subscribers of the whole bus it was handed to; 0 means nobody heard."""
        ...

    def subscribe(self, *topics: str) -> AbstractAsyncContextManager["Subscription"]:
        """Listen to `topics` for as long as the context lasts. When it is entered, the subscription is in force."""
        ...


class Subscription(Protocol):
    """Deliveries in the order in which they arrived. Iterating ends by `stop`, by an error or with its context."""

    reconnects: int

    async def stop(self) -> None:
        """Take in nothing more. Iterating ends after what had arrived until then."""
        ...

    def __aiter__(self) -> AsyncIterator[Delivery]: ...


@dataclass(frozen=True, slots=True)
class Acquired:
    """The request is the caller's to answer until its lease runs out.

    Attributes:
        key, fingerprint, token: what `renew`, `finish` and `release` need.
        now_ms: the time at the ledger, in milliseconds since 1970: the one clock that all replicas share.
    """

    key: str
    fingerprint: str
    token: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class Busy:
    """Another replica is at it."""


@dataclass(frozen=True, slots=True)
class Answered:
    """It has been answered, and this is the answer."""

    topic: str
    answer: bytes


@dataclass(frozen=True, slots=True)
class Conflict:
    """The key belongs to another payload."""


Claim = Acquired | Busy | Answered | Conflict


class RequestLedger(Protocol):
    """Who answers a request, and what was answered (CONTRACT §1.5).

    - Of any number of `begin`s with one key, one is `Acquired` at a time; a second only after the lease has run out,
      was released, or the kept answer has expired.
    - `finish` keeps the answer and publishes it in one step. The first one wins; every later one returns False and does
      nothing, so that a key has one effective answer.
    - Every operation may be repeated after an error: its effect is that of doing it once.
    - Errors: `BusUnavailableError`, and nothing else.
    """

    async def begin(self, key: str, fingerprint: str, lease_ms: int) -> Claim:
        """Ask for the request `key`, whose payload has this `fingerprint`."""
        ...

    async def renew(self, claim: Acquired, lease_ms: int) -> bool:
        """Hold the request for another `lease_ms`. False when it is no longer the caller's."""
        ...

    async def finish(self, claim: Acquired, topic: str, answer: bytes, keep_ms: int) -> bool:
        """Publish `answer` on `topic` and keep it for `keep_ms`. False when the request has an answer already."""
        ...

    async def release(self, claim: Acquired) -> None:
        """Give the request back unanswered."""
        ...

    async def keep_first(self, key: str, value: bytes, keep_ms: int) -> bytes:
        """Keep `value` under `key` unless something is kept there; returns what is kept."""
        ...

    async def kept(self, key: str) -> bytes | None:
        """What `keep_first` keeps under `key`; None when nothing, or no longer."""
        ...

    async def bury(self, letter: "DeadLetter") -> None:
        """Keep a dead letter. The same bytes for the same reason within a minute are one letter."""
        ...


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that could not be used (CONTRACT §1.6).

    Attributes:
        body: the bytes, only where settings allow them to be kept.
    """

    topic: str
    reason: str
    sha256: str
    size: int
    deliveries: int = 1
    body: bytes | None = None


class MessageStore(Protocol):
    """Recorded messages (CONTRACT §2). Rows are plain dictionaries.

    - `_id` is a text that grows with the time of storing, to the second where several replicas write.
    - Every read names an owner and returns rows of that owner only.
    - Errors: `StoreUnavailableError`, within the store's time limit; `StoreRejectedError` for a row it cannot keep.
    """

    async def insert_message(self, row: Row) -> bool:
        """Record a row. False, and no change, when its owner has a row with that `id`."""
        ...

    async def newest_messages(
        self, owner_key: str, *, limit: int, skip: int = 0, excerpt_chars: int | None = None
    ) -> list[Row]:
        """Up to `limit` rows after the newest `skip`, newest first, of any role but tools, system and commands.

        Args:
            owner_key: whose.
            limit: rows at most.
            skip: rows that are passed over, because they were read before.
            excerpt_chars: leave out the middle of contents longer than twice this; of metadata, tool calls suffice.
        """
        ...

    async def all_messages(self, owner_key: str, *, limit: int) -> list[Row]:
        """Up to `limit` rows of every role, whole, newest first."""
        ...

    async def messages_of_runs(
        self, owner_key: str, run_ids: Sequence[str], *, limit: int, excerpt_chars: int | None = None
    ) -> list[Row]:
        """Up to `limit` rows of these runs as `newest_messages` gives them, newest first."""
        ...

    async def find_message(self, owner_key: str, message_id: str) -> Row | None:
        """The row with that `id`, without its content."""
        ...

    async def session_of_run(self, owner_key: str, run_id: str) -> str | None:
        """The session in which the run's human input was recorded."""
        ...


@dataclass(frozen=True, slots=True)
class Past:
    """Rows of one owner, newest first, enough for the messages that were asked for.

    Attributes:
        stopped_early: reading ended at a limit although more could have been needed.
    """

    rows: list[Row]
    stopped_early: bool = False


class Conversation(Protocol):
    """What the builder needs of the persistence service."""

    def remember_session(self, owner_key: str, run_id: str, session_id: str) -> None:
        """Know the session of a run, whose results may come before its input is written."""
        ...

    def offer_input(self, message: Message, text: str, session_id: str) -> anyio.Event | None:
        """Accept a run's input for recording. The event is set when it is written; None when it is refused."""
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


class DocumentStore(Protocol):
    """Everything else that is kept: profiles, settings and tools. Errors as for `MessageStore`."""

    async def prepare(self) -> None:
        """Make the indexes that the promises rest on. May be repeated and run by many at once."""
        ...

    async def ping(self) -> None:
        """Return when the store answers."""
        ...

    async def find_identity(self, public_key: str) -> Row | None:
        """The identity with that public key."""
        ...

    async def find_configuration(self, environment: str) -> Row | None:
        """The `configurations` document of the environment."""
        ...

    async def put_tool(self, name: str, definition: Mapping[str, Any]) -> None:
        """Keep the definition, in place of one of that name."""
        ...

    async def delete_tool(self, name: str) -> bool:
        """Forget the definition; False when there was none."""
        ...

    async def list_tools(self) -> list[Row]:
        """The definitions that are kept, by name."""
        ...


class Store(MessageStore, DocumentStore, Protocol):
    """A whole document store, as an adapter is one."""
