"""Inputs that MongoDB did not take in time: kept in Redis by the step that concludes, and written when it is back.

- Any replica writes them: inserting is idempotent, and a row leaves the outbox when MongoDB has it.
- A row in a form that this release cannot read is left to the release that wrote it.
- Until then every build of the owner reads them from the outbox (contract §1.5, §2).
"""

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import structlog
from pydantic_core import from_json

from nexus.core.concurrency import Pauses
from nexus.core.errors import BusUnavailableError, StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Event, Metrics
from nexus.core.ports import MessageStore, Outbox, OutboxRow, Row
from nexus.core.wire import compact
from nexus.services.history.recorder import Recorded, insert_rows, with_fresh_id

_log = structlog.get_logger(__name__)

_LOOK_EVERY_S: Final = 1.0
_BATCH: Final = 100
_TEXTS: Final = ("_id", "id", "run_id", "owner_key", "session_id", "role", "content")


def write_row(row: Row) -> OutboxRow:
    """A recorded row in the form of the outbox."""
    # The ids of messages may come twice, in different runs.
    return OutboxRow(row["owner_key"], compact([row["run_id"], row["id"]]).decode(), compact(row))


def read_row(kept: OutboxRow) -> Row | None:
    """The row as it is recorded; None for one that cannot be read."""
    try:
        row: dict[str, Any] = from_json(kept.content)
        row["timestamp"] = datetime.fromisoformat(row["timestamp"])
        if all(isinstance(row[name], str) for name in _TEXTS) and isinstance(row["metadata"], dict):
            return row
    except (ValueError, KeyError, TypeError):
        pass
    return None


def read_rows(kept: Iterable[OutboxRow]) -> list[Row]:
    """The rows that can be read; one line in the log for all others."""
    read = [(each, read_row(each)) for each in kept]
    _log_unreadable([_about(each) for each, row in read if not row])
    return [row for _, row in read if row]


def _about(kept: OutboxRow) -> tuple[int, str]:
    return len(kept.content), hashlib.sha256(kept.content).hexdigest()


def _log_unreadable(rows: Sequence[tuple[int, str]]) -> None:
    """Log how many rows cannot be read, and size and hash of the first."""
    if rows:
        size, digest = rows[0]
        _log.error("outbox_row_unreadable", rows=len(rows), bytes=size, sha256=digest)


class OutboxDrainer:
    """Writes the rows of the outbox into the store.

    `recorded` is called with every row that the store has; more than once, where removing it failed.
    """

    def __init__(self, outbox: Outbox, store: MessageStore, metrics: Metrics, recorded: Recorded) -> None:
        self._outbox = outbox
        self._store = store
        self._metrics = metrics
        self._recorded = recorded
        # Where the next look begins.
        self._offset = 0

    async def run(self) -> None:
        """Drain until cancelled. While Redis or the store is away, it looks less often."""
        pauses = Pauses(_LOOK_EVERY_S, 8 * _LOOK_EVERY_S)
        while True:
            await pauses.wait()
            try:
                await self.drain()
                pauses.end()
            except (BusUnavailableError, StoreUnavailableError) as error:
                _log.warning("outbox_not_drained", reason=str(error))
            except Exception as error:  # noqa: BLE001  # the outermost handler of a background task
                _log.exception("outbox_failed", reason=type(error).__name__)
                self._metrics.count(Event.BACKGROUND_FAULT)

    async def drain(self) -> int:
        """Look once through the outbox and write its rows, past those that stay. Returns how many left it.

        A look ends at 100 rows of which none leaves because the store is away or something is at fault. The next look
        goes on behind these, so that they hold up no others.

        Raises:
            BusUnavailableError: Redis did not answer.
            StoreUnavailableError: the store did not take all of them; those that it took have left the outbox.
        """
        offset, left, unreadable, away = self._offset, 0, list[tuple[int, str]](), None
        kept = await self._outbox.oldest(_BATCH, offset)
        if not kept and offset:
            offset = 0
            kept = await self._outbox.oldest(_BATCH)
        try:
            while kept:
                self._offset = offset + len(kept)
                read = [(each, read_row(each)) for each in kept]
                unreadable += [_about(each) for each, row in read if not row]
                finished, away_now = await self._write([(each, row) for each, row in read if row])
                away = away_now or away
                if away_now and not finished:
                    raise away_now
                left += finished
                offset += len(kept) - finished
                kept = await self._outbox.oldest(_BATCH, offset)
        finally:
            _log_unreadable(unreadable)
        self._offset = 0
        if away:
            raise away
        return left

    async def _write(self, readable: Sequence[tuple[OutboxRow, Row]]) -> tuple[int, StoreUnavailableError | None]:
        """Write rows. Returns how many left the outbox, and why not all, if so."""
        inserted = await insert_rows(self._store, [with_fresh_id(row) for _, row in readable])
        finished, written, away = [], 0, None
        for (each, _), (row, outcome) in zip(readable, inserted, strict=True):
            if isinstance(outcome, StoreUnavailableError):
                away = outcome
                continue
            finished.append(each)
            if isinstance(outcome, StoreRejectedError):
                _log.error("row_rejected", message_id=row["id"], reason=str(outcome))
            else:
                written += 1
                await self._recorded(row)
        if finished:
            await self._outbox.remove(finished)
            self._metrics.count(Event.ROW_RECORDED, written)
            self._metrics.count(Event.ROW_REJECTED, len(finished) - written)
            _log.info("outbox_drained", rows=written)
        return len(finished), away
