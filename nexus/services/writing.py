"""Rows on their way into the store, many at once (CONTRACT §2).

Rules of this module:

- What is written together fares each by itself: what the store rejects, what was there, and what belongs to another run
  keeps no other row from being written.
- What could not be written now is tried again until it is, without those that are settled.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import time
from typing import Final

import anyio
import structlog

from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Event, Metrics
from nexus.core.ports import MessageStore, Row
from nexus.core.row_ids import new_row_id, seconds_of
from nexus.core.tasks import Pauses
from nexus.services.origins import RunOrigins
from nexus.services.rows import of_run

_log = structlog.get_logger(__name__)

# Told of a result, of a model or a tool, that was not there before.
Recorded = Callable[[Row], Awaitable[None]]
# Told of results that the store has now, and may have had before, as they will be read.
Stored = Callable[[Sequence[Row]], Awaitable[None]]
# An id that was given so long ago no longer says when its row was stored. That of an input may be known already: the
# journal has it.
_ID_LASTS_S: Final = 1
_INPUT_ID_LASTS_S: Final = 60
_INPUT: Final = "HUMAN"
# Of a row whether it is new, or why it is not written.
Fate = bool | StoreRejectedError | StoreUnavailableError


@dataclass(slots=True, eq=False)
class Waiting:
    """A row that was accepted.

    Attributes:
        row: as it is written; changed when it is known where its run belongs.
        size: in bytes.
        settled: called when it is written and whoever is told of it has been, or when it never will be.
        written: called when it is written or never will be; None where nobody waits for that.
    """

    row: Row
    size: int
    settled: Callable[[], None]
    written: Callable[[], None] | None

    @property
    def is_input(self) -> bool:
        """Whether it is the input of a run, and no result."""
        return bool(self.row["role"] == _INPUT)

    def end(self) -> None:
        """It is written, or never will be."""
        if self.written:
            self.written()


class Writing:
    """Writes rows, however long that takes.

    Args:
        store: where to write.
        origins: to which session and agent a result belongs that does not say so.
        metrics: what is counted.
        recorded: told of every result that was not there before.
        stored: told of every result that the store has, before anybody who waits for the row is.
        unwritten: how many rows wait.
    """

    def __init__(
        self,
        store: MessageStore,
        origins: RunOrigins,
        metrics: Metrics,
        recorded: Recorded,
        stored: Stored,
        *,
        unwritten: Callable[[], int],
    ) -> None:
        self._store = store
        self._origins = origins
        self._metrics = metrics
        self._recorded = recorded
        self._stored = stored
        self._unwritten = unwritten

    async def write(self, batch: Sequence[Waiting], settle: Callable[[Waiting], None]) -> None:
        """Write the rows in their order; `settle` is called of each as soon as it is settled."""
        pauses = Pauses()
        while batch:
            fates = list(zip(batch, await self._fates(batch), strict=True))
            # After an error nobody knows which of the attempts wrote it.
            written = [(item, fate or pauses.begun) for item, fate in fates if isinstance(fate, bool)]
            if written:
                await self._tell(written, settle)
            for item, fate in fates:
                if isinstance(fate, StoreRejectedError):
                    _log.error("row_rejected", message_id=item.row["id"], reason=str(fate))
                    self._metrics.count(Event.ROW_REJECTED)
                    item.end()
                    settle(item)
            delayed = [(item, fate) for item, fate in fates if isinstance(fate, StoreUnavailableError)]
            batch = [item for item, _ in delayed]
            if delayed:
                if not pauses.begun:
                    self._log_delay(delayed)
                await pauses.wait()

    async def _tell(self, written: Sequence[tuple[Waiting, bool]], settle: Callable[[Waiting], None]) -> None:
        """The store has these; of each, whether it was not there before."""
        self._metrics.count(Event.ROW_RECORDED, len(written))
        results = [(item, new) for item, new in written if not item.is_input]
        if results:
            await self._stored([item.row for item, _ in results])
        for item, _ in written:
            item.end()
            if item.is_input:
                settle(item)
        if results:
            await self._tell_of_results(results, settle)

    async def _tell_of_results(
        self, written: Sequence[tuple[Waiting, bool]], settle: Callable[[Waiting], None]
    ) -> None:
        of_runs: dict[tuple[str, str], list[tuple[Waiting, bool]]] = {}
        for item, new in written:
            of_runs.setdefault((item.row["owner_key"], item.row["run_id"]), []).append((item, new))

        async def tell(of_run: Sequence[tuple[Waiting, bool]]) -> None:
            for item, new in of_run:
                if new:
                    await self._recorded(item.row)
                settle(item)

        if len(of_runs) == 1:
            await tell(written)
            return
        # One after another of a run, and no run waits for another.
        async with anyio.create_task_group() as tasks:
            for of_run in of_runs.values():
                tasks.start_soon(tell, of_run)

    async def _fates(self, batch: Sequence[Waiting]) -> list[Fate]:
        """Of each row whether it is new, or why it is not in the store."""
        fates: dict[Waiting, Fate] = {}
        now = time()
        for item in batch:
            try:
                if not item.is_input:
                    item.row = of_run(item.row, await self._origins.find(item.row["owner_key"], item.row["run_id"]))
            except StoreUnavailableError as error:
                fates[item] = error
                continue
            lasts_s = _INPUT_ID_LASTS_S if item.is_input else _ID_LASTS_S
            if now - seconds_of(item.row["_id"]) > lasts_s:
                item.row = {**item.row, "_id": new_row_id()}
        ready = [item for item in batch if item not in fates]
        try:
            inserted = await self._store.insert_messages([item.row for item in ready]) if ready else []
        except (StoreUnavailableError, StoreRejectedError) as error:
            inserted = [error] * len(ready)
        for item, fate in zip(ready, inserted, strict=True):
            fates[item] = await self._insert_reused(item) if fate is False else fate
        return [fates[item] for item in batch]

    async def _insert_reused(self, item: Waiting) -> Fate:
        """Record a row whose `id` belongs to a row of another run, under an id of its own, rather than lose it.

        Returns:
            Whether that was so and the row was not there, or why it could not be done.
        """
        row = item.row
        try:
            known = await self._store.find_message(row["owner_key"], row["id"])
            if not known or known.get("run_id") == row["run_id"]:
                return False
            _log.warning("message_id_reused", message_id=row["id"], run_id=row["run_id"])
            # Whoever is told of the row is told of it as it is stored.
            item.row = {**row, "id": f"{row['id']}@{row['run_id']}"}
            return await self._store.insert_message(item.row)
        except (StoreUnavailableError, StoreRejectedError) as error:
            return error

    def _log_delay(self, delayed: Sequence[tuple[Waiting, Fate]]) -> None:
        for item, reason in delayed:
            _log.warning("record_delayed", message_id=item.row["id"], reason=str(reason), unwritten=self._unwritten())
