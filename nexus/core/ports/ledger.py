"""Who answers a request, and what was answered (CONTRACT §1.5)."""

from dataclasses import dataclass
from typing import Protocol

from nexus.core.ports.bus import Delivery
from nexus.core.ports.journal import Concluded, Ending, KeptBefore, Look, Standing, StoreRead


@dataclass(frozen=True, slots=True)
class Asking:
    """What is asked of the ledger.

    Attributes:
        key: the request.
        fingerprint: of its payload.
        lease_ms: for how long it is wanted.
        waited_ms: how long ago it arrived.
        look: at whom to look along the way.
    """

    key: str
    fingerprint: str
    lease_ms: int
    waited_ms: int = 0
    look: Look | None = None


@dataclass(frozen=True, slots=True)
class Answering:
    """An answer that was made before its request was claimed.

    Attributes:
        topic, answer, keep_ms, delivery, ending: as for `conclude`.
        within_ms: how long ago the request may have been asked.
        read: of what it was made; None where that was known by its version.
    """

    topic: str
    answer: bytes
    keep_ms: int
    delivery: Delivery | None
    ending: Ending
    within_ms: int
    read: StoreRead | None = None


@dataclass(frozen=True, slots=True)
class Acquired:
    """The request is the caller's to answer until its lease runs out.

    Attributes:
        key, fingerprint, token: what `renew`, `finish` and `release` need.
        now_ms: the time at the ledger, in milliseconds since 1970: the one clock that all replicas share.
        attempts: how often the request has been acquired without an answer coming of it, this time included.
        asked_ms: when the first of its deliveries arrived that anybody asked the ledger about, by the same clock; 0
            where that is not known.
        standing: what was asked for along the way; None where it was not, or where this ledger keeps no journal.
    """

    key: str
    fingerprint: str
    token: str
    now_ms: int
    attempts: int = 1
    asked_ms: int = 0
    standing: Standing | None = None

    def waited_ms(self, delivery: Delivery | None) -> int:
        """How long the requester had waited by then, where this delivery brought the request.

        All by the clock of the ledger: a copy that is heard later, here or elsewhere, begins no new deadline.
        """
        sent_ms = delivery.sent_ms if delivery else 0
        return self.now_ms - min(filter(None, (self.asked_ms, sent_ms)), default=self.now_ms)


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

    async def begin(
        self, key: str, fingerprint: str, lease_ms: int, waited_ms: int = 0, look: Look | None = None
    ) -> Claim:
        """Ask for the request `key`, whose payload has this `fingerprint` and arrived `waited_ms` ago.

        What arrived before the answer was last announced, or less than a second after, is `Announced`. With `look`,
        what is `Acquired` says how things are with an owner, where this ledger keeps a journal.
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

    async def conclude(  # noqa: PLR0917  # those of `finish`, and one
        self, claim: Acquired, topic: str, answer: bytes, keep_ms: int, delivery: Delivery | None, ending: Ending
    ) -> Concluded | KeptBefore | None:
        """`finish`, and in the same step what `ending` says. Only where a claim came with its owner's standing.

        Returns:
            `KeptBefore`, and nothing has happened, where something else is kept under the key of `ending`; None when
            the request has an answer already.
        """
        ...

    async def begin_and_conclude(self, asking: Asking, answering: Answering) -> Claim | Concluded:
        """`begin`, and in the same step `conclude`: for an answer that was made before anybody has claimed the request.

        It is only concluded if the request is `Acquired` at the first attempt and was asked no more than
        `answering.within_ms` ago, fewer than `MOST_JOURNALED` rows of the owner are in the journal, nothing else is
        kept under the key of `answering.ending`, and the answer has all that has moved the owner's version by now:

        - the version is the one in `asking.look`; or
        - with `answering.read`, by the clock of the ledger, nothing has moved the version since that began, no row has
          left the journal since that was not in the store by then, and the journal holds none but `journaled`. Where
          the owner had no version, it counts as one that nothing has moved; `Concluded.moved.before` is `""` then.

        Otherwise nothing has happened but what `begin` does, and this is what it says.
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
