"""What the services need from the outside, each with its guarantees.

Adapters keep the guarantees; the tests under `tests/nexus/contract` check them on every adapter.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import anyio

from nexus.core.models import Message

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message as it came.

    Attributes:
        topic: without prefix.
        payload: the bytes.
        entry: under which the bus keeps it; `""` on a bus that keeps nothing.
        sent_ms: when the bus took it, in milliseconds since 1970 by the bus's own clock; 0 where it does not say.
        deliveries: how often it has been handed out, this time included.
        shared: a piece of work of which one replica has charge, until it reports it `done`.
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
    """A topic whose messages are shared out among the replicas.

    Attributes:
        most: how many may be in the hands of one replica at once.
        sheds: when more than `most` are waiting for all of them, what is above is handed out as `surplus`.
    """

    topic: str
    most: int
    sheds: bool = False


class Bus(Protocol):
    """Topics that carry bytes.

    Two kinds of bus keep this promise to a different degree (CONTRACT §1.5):

    - One that keeps nothing (`pubsub`, `memory`): at most once. What is published while a subscriber reconnects does
      not reach it; everybody who consumes hears everything. A subscriber that reads too slowly loses messages.
    - One that keeps messages (`streams`): at least once. A message that was accepted is handed out until one replica
      has reported it `done`; what a replica had in hand when it died goes to another.

    On both:

    - Order: what one publisher sends to one topic arrives in that order, what is handed out again excepted.
    - A subscriber reconnects by itself, also from a connection that is open at one end only.
      `Subscription.reconnects` counts how often it did.
    - A subscriber that reads too slowly holds nobody else up.
    - Errors: `BusUnavailableError`, and nothing else. A failed `publish` may or may not have been heard. What is raised
      in the context of a subscription leaves it as it is.
    """

    async def publish(self, topic: str, payload: bytes, *, once: str = "") -> int:
        """Send `payload`. Returns how many subscribers of the whole bus it was handed to; 0 means nobody heard.

        Args:
            topic: to everybody who listens there.
            payload: the bytes.
            once: a bus that keeps messages takes what is sent under this name once only, so that sending it again does
                no harm, and returns 1.
        """
        ...

    def subscribe(self, *topics: str) -> AbstractAsyncContextManager["Subscription"]:
        """Hear everything on `topics` for as long as the context lasts. When it is entered, that is in force."""
        ...

    def consume(self, work: Sequence[Work], news: Sequence[str] = ()) -> AbstractAsyncContextManager["Subscription"]:
        """Take part in the `work` of a service, and hear its `news`, for as long as the context lasts.

        On a bus that keeps messages each piece of work goes to one replica, which has charge of it until it is `done`;
        it is then handed out `shared`. What it leaves undone at the end of the context goes to another. News reach
        every replica that is there.
        """
        ...

    def done(self, delivery: Delivery) -> None:
        """Have the bus know, soon, that this piece of work need not be handed out again. Never waits."""
        ...


class Subscription(Protocol):
    """Deliveries in the order in which they arrived. Iterating ends by `stop`, by an error or with its context.

    Attributes:
        reconnects: how often the connection was opened anew.
    """

    reconnects: int

    @property
    def backlogs(self) -> Mapping[str, int]:
        """How much work nobody has been given yet, by topic, as of some seconds ago; `{}` where nothing is kept."""
        ...

    @property
    def silent_s(self) -> float:
        """For how long nothing has been heard from the bus, its own signs of life included, where it is most silent.

        Infinite where the connection is known to be gone.
        """
        ...

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
        attempts: how often the request has been acquired without an answer coming of it, this time included.
        asked_ms: when the first of its deliveries arrived that anybody asked the ledger about, by the same clock; 0
            where that is not known.
    """

    key: str
    fingerprint: str
    token: str
    now_ms: int
    attempts: int = 1
    asked_ms: int = 0


@dataclass(frozen=True, slots=True)
class Busy:
    """Another replica is at it."""


@dataclass(frozen=True, slots=True)
class Answered:
    """It has been answered, and this is the answer, to be announced again by the caller."""

    topic: str
    answer: bytes


