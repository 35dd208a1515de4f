"""Has recorded messages indexed in the background: first their words, and then their meaning (contract §14).

- Due work stands in the rows themselves, and is claimed there in batches by any replica. A claim runs out: what a dead
  replica leaves undone is done again by another one, with the same effect.
- A row whose work raises an error is failed with the reason, and keeps no other of its batch from being indexed.
- Requests come first: while there are any, few messages are indexed at a time, with pauses that are longer than the
  work, for the database and the processor are the same. Terms are made in a thread, in small pieces.
- Where an embedder cannot be asked, its work waits, and words find meanwhile. Messages that have no vector of the
  embedder in use are embedded again.
"""

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final, Self, TypeVar

import anyio
import structlog
from anyio import to_thread

from nexus.core.concurrency import Pauses, report_fault, supervised
from nexus.core.errors import ModelUnavailableError, NexusError, StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Event, Metrics, NoMetrics
from nexus.core.models import Row, to_milliseconds, utc_now
from nexus.core.ports import Embedder, RecallIndex
from nexus.core.recall import MEANING, WORDS, Entry, Language
from nexus.core.tracing import Key, background
from nexus.services.due_work import WorkSignal
from nexus.services.recall.texts import findable, text_of

_log = structlog.get_logger(__name__)
_Result = TypeVar("_Result")

_TASK: Final = "recall"
# Messages of a conversation come in groups, and many at once cost far less than one by one.
_GATHER_S: Final = 0.05
_MOST_ROWS: Final = 1_000
# While requests are answered, and this long after the last, so many are indexed at a time. The pause between is so many
# times as long as the work, for most builds are to meet none, but bounded: what is recorded is to be indexed.
_BUSY_S: Final = 1.0
_MOST_WHILE_BUSY: Final = 100
_PAUSE_WHILE_BUSY: Final = 3.0
_LONGEST_WHILE_BUSY_S: Final = 0.5
_MOST_EMBEDDED: Final = 64
_ROWS_IN_THREAD: Final = 20
_IN_THREAD: Final = anyio.CapacityLimiter(1)
_MOST_MARKED: Final = 2_000
# How long giving back a claim may hold up the end of a service.
_GIVE_BACK_S: Final = 0.5
# The longest pauses while the store, or the embedder, is away.
_STORE_AWAY_S: Final = 8.0
_EMBEDDER_AWAY_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class IndexerSettings:
    """Times in seconds.

    Attributes:
        lease_s: for which a claim holds.
        poll_s: between two looks for due work that nothing signals; also the first pause while the store, or the
            embedder, is away. Each pause is twice the one before.
        outdated_s: between two looks for messages that have no vector of the embedder in use.
    """

    lease_s: float = 10.0
    poll_s: float = 1.0
    outdated_s: float = 600.0


class _RefusedTextError(NexusError):
    """A text that an embedder will never take."""


