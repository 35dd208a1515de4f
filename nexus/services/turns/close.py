"""Closing turns: reading the rows of a run, deciding whether it is over, and writing its facts (contract §6).

- A result is written only if the turn is still as it was claimed. A row recorded meanwhile makes the turn due again.
- A turn that went on after the next one had begun is completed once yet another one has begun.
- Rows are read into facts and summarised in a thread, since that may take long for a large turn.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

from anyio import to_thread

from nexus.core.models import utc_now
from nexus.core.ports import MessageStore, Row, TurnStore
from nexus.services.history.run_facts import TurnFacts, read_facts
from nexus.services.turns.documents import OVERTAKEN, facts_of, is_overtaken, is_put_off, looked_at

_ROWS_AT_ONCE: Final = 200


class TurnCloser:
    """Looks at turns in a store, and decides what they are.

    Args:
        store: where turns are kept.
        messages: where the rows of their runs are.
    """

    def __init__(self, store: TurnStore, messages: MessageStore) -> None:
        self._store = store
        self._messages = messages

    async def look_at(self, turn: Row, *, idle_s: float, settled_s: float) -> dict[str, Any]:
        """The changes to a turn: closed if it is over, else when to look again.

        Args:
            turn: its document.
            idle_s: seconds of silence after which a turn is over without an answer.
            settled_s: seconds of silence after which nothing of it is on its way any more.

        Raises:
            StoreUnavailableError: the store did not answer.
        """
        rows = await self._rows_of(turn)
        idle, settled = timedelta(seconds=idle_s), timedelta(seconds=settled_s)
        changes = await to_thread.run_sync(_look, turn, rows, idle, settled)
        if is_put_off(changes) and not turn.get("overtaken"):
            latest = await self._store.latest_turn(turn["owner_key"], turn["session_id"])
            if latest and is_overtaken(turn, latest):
                return {**OVERTAKEN, "due_at": utc_now() + settled}
        return changes

    async def facts(self, turn: Row) -> tuple[TurnFacts, int]:
        """The facts of a turn, and the number of rows they were read from.

        Raises:
            StoreUnavailableError: the store did not answer.
        """
        rows = await self._rows_of(turn)
        return await to_thread.run_sync(partial(read_facts, rows, **facts_of(turn))), len(rows)

    async def write(self, turn: Row, changes: Mapping[str, Any], seen: Mapping[str, Any]) -> bool:
        """Change a turn, if it still has these values."""
        return await self._store.update_turn(
            turn["owner_key"], turn["session_id"], turn["turn_number"], changes, seen=seen
        )

    async def _rows_of(self, turn: Row) -> list[Row]:
        rows: list[Row] = []
        while True:
            page = await self._messages.run_messages(
                turn["owner_key"], turn["run_id"], limit=_ROWS_AT_ONCE, skip=len(rows)
            )
            rows += page
            if len(page) < _ROWS_AT_ONCE:
                return rows


def _look(turn: Row, rows: Sequence[Row], idle: timedelta, settled: timedelta) -> dict[str, Any]:
    facts = read_facts(rows, **facts_of(turn))
    return looked_at(turn, facts, len(rows), utc_now(), idle=idle, settled=settled)