@dataclass(frozen=True, slots=True)
class Announced:
    """It has been answered, and the answer was announced a moment ago: nothing is left to do."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """The key belongs to another payload."""


Claim = Acquired | Busy | Answered | Announced | Conflict


class RequestLedger(Protocol):
    """Who answers a request, and what was answered (CONTRACT §1.5).

    - Of any number of `begin`s with one key, one is `Acquired` at a time; a second only after the lease has run out,
      was released, or the kept answer has expired.
    - `finish` keeps the answer, publishes it and, on a bus that keeps messages, reports the delivery done, in one step.
      The first one wins; every later one returns None and publishes nothing, so that a key has one effective answer.
    - A key without an answer is known for ten minutes after its last lease, with its attempts.
    - Every operation may be repeated after an error: its effect is that of doing it once.
    - Errors: `BusUnavailableError`, and nothing else.
    """

    async def begin(self, key: str, fingerprint: str, lease_ms: int, waited_ms: int = 0) -> Claim:
        """Ask for the request `key`, whose payload has this `fingerprint` and arrived `waited_ms` ago.

        What arrived before the answer was last announced, or less than a second after, is `Announced`.
        """
        ...

    async def renew(self, claim: Acquired, lease_ms: int) -> bool:
        """Hold the request for another `lease_ms`. False when it is no longer the caller's."""
        ...

    async def finish(
        self, claim: Acquired, topic: str, answer: bytes, keep_ms: int, delivery: Delivery | None = None
    ) -> int | None:
        """Publish `answer` on `topic` and keep it for `keep_ms`; `delivery`, which brought the request, is done.

        Returns:
            How many heard it, as for `Bus.publish`; None when the request has an answer already.
        """
        ...

    async def release(self, claim: Acquired) -> None:
        """Give the request back unanswered. The attempt does not count."""
        ...

    async def keep_first(self, key: str, value: bytes, keep_ms: int) -> bytes:
        """Keep `value` under `key` unless something is kept there; returns what is kept."""
        ...

    async def kept(self, key: str) -> bytes | None:
        """What `keep_first` keeps under `key`; None when nothing, or no longer."""
        ...


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


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """Where a run belongs.

    Attributes:
        sub_agent: the id of the sub-agent whose run it is, `""` for one without; None for the main agent's.
    """

    session_id: str
    sub_agent: str | None = None


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

        What is internal to a sub-agent (`metadata.sub_agent_internal: true`) is left out.

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

    async def session_messages(
        self, owner_key: str, session_id: str, *, limit: int, skip: int = 0, sub_agent: str | None = None
    ) -> list[Row]:
        """Up to `limit` rows of a session after the newest `skip`, whole, newest first, of any role.

        Args:
            owner_key: whose.
            session_id: of which session.
            limit: rows at most.
            skip: rows that are passed over, because they were read before.
            sub_agent: with what is internal to the sub-agent of this id or names nobody; None for nothing internal.
        """
        ...

    async def find_origin(self, owner_key: str, run_id: str) -> RunOrigin | None:
        """Where the run's first human input was recorded; None when it was not, or not in a session."""
        ...


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

    async def put_tool(self, name: str, definition: Mapping[str, Any] | None, said_at: datetime) -> bool:
        """Keep the definition, or for None that there is none, unless what is kept was said later than `said_at`.

        So the same messages in any order, however often, lead to the same tools. Returns whether it counts; times are
        compared to the millisecond.
        """
        ...

    async def list_tools(self) -> list[Row]:
        """The definitions that are kept, by name."""
        ...


class SessionStateStore(Protocol):
    """The states of sessions (CONTRACT §5), one document each. Errors as for `MessageStore`."""

    async def find_session_state(self, owner_key: str, session_id: str) -> Row | None:
        """The session's `document` and its `revision`, with `owner_key` and `session_id`; None when there is none."""
        ...

    async def put_session_state(
        self, owner_key: str, session_id: str, document: Mapping[str, Any], revision: int
    ) -> bool:
        """Keep the document in place of the one with that `revision`; 0 where there is none yet. It gets the next one.

        False, and no change, when another was kept in between.
        """
        ...


class Store(MessageStore, DocumentStore, SessionStateStore, Protocol):
    """A whole document store, as an adapter is one."""
