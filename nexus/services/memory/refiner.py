"""Has a model rewrite the summaries of compactions in the background (contract §7).

Work that is due stands in the compactions and is claimed there one by one, as for turns:

| field | meaning |
|---|---|
| `work`, `due_at` | `refine`, or None; and from when on |
| `calls` | how many replies the model has given for it; beyond `max_calls` the summary by rules stays |
| `attempts`, `delays` | how often a reply was unusable, and how often the model could not be asked |
| `waits` | the `due_at` of one that waits for the one before it |

- A model's summary is stored only if the one by rules that it replaces is unchanged.
- Compactions of a session are rewritten in their order, each on the summary of the one before. One whose replies were
  unusable three times does not hold up the next, which is written on its summary by rules.
- Once a later one is rewritten, an earlier one is not asked for again.
- Rows that were removed cannot be read again: the summary by rules stays.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Self

import anyio
import structlog

from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Event, Metrics, NoMetrics
from nexus.core.models import to_milliseconds, utc_now
from nexus.core.ports import LanguageModel, MessageStore, Row, TokenCounter
from nexus.core.ports.memory import MemoryStore
from nexus.core.working_memory import REFINE, Compaction
from nexus.services.due_work import (
    NOTHING_DUE,
    ModelOutcomes,
    WorkClaim,
    WorkSettings,
    WorkSignal,
    changes_by_model,
    claim_due,
    count_in,
    run_due_work,
)
from nexus.services.memory.documents import read_all
from nexus.services.memory.model_summary import SummaryWriter
from nexus.services.text.model_reply import CallLimit
from nexus.services.text.sentences import weight

_log = structlog.get_logger(__name__)

_ROWS_AT_ONCE: Final = 200
_HOLDS_UP: Final = 3
# The model's summary weighs at least this part of that by rules, which uses all the room there is.
_LEAST_PART: Final = 10
_BY_MODEL: Final = "model"
_UNCHANGED: Final = ("summary", "source")
_OUTCOMES: Final = ModelOutcomes(Event.REFINING_DELAYED, Event.REFINING_REFUSED, Event.REFINING_GIVEN_UP)


@dataclass(frozen=True, slots=True)
class RefiningSettings(WorkSettings):
    """Settings of the refiner."""

    # Compactions that are with the model at once.
    at_once: int = 2
    # Of one prompt.
    max_input_tokens: int = 24_000
    summary_max_tokens: int = 1_500
    max_calls: int = 20


class SummaryRefiner:
    """Rewrites summaries while `running()`.

    `settings` may be replaced at any time; `at_once` and `max_input_tokens` stay as they were.
    """

    def __init__(
        self,
        store: MemoryStore,
        messages: MessageStore,
        model: LanguageModel,
        counter: TokenCounter,
        *,
        settings: RefiningSettings | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._store = store
        self._messages = messages
        self._model = model
        self._counter = counter
        self.settings = settings or RefiningSettings()
        self._metrics = metrics or NoMetrics()
        self._writer = SummaryWriter(
            model, counter, max_input_tokens=self.settings.max_input_tokens, metrics=self._metrics
        )
        self._signal = WorkSignal()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Rewrite summaries that are due, until the context ends; claims are given back then."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_due_work, self._take, self._handle, self._signal, self.settings.at_once, self._metrics)
            try:
                yield self
            finally:
                tasks.cancel_scope.cancel()

    def wake(self) -> None:
        """There may be a new compaction."""
        self._signal.notify()

    async def _take(self) -> WorkClaim | None:
        if self._model.resting_s:
            return None
        return await claim_due(self._claim, self._write, lease_s=self.settings.lease_s, unchanged=_UNCHANGED)

    async def _claim(self, now: datetime, until: datetime) -> Row | None:
        """Claim a compaction. On malformed ones, which are logged, nothing is due any more."""
        while compaction := await self._store.claim_compaction(REFINE, now, until):
            # A summary that is no text, or not in UTF-8, is read as one, and would always seem to have changed.
            seen = {**{name: compaction.get(name) for name in _UNCHANGED}, "due_at": until}
            if _read(compaction) and await self._write(compaction, {"due_at": until}, seen):
                return compaction
            with suppress(StoreRejectedError):
                await self._write(compaction, NOTHING_DUE, {"due_at": until})
        return None

    async def _write(self, compaction: Row, changes: Mapping[str, Any], seen: Mapping[str, Any]) -> bool:
        place: dict[str, Any] = {name: compaction.get(name) for name in ("owner_key", "session_id", "number")}
        return await self._store.update_compaction(**place, changes=changes, seen=seen)

    async def _handle(self, claimed: WorkClaim) -> None:
        run_id = claimed.document.get("run_id")
        try:
            await self._refine(claimed)
        except StoreUnavailableError as error:
            # The claim runs out, and then it is tried again.
            _log.warning("refining_delayed", run_id=run_id, reason=str(error))
            claimed.abandon()
        except StoreRejectedError as error:
            _log.error("refined_summary_rejected", run_id=run_id, reason=str(error))
            with suppress(StoreUnavailableError):
                await claimed.finish(NOTHING_DUE)

    async def _refine(self, claimed: WorkClaim) -> None:
        document = claimed.document
        before, after = await self._neighbours(document)
        if after and after.get("source") == _BY_MODEL:
            changes: Mapping[str, Any] = NOTHING_DUE
        elif before and _holds_up(before):
            await claimed.finish(self._waiting(before))
            return
        else:
            ask = partial(self._ask, document, before)
            changes = await changes_by_model(document, ask, _OUTCOMES, self.settings, self._metrics)
        if not await claimed.finish(changes):
            return
        if changes.get("source") == _BY_MODEL:
            self._metrics.count(Event.COMPACTION_REFINED)
        if not _holds_up({**document, **changes}):
            await self._release_next(document)

    async def _ask(self, document: Row, before: Row | None, calls: CallLimit) -> Mapping[str, Any]:
        summary = await self._summary(document, before, calls)
        if summary is None:
            return NOTHING_DUE
        return {**NOTHING_DUE, "summary": summary, "source": _BY_MODEL, "tokens_after": self._counter.count(summary)}

    async def _summary(self, document: Row, before: Row | None, calls: CallLimit) -> str | None:
        """The model's summary; None where the rows are gone or hold nothing to tell."""
        (compaction,) = _read(document)
        ids = compaction.rows
        by_model = before is not None and before.get("source") == _BY_MODEL
        earlier = before["summary"] if before else ""
        most = self.settings.summary_max_tokens
        summary = self._writer.begin(earlier, min(most, compaction.summary_tokens or most), calls, by_model=by_model)
        for start in range(0, len(ids), _ROWS_AT_ONCE):
            page = ids[start : start + _ROWS_AT_ONCE]
            found = {row["_id"]: row for row in await self._messages.messages_of_ids(document["owner_key"], page)}
            if not found.keys() >= {*page}:
                return None
            await summary.add([found[row_id] for row_id in page])
        return await summary.finish(weight(compaction.summary) // _LEAST_PART)

    async def _neighbours(self, document: Row) -> tuple[Row | None, Row | None]:
        """The compactions before and after this one, without their rows."""
        number = document["number"]
        around = await self._store.compactions(
            document["owner_key"], document["session_id"], limit=3, before=number + 2
        )
        before = next((other for other in around if _read(other) and other["number"] < number), None)
        return before, next((other for other in around if _read(other) and other["number"] > number), None)

    def _waiting(self, before: Row) -> dict[str, Any]:
        """It is due again when the one before it is done, else after its lease."""
        soon = to_milliseconds(utc_now()) + timedelta(seconds=self.settings.lease_s)
        until = max(soon, before["due_at"])
        return {"due_at": until, "waits": until}

    async def _release_next(self, document: Row) -> None:
        """Make the next one due, if it waits. Were it claimed meanwhile, its `due_at` would have changed."""
        _, after = await self._neighbours(document)
        if after and after.get("work") == REFINE and after.get("waits") and after["waits"] == after.get("due_at"):
            await self._write(after, {"due_at": utc_now()}, {"work": REFINE, "due_at": after["due_at"]})
            self._signal.notify()


def _read(compaction: Row) -> list[Compaction]:
    return read_all(Compaction, (compaction.get("owner_key", ""), compaction.get("session_id", "")), [compaction])


def _holds_up(compaction: Row) -> bool:
    is_due = compaction.get("work") == REFINE and isinstance(compaction.get("due_at"), datetime)
    return is_due and count_in(compaction, "attempts") < _HOLDS_UP
