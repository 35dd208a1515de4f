"""Claims of work that is due in the store, the worker that does it, and the retry policy for work that needs a model.

- Due work stands in a document as `work` and `due_at`. A claim puts `due_at` off for a short time, again and again,
  so that another replica does what a dead one leaves undone.
- A model that cannot be asked is asked again after pauses that double, up to ten minutes. After unusable replies they
  double up to a day, and end after weeks or with the last call that is allowed.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import anyio
import structlog

from nexus.core.concurrency import OuterHandler
from nexus.core.errors import ModelUnavailableError, StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Event, Metrics
from nexus.core.models import to_milliseconds, utc_now
from nexus.core.ports import Row
from nexus.core.tracing import Key, background
from nexus.services.text.model_reply import CallLimit, TooManyCallsError, UnusableReplyError

_log = structlog.get_logger(__name__)

# Renewals of a claim within the time that it holds.
_RENEWALS: Final = 3
# Seconds between two looks for due work when nothing signals any.
_POLL_S: Final = 1.0
# How long a claim may take, also at the end of a service. Of one that is given up the document may have to wait.
_CLAIM_S: Final = 5.0
# How long giving back a claim may hold up the end of a service.
_GIVE_BACK_S: Final = 0.5
_LONGEST_DELAY: Final = timedelta(minutes=10)
_LONGEST_PAUSE: Final = timedelta(days=1)
_MOST_DOUBLINGS: Final = 16
# Some weeks of them.
_MOST_ATTEMPTS: Final = 40
# Of what another writer may have stored there.
_LARGEST_COUNT: Final = 1 << 31
_AFTER_FAULT_S: Final = 3_600.0
_TASK: Final = "due_work"
NOTHING_DUE: Final[Mapping[str, Any]] = {"work": None, "due_at": None}

# Sets these fields of a document if the second ones still have these values; says whether they had.
Write = Callable[[Mapping[str, Any], Mapping[str, Any]], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class WorkSettings:
    """Seconds until a model is asked again, twice as many each time; seconds for which a claim holds unrenewed.

    `max_calls` replies of a model may be taken for one piece of work, over all attempts.
    """

    again_s: float = 30.0
    lease_s: float = 15.0
    max_calls: int = 8


@dataclass(frozen=True, slots=True)
class ModelOutcomes:
    """What is counted where a model gives no usable reply, and but for a delay logged by the same name.

    `calls` is the field of a document that counts the replies.
    """

    delayed: Event
    refused: Event
    given_up: Event
    calls: str = "calls"


class WorkClaim:
    """A claimed document. Writes to it count only while the claim holds, and the first `finish` ends it.

    The claim ends at `until`, the `due_at` of the document. A result is written if `unchanged` fields are as claimed.
    """

    def __init__(
        self, document: Row, write: Write, until: datetime, lease: timedelta, unchanged: Sequence[str]
    ) -> None:
        self.document = document
        self._write = write
        self._lease = lease
        self._until: datetime | None = until
        self._unchanged = unchanged
        # Every write names the end of the claim, which a renewal moves.
        self._writing = anyio.Lock()

    async def keep(self) -> None:
        """Renew the claim until it is lost or finished."""
        while self._until:
            await anyio.sleep(self._lease.total_seconds() / _RENEWALS)
            async with self._writing:
                if self._until:
                    until = to_milliseconds(utc_now()) + self._lease
                    # A claim that cannot be renewed runs out, and the document is left to the next one.
                    with suppress(StoreUnavailableError, StoreRejectedError):
                        self._until = until if await self._write({"due_at": until}, self._seen()) else None

    async def finish(self, changes: Mapping[str, Any]) -> bool:
        """Write a result. False, with nothing written, when the claim is lost or the document has changed."""
        async with self._writing:
            if not self._until:
                return False
            written = await self._write(changes, self._seen())
            if not written:
                # It changed meanwhile, and no other replica has it: it is to be done again at once.
                await self._write({"due_at": utc_now()}, {"due_at": self._until})
            self._until = None
            return written

    def abandon(self) -> None:
        """Leave the document to the next claim when this one has run out."""
        self._until = None

    async def give_back(self) -> None:
        """Make the document due at once, if nothing was written and the store takes it."""
        if self._until:
            with suppress(StoreUnavailableError, StoreRejectedError):
                await self.finish({"due_at": utc_now()})

    def _seen(self) -> dict[str, Any]:
        return {**{name: self.document.get(name) for name in self._unchanged}, "due_at": self._until}


class WorkSignal:
    """Signals that there may be due work."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def notify(self) -> None:
        """There may be some."""
        self._event.set()

    async def wait(self, seconds: float) -> None:
        """Return when it was notified since this last returned, or after so long."""
        with anyio.move_on_after(seconds):
            await self._event.wait()
        self._event = anyio.Event()


