"""One owner's past for one build: from memory, from the store while the request is still being claimed, or after that.

Rules of this module:

- What was kept is good if Redis, asked in the step of the claim, knows no later version of the owner.
- A read that was begun before the claim came back may have missed what was taken out of the journal meanwhile. Rows
  stay there for a moment, and a read that took longer than that is not used.
- Such a read goes with the version of the claim only if nothing had moved that since the read began. Else it is shown
  and not kept: it is as new as any read that began when the request was heard.
- What was read before there is any claim is shown with what the journal has from here, if Redis, asked in the step that
  publishes the answer, knows of nothing else (docs/decisions/0026-first-contexts-too-are-answered-in-one-step.md).
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

import structlog

from nexus.core.errors import BusUnavailableError, StoreUnavailableError
from nexus.core.metrics import Event, Metrics
from nexus.core.models import Message
from nexus.core.ports import MessageStore, Moved, Past, Row, Standing, StoreRead
from nexus.services.heard import Heard
from nexus.services.history.cutoff import UntilStored
from nexus.services.history.reader import read_past
from nexus.services.journaling import HEARD_S, STAYS_S, Journaling, is_shown, read_journal
from nexus.services.tails import OwnersTail, Tails, ids_of, is_later

_log = structlog.get_logger(__name__)

# Redis and this process measure the same time, but not to the microsecond.
_MARGIN_S: Final = 0.000_2
# Pauses end up to a millisecond early where an event loop counts those.
_EARLY_S: Final = 0.002


class OwnersPast:
    """The newest rows of one owner, for a run that has not been built before.

    Args:
        store, tails, journaling, heard, metrics: where they are; no journal where none is kept.
        owner_key: whose.
        messages: how many messages after merging.
        excerpt_chars: contents longer than twice this may come without their middle.
        asked: the human input of the run that asks. What was stored after it, if it has been, is left out.
        clock: seconds that never run back.
    """

    def __init__(
        self,
        store: MessageStore,
        tails: Tails,
        journaling: Journaling | None,
        heard: Heard,
        metrics: Metrics,
        *,
        owner_key: str,
        messages: int,
        excerpt_chars: int,
        asked: Message,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._tails = tails
        self._journaling = journaling
        self._heard = heard
        self._metrics = metrics
        self._owner_key = owner_key
        self._messages = messages
        self._excerpt_chars = excerpt_chars
        self._asked = asked
        self._clock = clock
        self._known = self._enough(tails.find(owner_key))
        self._epoch = tails.epoch
        self._ahead: Past | Exception | None = None
        # Where what was given last is from.
        self._source: Event | None = None
        self._began_at = self._claimed_at = 0.0
        # What was given that nobody had looked at the owner for, and which rows of the journal are in it.
        self._unclaimed: Past | None = None
        self._journaled: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """The version of what is known already; `""` for nothing."""
        return self._known.version if self._known else ""

    @property
    def is_journaled(self) -> bool:
        """Whether inputs of the owner go into a journal, so that an answer need not wait for them."""
        return self._journaling is not None

    @property
    def is_worth_reading_ahead(self) -> bool:
        """Whether a read that begins now is likely to be of use."""
        return self._known is None and not self._is_awaited

    @property
    def _is_awaited(self) -> bool:
        """Whether something was heard that is not to be read yet."""
        return self._heard.any_of(self._owner_key, besides=self._asked.run_id)

    def kept(self) -> Past | None:
        """What was kept, if all that was heard is in it: good if the version stands. None for what has to be read."""
        if self._known is None or self._epoch != self._tails.epoch or self._is_awaited:
            return None
        return self._shown_of(self._known)

    @property
    def read(self) -> StoreRead | None:
        """Of what the past was made that was given last; None where that is known by its version."""
        if self._unclaimed is None:
            return None
        return StoreRead(self._began_at, int((self._stays_s - _EARLY_S) * 1e6), self._journaled)

    def shown(self, moved: Moved | None) -> None:
        """What was given last has been shown, with this move of the owner's version; None where it is not known."""
        if self._source:
            self._metrics.count(self._source)
        if self._unclaimed and moved and moved.before:
            self._keep(moved.before, self._unclaimed)
        self._source = self._unclaimed = None

    async def read_ahead(self) -> None:
        """Read what the store has, before the request is claimed or meanwhile. What fails, fails in `get`."""
        self._began_at = self._clock()
        try:
            self._ahead = await self._read()
        except Exception as error:  # noqa: BLE001  # it is raised where the past is asked for
            self._ahead = error

    def as_read(self) -> Past | None:
        """What was read ahead: good if all that `read` tells holds. None for what has to be looked at once more."""
        if self._journaling is None or self._is_awaited or not isinstance(self._ahead, Past):
            return None
        put, ahead = self._journaling.put_here(self._owner_key), self._ahead
        rows = with_rows(ahead.rows, put.values())
        if self._begun_in(rows):
            return None
        self._source, self._journaled = Event.PAST_READ, tuple(put)
        self._unclaimed = self._own(Past(rows, ahead.stopped_early, ahead.complete))
        return self._unclaimed

    def claimed(self) -> None:
        """The request has been claimed: now."""
        self._claimed_at = self._clock()
        self._source = self._unclaimed = None

    def at_hand(self, standing: Standing | None) -> Past | None:
        """What `get` would return, if nothing has to be read or waited for; else None."""
        if standing is None or self._is_awaited:
            return None
        if known := self._shown_of(self._good(standing)):
            return known
        if standing.rows is None or not isinstance(self._ahead, Past) or not self._is_in_time:
            return None
        return self._joined(*self._of_ahead(self._ahead, standing), standing.rows)

    async def get(self, standing: Standing | None) -> Past:
        """The past, given how things were with the owner when the request was claimed; None where nobody can tell.

        Raises:
            StoreUnavailableError: the store did not answer.
        """
        waited = self._is_awaited
        complete = await self._heard.written(self._owner_key, HEARD_S, besides=self._asked.run_id)
        if standing is None:
            self._source = Event.PAST_READ
            return self._own(replace(await self._read(), complete=complete))
        if waited:
            # What was waited for has moved the version since.
            standing = await self._asked_again()
        if known := self._shown_of(self._good(standing)):
            return replace(known, complete=complete)
        if standing.rows is None:
            standing = await self._asked_again()
        past, version = await self._read_now(standing)
        return self._joined(past, version, standing.rows or (), complete=complete)

    def _joined(self, past: Past, version: str, journaled: Sequence[bytes], *, complete: bool = True) -> Past:
        """What the store and the journal had, which is kept if nobody can have had more at this version."""
        self._source = Event.PAST_READ
        rows = with_rows(past.rows, read_journal(journaled))
        begun = self._begun_in(rows)
        if begun and journaled:
            # What the store has was left out when that was read, but it may not have the input yet.
            rows = list(filter(UntilStored.of(begun).includes, rows))
        past = self._own(Past(rows, past.stopped_early, complete))
        if version and complete and not begun:
            self._keep(version, past)
        return past

    def _begun_in(self, rows: Sequence[Row]) -> Row | None:
        """The input of the run that asks, if somebody has recorded it before."""
        return next((row for row in rows if row.get("id") == self._asked.id), None)

    def _keep(self, version: str, past: Past) -> None:
        """Keep what is all that there was at this version."""
        if self._epoch == self._tails.epoch:
            self._tails.keep(
                self._owner_key,
                version,
                past.rows,
                self._messages,
                self._excerpt_chars,
                stopped_early=past.stopped_early,
            )

    @property
    def _stays_s(self) -> float:
        return self._journaling.stays_s if self._journaling else STAYS_S

    @property
    def _is_in_time(self) -> bool:
        """Whether what was read ahead has all that was taken out of the journal before the request was claimed."""
        return self._claimed_at - self._began_at < self._stays_s - _EARLY_S

    def _of_ahead(self, ahead: Past, standing: Standing) -> tuple[Past, str]:
        """What was read ahead, and the version that it is good for; `""` if nobody knows."""
        quiet = standing.quiet_us / 1_000_000 > self._claimed_at - self._began_at + _MARGIN_S
        return ahead, standing.version if quiet else ""

    async def _read_now(self, standing: Standing) -> tuple[Past, str]:
        """What the store has, and the version that it is good for; `""` if nobody knows."""
        if self._ahead and self._is_in_time:
            if isinstance(self._ahead, Exception):
                raise self._ahead
            return self._of_ahead(self._ahead, standing)
        return await self._read(), standing.version

    async def _asked_again(self) -> Standing:
        # What is told now may have been in the store only after it was read ahead.
        self._ahead = None
        if self._journaling is None:
            return Standing("")
        try:
            return await self._journaling.standing(self._owner_key)
        except BusUnavailableError as error:
            raise StoreUnavailableError(f"the journal: {error}") from error

    async def _read(self) -> Past:
        return await read_past(
            self._store,
            self._owner_key,
            messages=self._messages,
            excerpt_chars=self._excerpt_chars,
            asked=self._asked,
        )

    def _shown_of(self, tail: OwnersTail | None) -> Past | None:
        """What of a tail is shown to the run; None where that is something else."""
        # A run that was asked for before is shown what was there then, which is not what is kept.
        if tail is None or self._asked.run_id in tail.read().runs:
            return None
        self._source = Event.PAST_KEPT
        return Past(tail.read(), tail.stopped_early)

    def _good(self, standing: Standing) -> OwnersTail | None:
        """What is kept, if it has all that the owner's version at the claim stands for."""
        known = self._known if self._epoch == self._tails.epoch else None
        tails = (self._enough(self._tails.find(self._owner_key)), known)
        return next((tail for tail in tails if tail and not is_later(standing.version, tail.version)), None)

    def _enough(self, tail: OwnersTail | None) -> OwnersTail | None:
        return tail if tail and tail.is_enough(self._messages, self._excerpt_chars) else None

    def _own(self, past: Past) -> Past:
        rows = own_rows(self._owner_key, past.rows)
        return past if rows is past.rows else replace(past, rows=rows)


def own_rows(owner_key: str, rows: list[Row]) -> list[Row]:
    """The rows, if they are the owner's."""
    foreign = sum([row.get("owner_key") != owner_key for row in rows])
    if not foreign:
        return rows
    # The store broke its promise. Showing nothing of it is the only safe answer.
    _log.error("foreign_rows_withheld", rows=foreign)
    return [row for row in rows if row.get("owner_key") == owner_key]


def with_rows(rows: list[Row], journaled: Collection[Row]) -> list[Row]:
    """The rows, and before them those of the journal that are not among them yet."""
    if not journaled:
        return rows
    known = ids_of(rows)
    more = [row for row in journaled if (row["run_id"], row["id"]) not in known and is_shown(row)]
    more.sort(key=lambda row: (row["timestamp"], row["_id"]))
    return [*reversed(more), *rows]
