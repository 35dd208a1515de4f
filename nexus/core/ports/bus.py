"""The bus, the ledger of its requests, the outbox and the dead letters (contract §1.5, §1.6)."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message as it came.

    Attributes:
        topic: without prefix.
        entry: the id under which the bus keeps it; `""` on a bus that keeps nothing.
        sent_ms: when the bus took it, in milliseconds since 1970 by the bus's own clock; 0 where it does not say.
        deliveries: how often it has been handed out, this time included.
        shared: work that is handed to one replica at a time, until it is reported `done`.
        surplus: more is waiting than all replicas together may have waiting; this is to be refused.
    """

    topic: str
    payload: bytes
    entry: str = ""
    sent_ms: int = 0
    deliveries: int = 1
    shared: bool = False
    surplus: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """A topic with messages that are shared out among the replicas."""

    topic: str
    most: int  # how many one replica may have in hand at once, without those that are set aside
    aside: int = 0  # how many of all owners together may be set aside
    sheds: bool = False  # messages that wait beyond `most` for all replicas are handed out as `surplus`


class Bus(Protocol):
    """Topics that carry bytes.

    Two kinds of bus keep this promise to a different degree (contract §1.5):

    - One that keeps nothing (`pubsub`, `memory`): at most once. What is published while a subscriber reconnects does
      not reach it; every consumer receives everything. A subscriber that reads too slowly loses messages.
    - One that keeps messages (`streams`): at least once. A message that was accepted is handed out until one replica
      has reported it `done`; what a replica had in hand when it died goes to another.

    On both:

    - Order: what one publisher sends to one topic arrives in that order, except for what is handed out again.
    - A subscriber reconnects by itself, also from a half-open connection. `Subscription.reconnects` counts how often.
    - A subscriber that reads too slowly does not slow down others.
    - Errors: `BusUnavailableError`, and nothing else. A failed `publish` may or may not have been received. An error
      raised in the context of a subscription leaves it unchanged.
    """

    async def publish(self, topic: str, payload: bytes, *, once: str = "") -> int:
        """Send `payload`. Returns how many subscribers of the whole bus received it; 0 for none.

        A bus that keeps messages takes what is sent under the name `once` once only, and returns 1.
        """

    def subscribe(self, *topics: str) -> AbstractAsyncContextManager["Subscription"]:
        """Receive everything on `topics` for as long as the context lasts. In force when the context is entered."""

    def consume(self, work: Sequence[Work], news: Sequence[str] = ()) -> AbstractAsyncContextManager["Subscription"]:
        """Take part in the `work` of a service, and receive its `news`, for as long as the context lasts.

        On a bus that keeps messages each message of `work` goes to one replica, `shared`, which has it in hand until it
        is `done`; what is left undone at the end of the context goes to another. News reach every replica.
        """

    async def is_read(self, topic: str) -> bool | None:
        """False where messages of `topic` wait and no service has read for ten seconds; None where it is unknown."""

    def set_aside(self, delivery: Delivery, *, aside: bool) -> None:
        """Let others be handed out while this delivery waits for its turn or its refusal; or count it in hand again."""

    def done(self, delivery: Delivery) -> None:
        """Let the bus know, soon, that this delivery need not be handed out again. Never waits."""


class Subscription(Protocol):
    """Deliveries in the order in which they arrived. Iterating ends by `stop`, by an error or with its context."""

    # How often the connection was opened anew.
    reconnects: int

    @property
    def backlogs(self) -> Mapping[str, int]:
        """How many messages of work no replica has been given yet, by topic, as of some seconds ago; else `{}`."""

    @property
    def silent_s(self) -> float:
        """Seconds since the last sign of life from the bus, its own heartbeats included, on the most silent connection.

        Infinite where the connection is known to be lost.
        """

    async def stop(self) -> None:
        """Take in nothing more. Iterating ends after what had arrived until then."""

    def __aiter__(self) -> AsyncIterator[Delivery]: ...


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A recorded row that the document store has not taken yet.

    The outbox holds one row of an owner under an id, the first. It does not read the content.
    """

    owner_key: str
    id: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Acquired:
    """The request is the caller's to answer until its lease runs out.

    Attributes:
        now_ms: the time at the ledger, in milliseconds since 1970: the one clock that all replicas share.
        attempts: how often the request has been acquired without being answered, this time included.
        asked_ms: when the first delivery of the request arrived, by the same clock; 0 where that is not known.
        outbox_waiting: the outbox holds rows of some owner.
    """

    key: str
    fingerprint: str
    token: str
    now_ms: int
    attempts: int = 1
    asked_ms: int = 0
    outbox_waiting: bool = False


@dataclass(frozen=True, slots=True)
class Busy:
    """Another replica holds the request."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The request has this answer, which the caller is to announce again."""

    topic: str
    answer: bytes


