"""Completing turns before which another of their session begins (CONTRACT §6).

Rules of this module:

- Of most nothing is recorded but the input with which they began: they are closed at once, all alike, and nobody needs
  to look at them. A row that is there by then is looked for first, should nobody have heard of it because the replica
  that wrote it was killed.
- Others count as completed from then on, and are closed by whoever looks at them (`closing`).
- What is heard of either later has it go on.
"""

from collections.abc import Collection
from datetime import timedelta
from typing import Any, Final

import anyio
import structlog

from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Event, Metrics
from nexus.core.models import utc_now
from nexus.core.ports import MessageStore, Row, TurnStore
from nexus.core.tasks import Awaited, Later, Pending
from nexus.core.turns import TurnStatus
from nexus.services.turns.documents import OVERTAKEN, closed_unheard
from nexus.services.turns.starts import run_of
from nexus.services.turns.work import TurnWork

_log = structlog.get_logger(__name__)

# Nobody waits for it, and that of many sessions costs little more than that of one.
_TOGETHER_S: Final = 0.02
# Runs of which rows are looked for at once; whoever begins more at a time has a store that was away.
_MOST_RUNS: Final = 1_000

# A run, and whose it is: (owner_key, run_id).
RunPlace = tuple[str, str]


class Overtaking:
    """Completes turns that are kept. Use `run` to have it done.

    Args:
        store: where turns are kept.
        messages: where the rows of their runs are.
        work: says for how long something may be on its way.
        metrics: what is counted.
        awaited: says whether somebody waits for it.
    """

    def __init__(
        self, store: TurnStore, messages: MessageStore, work: TurnWork, metrics: Metrics, awaited: Awaited
    ) -> None:
        self._store = store
        self._messages = messages
        self._work = work
        self._metrics = metrics
        self._awaited = awaited
        self._later = Later()
        self._turns: list[Row] = []

    @property
    def pending(self) -> Pending:
        """What was handed over and is not done yet."""
        return self._later.pending

    async def run(self) -> None:
        """Do what is handed over, until cancelled. Run in a task of its own."""
        await self._later.run()

    async def of_input_alone(self, runs: Collection[RunPlace]) -> set[RunPlace]:
        """Those of these runs of which no more is recorded than one input, as far as that is found out.

        None of them where it cannot be told whose a row is, the store refuses, or a run has many rows: whoever closes
        their turns looks at each.

        Raises:
            StoreUnavailableError: the store did not answer.
        """
        if not 0 < len(runs) <= _MOST_RUNS:
            return set()
        most = 2 * len(runs)
        recorded: dict[RunPlace, list[Any]] = {run: [] for run in runs}
        try:
            rows = await self._messages.roles_of_runs(runs, limit=most)
        except StoreRejectedError as error:
            _log.warning("turns_not_closed_at_once", reason=str(error), turns=len(runs))
            return set()
        for row in rows:
            owner_key, run_id = row.get("owner_key"), run_of(row)
            roles = recorded.get((owner_key, run_id)) if isinstance(owner_key, str) and run_id is not None else None
            if roles is None:
                return set()
            roles.append(row.get("role"))
        if len(rows) == most:
            return set()
        # An input that is about to be recorded, as those of the journal are, counts as one that is.
        return {run for run, roles in recorded.items() if roles in ([], ["HUMAN"])}

    def complete(self, turn: Row) -> None:
        """Have a turn that `TurnStore.latest_turns` has told of count as completed before long."""
        self._turns.append(turn)
        if len(self._turns) == 1:
            self._later.do(self._complete)

    async def _complete(self) -> None:
        with anyio.move_on_after(_TOGETHER_S):
            await self._awaited.wait()
        turns, self._turns = self._turns, []
        settings, now = self._work.settings, utc_now()
        unheard = {turn["_id"]: run for turn in turns if (run := _begun_run(turn))}
        try:
            alone = await self.of_input_alone({*unheard.values()})
            closed = await self._store.close_unheard(
                [turn for turn, run in unheard.items() if run in alone],
                closed_unheard(now + timedelta(seconds=settings.idle_s)),
            )
            self._metrics.count(Event.TURN_CLOSED_UNHEARD, closed)
            if closed < len(turns):
                due_by = now + timedelta(seconds=settings.settled_s)
                await self._store.overtake([turn["_id"] for turn in turns], OVERTAKEN, due_by=due_by)
        except (StoreRejectedError, StoreUnavailableError) as error:
            # Whoever looks at them sees it, too.
            _log.warning("turn_delayed", reason=str(error), pending=len(turns))


def _begun_run(turn: Row) -> RunPlace | None:
    """The run of a turn that has begun and done nothing since; None for any other, and for a malformed document."""
    run_id = run_of(turn)
    return (turn["owner_key"], run_id) if run_id is not None and turn.get("status") == TurnStatus.PENDING else None