async def claim_due(
    claim: Callable[[datetime, datetime], Awaitable[Row | None]],
    write: Callable[[Row, Mapping[str, Any], Mapping[str, Any]], Awaitable[bool]],
    *,
    lease_s: float,
    unchanged: Sequence[str],
) -> WorkClaim | None:
    """Claim a document with due work; None where there is none or the store is away.

    `claim` claims a document that is due by the first moment, until the second one; `write` changes that document.
    """
    # To the millisecond, as it is stored: later writes are compared with it.
    now = to_milliseconds(utc_now())
    lease = timedelta(milliseconds=round(lease_s * 1_000))
    document: Row | None = None
    # A call that is cancelled may have claimed a document in the store, which would then lie there until the claim
    # runs out. A store that is away is asked again before long, and other parts report it.
    with anyio.move_on_after(_CLAIM_S, shield=True), suppress(StoreUnavailableError):
        document = await claim(now, now + lease)
    return WorkClaim(document, partial(write, document), now + lease, lease, unchanged) if document else None


async def run_due_work(
    claim: Callable[[], Awaitable[WorkClaim | None]],
    do: Callable[[WorkClaim], Awaitable[None]],
    signal: WorkSignal,
    at_once: int,
    metrics: Metrics,
) -> None:
    """Do due work whenever there is some, up to `at_once` pieces at a time; never returns.

    After an unexpected error of `do`, which is logged and counted, the piece is tried again after an hour and more.
    """
    places = anyio.Semaphore(at_once)
    async with anyio.create_task_group() as tasks:
        while True:
            await places.acquire()
            claimed = None
            with OuterHandler(metrics, _TASK):
                claimed = await claim()
            if claimed:
                tasks.start_soon(_hold, claimed, do, places, metrics)
                # Large documents must not stay in memory until the next claim.
                del claimed
            else:
                places.release()
                await signal.wait(_POLL_S)


async def _hold(
    claimed: WorkClaim, do: Callable[[WorkClaim], Awaitable[None]], places: anyio.Semaphore, metrics: Metrics
) -> None:
    """Do the work while keeping the claim."""

    async def keep() -> None:
        with OuterHandler(metrics, _TASK):
            await claimed.keep()

    async def work() -> None:
        work, run_id = claimed.document.get("work"), str(claimed.document.get("run_id"))
        with (
            OuterHandler(metrics, _TASK, run_id=run_id) as handler,
            background(f"background {work}", {Key.RUN_ID: run_id}, caused_by=claimed.document),
        ):
            await do(claimed)
        if handler.failed:
            with OuterHandler(metrics, _TASK), suppress(StoreUnavailableError, StoreRejectedError):
                await claimed.finish(after_unusable_reply(claimed.document, _AFTER_FAULT_S, "an unexpected error"))
            # Where that was not written, the piece is left to the next claim, when this one has run out.
            claimed.abandon()

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep)
            await work()
            tasks.cancel_scope.cancel()
    finally:
        with anyio.move_on_after(_GIVE_BACK_S, shield=True), OuterHandler(metrics, _TASK):
            await claimed.give_back()
        places.release()


async def changes_by_model(
    document: Row,
    ask: Callable[[CallLimit], Awaitable[Mapping[str, Any]]],
    outcomes: ModelOutcomes,
    settings: WorkSettings,
    metrics: Metrics,
) -> dict[str, Any]:
    """The changes to a document that `ask` returns, or those of the retry policy where it has no usable reply.

    `ask` gets the limit of calls, and raises what `SummaryModel.ask` does.
    """
    calls = CallLimit(settings.max_calls, count_in(document, outcomes.calls))
    try:
        return {**await ask(calls)}
    except ModelUnavailableError:
        # The adapter of the model logs why.
        metrics.count(outcomes.delayed)
        delays = count_in(document, "delays")
        changes = {"delays": delays + 1, "due_at": utc_now() + _pause(settings.again_s, delays, _LONGEST_DELAY)}
    except (UnusableReplyError, TooManyCallsError) as error:
        is_last = calls.is_reached or isinstance(error, TooManyCallsError)
        changes = after_unusable_reply(document, settings.again_s, str(error), is_last=is_last)
        event = outcomes.given_up if "given_up" in changes else outcomes.refused
        metrics.count(event)
        _log.warning(event.value, run_id=document.get("run_id"), reason=str(error), calls=calls.taken)
    return {**changes, outcomes.calls: calls.taken}


def after_unusable_reply(document: Row, again_s: float, reason: str, *, is_last: bool = False) -> dict[str, Any]:
    """The changes to a document for which the model gave an unusable reply.

    The last time, also when `is_last`, nothing is due any more, and `given_up` has the reason.
    """
    attempts = count_in(document, "attempts") + 1
    if is_last or attempts >= _MOST_ATTEMPTS:
        return {"attempts": attempts, "given_up": reason, **NOTHING_DUE}
    return {"attempts": attempts, "due_at": utc_now() + _pause(again_s, attempts - 1, _LONGEST_PAUSE)}


def count_in(document: Row, name: str) -> int:
    """A count that a document holds; 0 where what it holds there is none."""
    number = document.get(name)
    return number if isinstance(number, int) and 0 <= number < _LARGEST_COUNT else 0


def _pause(again_s: float, before: int, longest: timedelta) -> timedelta:
    """Twice as long each time; `before` is the number of pauses so far."""
    return min(timedelta(seconds=again_s * 2 ** min(before, _MOST_DOUBLINGS)), longest)