class Indexer:
    """Indexes messages while `running()`; without an embedder by words alone.

    `language` is that of words in Latin letters. `idle_s` returns how many seconds ago the last request was answered, 0
    while any is.
    """

    def __init__(
        self,
        index: RecallIndex,
        embedder: Embedder | None = None,
        *,
        settings: IndexerSettings | None = None,
        metrics: Metrics | None = None,
        language: Language = "english",
        idle_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._index = index
        self._embedder = embedder
        self._settings = settings or IndexerSettings()
        self._metrics = metrics or NoMetrics()
        self._findable = partial(findable, language=language)
        self._idle_s = idle_s
        self._words, self._meaning = WorkSignal(), WorkSignal()
        self._look_at = 0.0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Index what is due, until the context ends; a claim that is held then is given back."""
        async with anyio.create_task_group() as tasks:
            step = partial(self._step, WORDS, self._write_words)
            repeat = partial(self._repeat, step, self._words, _MOST_ROWS, _STORE_AWAY_S)
            tasks.start_soon(supervised, self._metrics, _TASK, repeat)
            if self._embedder:
                step = partial(self._embed_or_look, self._embedder)
                repeat = partial(self._repeat, step, self._meaning, _MOST_EMBEDDED, _EMBEDDER_AWAY_S)
                tasks.start_soon(supervised, self._metrics, _TASK, repeat)
            try:
                yield self
            finally:
                tasks.cancel_scope.cancel()

    def wake(self) -> None:
        """Signal that messages were recorded."""
        self._words.notify()

    async def _repeat(
        self, step: Callable[[int], Awaitable[int]], signal: WorkSignal, most: int, longest_pause_s: float
    ) -> None:
        """Do steps of up to `most` messages, which return how many they did: at once, or when there may be more."""
        pauses, at_once = Pauses(self._settings.poll_s, longest_pause_s), most
        while True:
            is_busy, began = self._idle_s() < _BUSY_S, anyio.current_time()
            limit = min(at_once, _MOST_WHILE_BUSY) if is_busy else at_once
            try:
                done = await step(limit)
            except (StoreUnavailableError, ModelUnavailableError) as error:
                _log.warning("recall_delayed", reason=str(error))
                self._metrics.count(Event.RECALL_DELAYED)
                # It may have taken too long, and one row may be what the store fails on.
                at_once = max(at_once // 4, 1)
                await pauses.wait()
                continue
            if done:
                at_once = min(2 * at_once, most)
            pauses.end()
            if done < limit:
                await signal.wait(self._settings.poll_s)
                await anyio.sleep(_GATHER_S)
            elif is_busy:
                took = anyio.current_time() - began
                await anyio.sleep(min(_PAUSE_WHILE_BUSY * took, _LONGEST_WHILE_BUSY_S))

    async def _step(self, work: str, do: Callable[[Sequence[Row]], Awaitable[None]], most: int) -> int:
        """Claim a batch and do its work; returns how many there were."""
        now = to_milliseconds(utc_now())
        lease = timedelta(seconds=self._settings.lease_s)
        rows = await self._index.claim(work, now, now + lease, limit=most)
        try:
            if rows:
                with background(f"index {work}", {Key.ITEMS: len(rows)}):
                    await self._do(rows, do)
        except (ModelUnavailableError, anyio.get_cancelled_exc_class()):
            # A store that is away does not take them back: the claim runs out.
            with anyio.move_on_after(_GIVE_BACK_S, shield=True), suppress(StoreUnavailableError, StoreRejectedError):
                await self._index.put_off(rows, utc_now())
            raise
        return len(rows)

    async def _do(self, rows: Sequence[Row], do: Callable[[Sequence[Row]], Awaitable[None]]) -> None:
        """Do the work; where it raises, for each row by itself, and fail those on which it does so again."""
        try:
            await do(rows)
        except (StoreUnavailableError, ModelUnavailableError):
            raise
        except Exception as error:  # noqa: BLE001  # whatever one message holds, the others are indexed
            if len(rows) > 1:
                for row in rows:
                    await self._do([row], do)
                return
            (row,) = rows
            reason = str(error) if isinstance(error, NexusError) else type(error).__name__
            _log.error("recall_failed", message_id=row.get("id"), reason=reason)
            if not isinstance(error, NexusError):
                report_fault(self._metrics, _TASK, error)
            self._metrics.count(Event.RECALL_FAILED)
            await self._index.fail(row, reason)

    async def _write_words(self, rows: Sequence[Row]) -> None:
        found = await _in_thread(self._findable, rows)
        kept = [(row, each) for row, each in zip(rows, found, strict=True) if each]
        places = await self._index.give_places([row for row, _ in kept])
        # A row without a place was removed meanwhile; one that is only not read yet stays due.
        kept = [(row, each) for row, each in kept if row["_id"] in places]
        entries = {row["_id"]: each.at(row["owner_key"], places[row["_id"]]) for row, each in kept}
        written = await self._write(rows, entries)
        await self._index.finish(written, next_work=MEANING if self._embedder else None)
        await self._index.finish([row for row, each in zip(rows, found, strict=True) if not each])
        self._metrics.count(Event.RECALL_INDEXED, len(rows))
        self._meaning.notify()

    async def _write(self, rows: Sequence[Row], entries: Mapping[str, Entry]) -> list[Row]:
        """Write the entries of rows, by their `_id`s. Returns the rows; of those removed meanwhile nothing stays."""
        await self._index.write([*entries.values()])
        written = [row for row in rows if row["_id"] in entries]
        there = await self._index.give_places(written)
        if removed := [entry for row_id, entry in entries.items() if row_id not in there]:
            await self._index.forget(removed)
        return [row for row in written if row["_id"] in there]

    async def _embed_or_look(self, embedder: Embedder, most: int) -> int:
        """Embed a batch; where nothing is due, look from time to time for messages that are to be embedded again."""
        done = await self._step(MEANING, partial(self._write_meaning, embedder), most)
        if done or anyio.current_time() < self._look_at:
            return done
        if await self._index.mark_outdated(embedder.generation, limit=_MOST_MARKED):
            return await self._step(MEANING, partial(self._write_meaning, embedder), most)
        self._look_at = anyio.current_time() + self._settings.outdated_s
        return 0

    async def _write_meaning(self, embedder: Embedder, rows: Sequence[Row]) -> None:
        texts = await _in_thread(text_of, rows)
        try:
            codes = iter(await embedder.codes_of_texts([text for text in texts if text]))
        except ValueError as error:
            raise _RefusedTextError(str(error)) from error
        places = await self._index.give_places([row for row, text in zip(rows, texts, strict=True) if text])
        entries, done = dict[str, Entry](), list[Row]()
        for row, text in zip(rows, texts, strict=True):
            code = next(codes) if text else b""
            if row["_id"] in places:
                entries[row["_id"]] = Entry(row["owner_key"], places[row["_id"]], codes={embedder.generation: code})
            if not text:
                done.append(row)
        # Codes of the embedder before this one are of no use any more.
        await self._index.forget([Entry(entry.owner_key, entry.place) for entry in entries.values()])
        done += await self._write(rows, entries)
        await self._index.finish(done, generation=embedder.generation)


async def _in_thread(read: Callable[[Row], _Result], rows: Sequence[Row]) -> list[_Result]:
    """What `read` returns of each row, made in small pieces: for a thread that goes on, the event loop has to wait."""
    found: list[_Result] = []
    for first in range(0, len(rows), _ROWS_IN_THREAD):
        found += await to_thread.run_sync(_read_all, read, rows[first : first + _ROWS_IN_THREAD], limiter=_IN_THREAD)
    return found


def _read_all(read: Callable[[Row], _Result], rows: Sequence[Row]) -> list[_Result]:
    return [read(row) for row in rows]
