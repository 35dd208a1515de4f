"""Inputs that MongoDB did not take in time: kept in Redis by the step that concludes, and written when it is back.

- Any replica writes them: inserting is idempotent, and a row leaves the outbox when MongoDB has it.
- A row in a form that this release cannot read is left to the release that wrote it.
- Until then every build of the owner reads them from the outbox (contract §1.5, §2).
"""

import hashlib
from collections.abc import Iterable
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
    return OutboxRow(row["owner_key"], f"{row['run_id']} {row['id']}", compact(row))


def read_row(kept: OutboxRow) -> Row | None:
    """The row as it is recorded; None, and a line in the log, for one that cannot be read."""
    try:
        row: dict[str, Any] = from_json(kept.content)
        row["timestamp"] = datetime.fromisoformat(row["timestamp"])
        if all(isinstance(row[name], str) for name in _TEXTS) and isinstance(row["metadata"], dict):
            return row
    except (ValueError, KeyError, TypeError):
        pass
    digest = hashlib.sha256(kept.content).hexdigest()
    _log.error("outbox_row_unreadable", bytes=len(kept.content), sha256=digest)
    return None


def read_rows(kept: Iterable[OutboxRow]) -> list[Row]:
    """The rows that can be read."""
    return [row for each in kept if (row := read_row(each))]


class OutboxDrainer:
    """Writes the rows of the outbox into the store.

    `recorded` is called with every row that the store has; more than once, where removing it failed.
    """

    def __init__(self, outbox: Outbox, store: MessageStore, metrics: Metrics, recorded: Recorded) -> None:
        self._outbox = outbox
        self._store = store
        self._metrics = metrics
        self._recorded = recorded

    async def run(self) -> None:
        """Drain until cancelled. While Redis or the store is away, it looks less often."""
        pauses = Pauses(_LOOK_EVERY_S, 8 * _LOOK_EVERY_S)
        while True:
            await pauses.wait()
            try:
                while await self.drain():
                    pauses.end()
                pauses.end()
            except (BusUnavailableError, StoreUnavailableError) as error:
                _log.warning("outbox_not_drained", reason=str(error))
            except Exception as error:  # noqa: BLE001  # the outermost handler of a background task
                _log.exception("outbox_failed", reason=type(error).__name__)
                self._metrics.count(Event.BACKGROUND_FAULT)

    async def drain(self) -> int:
        """Write the oldest rows, up to 100. Returns how many left the outbox.

        Raises:
            BusUnavailableError: Redis did not answer.
            StoreUnavailableError: the store did not take all of them; those that it took have left the outbox.
        """
        kept = await self._outbox.oldest(_BATCH)
        readable = [(each, row) for each in kept if (row := read_row(each))]
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
        if away:
            raise away
        return len(finished)
