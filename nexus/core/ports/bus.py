"""The bus: topics that carry bytes (CONTRACT §1.5)."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol


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

    def offer_first(self, take: Callable[[Delivery], bool]) -> None:
        """From now on, offer deliveries to `take`; what it returns True for is not iterated over.

        It is called in the step in which a delivery arrives, which need not be one of a task, and is to return at once.
        A bus may refrain from it, and does so while deliveries from before are waiting: the order stays.
        """
        ...

    def __aiter__(self) -> AsyncIterator[Delivery]: ...