@dataclass(frozen=True, slots=True)
class Announced:
    """The request has an answer that was announced a moment ago: nothing is left to do."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """The key belongs to another payload."""


Claim = Acquired | Busy | Answered | Announced | Conflict


class RequestLedger(Protocol):
    """Which replica answers a request, and what was answered (contract §1.5).

    - Of any number of claims of one key, one is `Acquired` at a time; a second only after the lease has run out or was
      released, or the kept answer has expired.
    - `conclude` keeps the answer, publishes it and, on a bus that keeps messages, acknowledges the delivery, in one
      step. The first one wins; every later one returns None and publishes nothing, so a key has one effective answer.
    - A key without an answer is known for ten minutes after its last lease, with its attempts.
    - Every operation may be repeated after an error: the effect is that of doing it once.
    - Errors: `BusUnavailableError`, and nothing else.
    """

    async def claim(self, key: str, fingerprint: str, lease_ms: int, waited_ms: int = 0) -> Claim:
        """Ask for the request `key` with a payload of this `fingerprint`, which arrived `waited_ms` ago.

        `Announced` is the reply to a delivery that arrived before the answer was last announced, or within a second
        after it.
        """

    async def renew(self, claim: Acquired, lease_ms: int) -> bool:
        """Hold the request for another `lease_ms`. False when it is no longer the caller's."""

    async def conclude(  # noqa: PLR0917  # of a request, its answer, and what is done in the same step
        self,
        claim: Acquired,
        topic: str,
        answer: bytes,
        keep_ms: int,
        delivery: Delivery | None = None,
        outbox: OutboxRow | None = None,
    ) -> int | None:
        """Publish `answer` on `topic` and keep it for `keep_ms`; acknowledge `delivery`, which brought the request.

        A row for the `outbox` is put there in the same step. Returns how many subscribers received the answer, as for
        `Bus.publish`; None when the request has an answer already.

        Raises:
            OutboxFullError: the outbox takes no more rows; all else is done.
        """

    async def release(self, claim: Acquired) -> None:
        """Give the request back unanswered. The attempt does not count."""

    async def keep_first(self, key: str, value: bytes, keep_ms: int) -> bytes:
        """Keep `value` under `key` unless something is kept there; returns what is kept."""

    async def kept(self, key: str) -> bytes | None:
        """What `keep_first` keeps under `key`; None when nothing, or no longer."""


class Outbox(Protocol):
    """Recorded rows that the document store has not taken yet, put there by `RequestLedger.conclude`.

    - A row stays until it is removed; its content never changes.
    - Bounded in number and bytes: see `conclude`.
    - Every operation may be repeated after an error.
    - Errors: `BusUnavailableError`, and nothing else.
    """

    async def of_owner(self, owner_key: str) -> list[OutboxRow]:
        """The rows of one owner, in no order."""

    async def oldest(self, limit: int, offset: int = 0) -> list[OutboxRow]:
        """Up to `limit` rows of all owners, those that have waited longest first, after the first `offset` rows."""

    async def count(self) -> int:
        """How many rows there are, of all owners."""

    async def remove(self, rows: Sequence[OutboxRow]) -> None:
        """Take rows out. Rows that are not there are ignored."""


_LAST_SECOND: Final = int(datetime.max.replace(tzinfo=UTC).timestamp()) - 1


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that could not be used (contract §1.6).

    Attributes:
        topic: without prefix.
        reason: why it could not be used; no content.
        sha256, size: of its bytes.
        message_id: where it could be read.
        body: the bytes, only where settings allow them to be kept.
        letter_id: the id it is kept under; `""` before it is.
        at_ms: when it was kept, in milliseconds since 1970 by the bus's clock; 0 before it is.
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

    @property
    def at(self) -> datetime:
        """When it was kept. Any client may write an id: one beyond the calendar is the calendar's end."""
        return datetime.fromtimestamp(min(self.at_ms // 1_000, _LAST_SECOND), UTC)


class DeadLetters(Protocol):
    """Messages that could not be used, at most `bus.dead_letter_max` of them; the oldest make room.

    Errors: `BusUnavailableError`, and nothing else.
    """

    async def keep(self, letter: DeadLetter) -> None:
        """Keep a dead letter. The same bytes for the same reason within a minute are one letter."""

    async def count(self) -> int:
        """How many there are."""

    async def newest(self, limit: int, *, before: str = "") -> list[DeadLetter]:
        """Up to `limit` letters, newest first; those older than the letter `before`, where it is given."""

    async def find(self, letter_id: str) -> DeadLetter | None:
        """The letter with that id."""

    async def drop(self, letter_id: str) -> bool:
        """Remove a letter; the same bytes become a letter again from now on. False when there is none of that id."""

    async def drop_before(self, before: datetime) -> int:
        """Remove the letters that were kept before then. Returns how many."""

    async def expect_again(self, letter: DeadLetter) -> None:
        """Let the same bytes become a letter of their own at once. For a letter that is sent again."""

    async def forget_answer(self, key: str) -> None:
        """Let the request `key` be answered anew, and be taken once more by a bus that took it under that name.

        For a letter that is sent again.
        """
