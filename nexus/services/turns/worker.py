"""The background work on turns: closing those that are over, and having a model summarise and read them (contract §6).

- Due work stands in the store and is claimed there, turn by turn (`due_work`).
- A result is written only if the turn is still as it was claimed. A row recorded meanwhile makes the turn due again.
- A turn that went on after the next one had begun is closed once yet another one has begun.
- Facts of the person are extracted, where that is on, once the summary is there or given up.
- Rows are read into facts and summarised in a thread.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Self

import anyio
import structlog
from anyio import to_thread

from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Event, Metrics, NoMetrics
from nexus.core.models import utc_now
from nexus.core.ports import LanguageModel, MessageStore, Row, TurnStore
from nexus.core.turns import CLOSE, EXTRACT, SUMMARISE
from nexus.services.due_work import (
    NOTHING_DUE,
    ModelOutcomes,
    WorkClaim,
    WorkSettings,
    WorkSignal,
    changes_by_model,
    claim_due,
    run_due_work,
)
from nexus.services.history.rows import texts_of_list
from nexus.services.text.model_reply import CallLimit
from nexus.services.turns.documents import (
    OVERTAKEN,
    changes_by_refusal,
    changes_by_review,
    changes_by_summary,
    facts_of,
    is_overtaken,
    is_placed,
    repaired,
    with_progress,
)
from nexus.services.turns.model_summary import Summariser

_log = structlog.get_logger(__name__)

_ROWS_AT_ONCE: Final = 200
# Each waits for the store most of the time. Where they fall behind, contexts work out turns that are not closed.
_CLOSED_AT_ONCE: Final = 4
# Summaries come first.
_EXTRACTED_AT_ONCE: Final = 1
_SUMMARY: Final = ModelOutcomes(Event.SUMMARY_DELAYED, Event.SUMMARY_REFUSED, Event.SUMMARY_GIVEN_UP)
_FACTS: Final = ModelOutcomes(
    Event.EXTRACTION_DELAYED, Event.EXTRACTION_REFUSED, Event.EXTRACTION_GIVEN_UP, "extraction_calls"
)


@dataclass(frozen=True, slots=True)
class TurnSettings(WorkSettings):
    """Settings of the work on turns.

    Attributes:
        idle_s: seconds of silence after which a turn is over although it has no answer.
        summaries_at_once: turns that are with the model at once.
        max_calls: of the summary of a turn; its facts may take as many.
        settled_s: seconds of silence after which nothing of a run is on its way any more; in streams each replica
            records its share of the messages at its own pace.
    """

    idle_s: float = 300.0
    summaries_at_once: int = 4
    settled_s: float = 5.0


# Called with the owner, the `id` of the input and the texts of a model's summary, before it is written.
Summarised = Callable[[str, str, str], Awaitable[None]]
# Keeps the facts in what a person said: called with the owner, the run, its rows, the ids of messages that were read
# before, and the limit of calls. Returns the ids of those that it read. Errors are those of a summary.
Extract = Callable[[str, str, Sequence[Row], Sequence[str], CallLimit], Awaitable[Sequence[str]]]


async def _ignore(*_: object) -> None:
    pass


class TurnWorker:
    """Closes and summarises turns while `running()`, by `settings` that may be replaced at any time."""

    def __init__(
        self,
        store: TurnStore,
        messages: MessageStore,
        model: LanguageModel | None = None,
        *,
        max_input_tokens: int = 24_000,
        settings: TurnSettings | None = None,
        metrics: Metrics | None = None,
        summarised: Summarised = _ignore,
        extract: Extract | None = None,
    ) -> None:
        self._store = store
        self._model = model
        self._metrics = metrics or NoMetrics()
        self._summariser = (
            Summariser(model, max_input_tokens=max_input_tokens, metrics=self._metrics) if model else None
        )
        self._messages = messages
        self._summarised = summarised
        self._extract = extract
        self._to_close, self._to_summarise, self._to_extract = WorkSignal(), WorkSignal(), WorkSignal()
        self.settings = settings or TurnSettings()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Do due work, until the context ends; claims that are held then are given back."""
        async with anyio.create_task_group() as tasks:
            claim = partial(self._claim_due, CLOSE, ("heard_at", "overtaken"))
            do = partial(self._try, self._close)
            tasks.start_soon(run_due_work, claim, do, self._to_close, _CLOSED_AT_ONCE, self._metrics)
            if self._summariser:
                claim, at_once = partial(self._claim_for_model, SUMMARISE), self.settings.summaries_at_once
                do = partial(self._try, partial(self._summarise, self._summariser))
                tasks.start_soon(run_due_work, claim, do, self._to_summarise, at_once, self._metrics)
            if self._extract:
                claim = partial(self._claim_for_model, EXTRACT)
                do = partial(self._try, partial(self._extract_facts, self._extract))
                tasks.start_soon(run_due_work, claim, do, self._to_extract, _EXTRACTED_AT_ONCE, self._metrics)
            try:
                yield self
            finally:
                tasks.cancel_scope.cancel()

    def wake(self) -> None:
        """Signal that there may be a turn to close."""
        self._to_close.notify()

    async def _claim_for_model(self, work: str) -> WorkClaim | None:
        if self._model and self._model.resting_s:
            return None
        return await self._claim_due(work, ("heard_at",))

    async def _claim_due(self, work: str, unchanged: tuple[str, ...]) -> WorkClaim | None:
        claim = partial(self._claim, work)
        return await claim_due(claim, self._write, lease_s=self.settings.lease_s, unchanged=unchanged)

    async def _claim(self, work: str, now: datetime, until: datetime) -> Row | None:
        """Claim a turn, which is repaired. On one that cannot be, which is logged, nothing is due any more."""
        while turn := await self._store.claim(work, now, until):
            if is_placed(turn):
                if changes := repaired(turn):
                    await self._write(turn, changes, {"due_at": until})
                return {**turn, **changes}
            _log.warning("turn_malformed", run_id=str(turn.get("run_id")))
            with suppress(StoreRejectedError):
                await self._write(turn, NOTHING_DUE, {"due_at": until})
        return None

    async def _try(self, do: Callable[[WorkClaim], Awaitable[None]], claimed: WorkClaim) -> None:
        run_id = claimed.document["run_id"]
        try:
            await do(claimed)
        except StoreUnavailableError as error:
            # The claim runs out, and then it is tried again.
            _log.warning("turn_work_delayed", run_id=run_id, reason=str(error))
            claimed.abandon()
        except StoreRejectedError as error:
            _log.error("turn_refused", run_id=run_id, reason=str(error))
            with suppress(StoreUnavailableError):
                await claimed.finish(changes_by_refusal(claimed.document))

    async def _close(self, claimed: WorkClaim) -> None:
        """Write the facts of a turn that is over."""
        changes = await self._look_at(claimed.document)
        if not await claimed.finish(changes):
            self._to_close.notify()
        elif changes.get("work") == SUMMARISE:
            self._metrics.count(Event.TURN_CLOSED)
            self._to_summarise.notify()

    async def _look_at(self, turn: Row) -> dict[str, Any]:
        """The changes to a turn: closed if it is over, else when to look again."""
        rows = await self._rows_of(turn)
        idle, settled = timedelta(seconds=self.settings.idle_s), timedelta(seconds=self.settings.settled_s)
        changes = await to_thread.run_sync(_look, turn, rows, idle, settled)
        if "status" not in changes and not turn.get("overtaken"):
            latest = await self._store.latest_turn(turn["owner_key"], turn["session_id"])
            if latest and is_overtaken(turn, latest):
                return {**OVERTAKEN, "due_at": utc_now() + settled}
        return changes

    async def _write(self, turn: Row, changes: Mapping[str, Any], seen: Mapping[str, Any]) -> bool:
        place: dict[str, Any] = {name: turn.get(name) for name in ("owner_key", "session_id", "turn_number")}
        return await self._store.update_turn(**place, changes=changes, seen=seen)

    async def _rows_of(self, turn: Row) -> list[Row]:
        run, rows = (turn["owner_key"], turn["run_id"]), list[Row]()
        while True:
            page = await self._messages.run_messages(*run, limit=_ROWS_AT_ONCE, before=rows[-1] if rows else None)
            rows += page
            if len(page) < _ROWS_AT_ONCE:
                return rows

    async def _summarise(self, summariser: Summariser, claimed: WorkClaim) -> None:
        """Have the model write the summary, and keep it."""
        turn = claimed.document
        rows = await self._rows_of(turn)
        if len(rows) != turn.get("rows"):
            # Rows were recorded since the turn was closed.
            await claimed.finish({"work": CLOSE, "due_at": utc_now()})
            self._to_close.notify()
            return
        facts = await to_thread.run_sync(facts_of, turn, rows)

        async def ask(calls: CallLimit) -> Mapping[str, Any]:
            made = await summariser.summarise(facts, calls)
            if input_id := next(iter(facts.message_ids), ""):
                texts = (made.summaries.brief, made.summaries.detailed, *made.insights)
                await self._summarised(turn["owner_key"], input_id, "\n".join(texts))
            return {**changes_by_summary(made.summaries, made.insights), "calls": calls.taken}

        changes = await changes_by_model(turn, ask, _SUMMARY, self.settings, self._metrics)
        if self._extract and "work" in changes:
            # It is there, or given up.
            changes |= {"work": EXTRACT, "due_at": utc_now(), "attempts": 0, "delays": 0}
        if await claimed.finish(changes) and "summaries" in changes:
            self._metrics.count(Event.TURN_SUMMARISED)
        self._to_extract.notify()

    async def _extract_facts(self, extract: Extract, claimed: WorkClaim) -> None:
        """Keep the facts in what the person said in the turn."""
        turn = claimed.document
        rows, known = await self._rows_of(turn), texts_of_list(turn.get("extracted"))

        async def ask(calls: CallLimit) -> Mapping[str, Any]:
            read = await extract(turn["owner_key"], turn["run_id"], rows, known, calls)
            return {**NOTHING_DUE, "extracted": [*known, *read], "extraction_calls": calls.taken}

        changes = await changes_by_model(turn, ask, _FACTS, self.settings, self._metrics)
        # The field is about the summary.
        changes.pop("given_up", None)
        await claimed.finish(changes)


def _look(turn: Row, rows: Sequence[Row], idle: timedelta, settled: timedelta) -> dict[str, Any]:
    turn = with_progress(turn, rows)
    return changes_by_review(turn, facts_of(turn, rows), len(rows), utc_now(), idle=idle, settled=settled)
