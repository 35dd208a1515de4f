"""The background work on turns: closing those that are over, and having a model summarise them (CONTRACT §6).

Rules of this module:

- What is due stands in the store, and is claimed there (`claims`): turns to close some at once (`closing`), turns to
  summarise one by one.
- What was heard of a turn meanwhile makes it due again: a result is only kept if the turn is still as it was claimed.
- Nothing here holds up an answer: a turn that is over gets a summary by rules at once, and keeps it until a model has
  made a better one.
- What takes long with a large turn is done in a thread.
- A model that is away is asked again when it has rested; how soon for the same turn, `patience` says.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Self

import anyio
import structlog

from nexus.core.errors import ModelUnavailableError, StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Event, Metrics, NoMetrics
from nexus.core.models import utc_now
from nexus.core.ports import LanguageModel, MessageStore, Row, TurnStore
from nexus.core.tasks import Way
from nexus.core.turns import CLOSE, SUMMARISE
from nexus.services.turns.batches import Batch
from nexus.services.turns.claims import Bell, Claimed, take, work_off
from nexus.services.turns.closing import Closing
from nexus.services.turns.documents import given_up, summarised
from nexus.services.turns.malformed import placed
from nexus.services.turns.patience import delayed, refused
from nexus.services.turns.summariser import NonsenseError, Summariser

_log = structlog.get_logger(__name__)

# Batches of turns.
_CLOSING_AT_ONCE: Final = 2
_AFTER_FAULT: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class WorkSettings:
    """What the work needs of the settings.

    Attributes:
        idle_s: after so long a silence a turn is over although its answer is not known.
        summaries_at_once: turns that are with the model at once.
        again_s: how soon a model is asked again that gave no summary; twice as long with each attempt.
        lease_s: for how long a claim holds that is not renewed.
        settled_s: after so long nothing of a run is on its way any more; in streams each replica records its share of
            the messages at its own pace.
    """

    idle_s: float = 300.0
    summaries_at_once: int = 4
    again_s: float = 30.0
    lease_s: float = 15.0
    settled_s: float = 5.0


class TurnWork:
    """Closes and summarises turns. Use `running()` to have it done.

    Args:
        store: where turns are kept.
        messages: where the rows of their runs are.
        model: who summarises; None where summaries by rules have to do.
        summariser: how it is asked; needed with a model.
        settings: may be replaced at any time.
        metrics: what is counted.
        way: given to what somebody waits for.
    """

    def __init__(
        self,
        store: TurnStore,
        messages: MessageStore,
        model: LanguageModel | None = None,
        *,
        max_input_tokens: int = 24_000,
        settings: WorkSettings | None = None,
        metrics: Metrics | None = None,
        way: Way | None = None,
    ) -> None:
        self._store = store
        self._model = model
        self._summariser = Summariser(model, max_input_tokens=max_input_tokens) if model else None
        self._metrics = metrics or NoMetrics()
        self._to_close, self._to_summarise = Bell(), Bell()
        self._closing = Closing(
            store, messages, self._metrics, way=way or Way(), to_close=self._to_close, to_summarise=self._to_summarise
        )
        self.settings = settings or WorkSettings()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Do what is due, until the context ends; what is in hand then is given back."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work_off, self._take_to_close, self._close, self._to_close, _CLOSING_AT_ONCE)
            if self._summariser:
                at_once = self.settings.summaries_at_once
                summarise = partial(self._try, partial(self._summarise, self._summariser))
                tasks.start_soon(work_off, self._take_to_summarise, summarise, self._to_summarise, at_once)
            try:
                yield self
            finally:
                tasks.cancel_scope.cancel()

    def wake(self) -> None:
        """There may be a turn to close."""
        self._to_close.ring()

    async def _take_to_close(self) -> Batch | None:
        return await self._closing.take(self.settings.lease_s)

    async def _take_to_summarise(self) -> Claimed | None:
        if self._model and self._model.resting_s:
            return None
        return await take(self._claim, self._closing.write, lease_s=self.settings.lease_s, unchanged=("heard_at",))

    async def _claim(self, now: datetime, until: datetime) -> Row | None:
        claimed = await self._store.claim(SUMMARISE, now, until)
        return next(iter(placed([claimed])), None) if claimed else None

    async def _try(self, do: Callable[[Claimed], Awaitable[None]], claimed: Claimed) -> None:
        run_id = claimed.document["run_id"]
        try:
            await do(claimed)
        except StoreUnavailableError as error:
            # The claim runs out, and then it is tried again.
            _log.warning("turn_work_delayed", run_id=run_id, reason=str(error))
            claimed.let_go()
        except StoreRejectedError as error:
            _log.error("turn_refused", run_id=run_id, reason=str(error))
            with suppress(StoreUnavailableError):
                await claimed.finish(given_up(claimed.document))
        except Exception as error:  # noqa: BLE001  # one turn must not stop the work on all others
            _log.exception("turn_work_failed", run_id=run_id, reason=type(error).__name__)
            with suppress(StoreUnavailableError):
                await claimed.finish({"due_at": utc_now() + _AFTER_FAULT})

    async def _close(self, batch: Batch) -> None:
        """See whether the turns are over, and write what they were."""
        idle, settled = timedelta(seconds=self.settings.idle_s), timedelta(seconds=self.settings.settled_s)
        try:
            left = await self._closing.close_together(batch, idle, settled)
        except Exception:  # noqa: BLE001  # each by itself says what is wrong, and does not stop the others
            left = [claimed for claimed in batch.claimed if claimed.is_held]
        for claimed in left:
            await self._try(partial(self._closing.close, idle=idle, settled=settled), claimed)

    async def _summarise(self, summariser: Summariser, claimed: Claimed) -> None:
        """Have the model write the summary, and keep it."""
        document = claimed.document
        facts, rows = await self._closing.facts(document)
        if rows != document.get("rows"):
            # Something was recorded of which nobody has told yet.
            await claimed.finish({"work": CLOSE, "due_at": utc_now()})
            self._to_close.ring()
            return
        try:
            made = await summariser.summarise(facts)
        except ModelUnavailableError:
            # Whoever asks it says so.
            self._metrics.count(Event.SUMMARY_DELAYED)
            await claimed.finish(delayed(document, self.settings.again_s))
        except NonsenseError as error:
            self._metrics.count(Event.SUMMARY_REFUSED)
            changes = refused(document, self.settings.again_s)
            _log.warning("summary_refused", run_id=document["run_id"], reason=str(error), attempts=changes["attempts"])
            await claimed.finish(changes)
        else:
            if await claimed.finish(summarised(made.summaries, made.insights)):
                self._metrics.count(Event.TURN_SUMMARISED)
