"""The background work on compactions: having a model write their summaries in place of the rules (CONTRACT §7).

What is due stands in the compactions and is claimed there piece by piece, as turns are (`services.turns.claims`):

| field | meaning |
|---|---|
| `work`, `due_at` | `refine`, or None; and from when on |
| `attempts`, `delays` | how often a model answered with nonsense, and how often it could not be asked |
| `waits` | the `due_at` of one that waits for the one before it |

Rules of this module:

- Nothing here holds up an answer: the summary by rules is there from the start, and stays until there is a better one.
  What the model wrote is only kept if the summary is still the one that it was to replace.
- Of a session the lower number comes first, and the next is written on what became of it. Only the newest summary is
  shown, so it would do to refine that one; but without those before it, it would rest on the few words that rules have
  for their rows, and with them it has to be told their rows all the same. In their order each row is told once, what
  was done is kept when the model goes away in the middle, and calls are as many as parts that fit into a prompt, or one
  more for each compaction.
- One that the model has refused three times holds up the next no longer: that is then written on its summary by rules.
  Once a later one is refined, nobody needs it any more, and the model is not asked again.
- Rows that were removed cannot be told again: what the rules said of them stays.
- When a model is asked again, and when no more, `services.turns.patience` says.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Self

import anyio
import structlog

from nexus.core.errors import ModelUnavailableError, StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Event, Metrics, NoMetrics
from nexus.core.models import utc_now
from nexus.core.ports import LanguageModel, MessageStore, Row, TokenCounter
from nexus.core.ports.memory import MemoryStore
from nexus.core.working_memory import REFINE
from nexus.services.memory.rewriting import Rewriter
from nexus.services.turns.claims import Bell, Claimed, take, work_off
from nexus.services.turns.documents import to_milliseconds
from nexus.services.turns.patience import delayed, refused
from nexus.services.turns.reply import NonsenseError
from nexus.services.turns.sentences import weight

_log = structlog.get_logger(__name__)

_ROWS_AT_ONCE: Final = 200
_AFTER_FAULT: Final = timedelta(hours=1)
_HOLDS_UP: Final = 3
# Which part of the weight of the summary by rules, which is not short of words, the model's has at least.
_LEAST_PART: Final = 10
_NOTHING_DUE: Final[Mapping[str, Any]] = {"work": None, "due_at": None}
_BY_MODEL: Final = "model"


@dataclass(frozen=True, slots=True)
class RefiningSettings:
    """What refining needs of the settings.

    Attributes:
        at_once: compactions that are with the model at once.
        again_s: how soon a model is asked again that gave no summary; twice as long with each attempt.
        lease_s: for how long a claim holds that is not renewed.
        max_input_tokens: what fits into one prompt.
        summary_max_tokens: that a summary may have.
    """

    at_once: int = 2
    again_s: float = 30.0
    lease_s: float = 15.0
    max_input_tokens: int = 24_000
    summary_max_tokens: int = 1_500


class Refining:
    """Has a model write the summaries of compactions. Use `running()` to have it done.

    Args:
        store: where compactions are kept.
        messages: where their rows are.
        model: who writes.
        counter: how the length of a summary is counted.
        settings: may be replaced at any time; what fits into a prompt, and how many there are at once, stays.
        metrics: what is counted.
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
        self._rewriter = Rewriter(model, counter, max_input_tokens=self.settings.max_input_tokens)
        self._metrics = metrics or NoMetrics()
        self._bell = Bell()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Do what is due, until the context ends; what is in hand then is given back."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work_off, self._take, self._try, self._bell, self.settings.at_once)
            try:
                yield self
            finally:
                tasks.cancel_scope.cancel()

    def wake(self) -> None:
        """There may be a compaction whose summary is by rules."""
        self._bell.ring()

    async def _take(self) -> Claimed | None:
        if self._model.resting_s:
            return None
        claim = partial(self._store.claim_compaction, REFINE)
        return await take(claim, self._write, lease_s=self.settings.lease_s, unchanged=("summary", "source"))

    async def _write(self, compaction: Row, changes: Mapping[str, Any], seen: Mapping[str, Any]) -> bool:
        place = compaction["owner_key"], compaction["session_id"], compaction["number"]
        return await self._store.update_compaction(*place, changes, seen=seen)

    async def _try(self, claimed: Claimed) -> None:
        run_id = claimed.document.get("run_id")
        try:
            await self._refine(claimed)
        except StoreUnavailableError as error:
            # The claim runs out, and then it is tried again.
            _log.warning("refining_delayed", run_id=run_id, reason=str(error))
            claimed.let_go()
        except StoreRejectedError as error:
            _log.error("refined_summary_rejected", run_id=run_id, reason=str(error))
            with suppress(StoreUnavailableError):
                await claimed.finish(_NOTHING_DUE)
        except Exception as error:  # noqa: BLE001  # one compaction must not stop the work on all others
            _log.exception("refining_failed", run_id=run_id, reason=type(error).__name__)
            with suppress(StoreUnavailableError):
                attempts = (claimed.document.get("attempts") or 0) + 1
                await claimed.finish({"attempts": attempts, "due_at": utc_now() + _AFTER_FAULT})

    async def _refine(self, claimed: Claimed) -> None:
        """Have the summary written, unless it has to wait or nobody needs it; then the next one need not wait."""
        document = claimed.document
        before, after = await self._beside(document)
        if after and after.get("source") == _BY_MODEL:
            changes: Mapping[str, Any] = _NOTHING_DUE
        elif before and _holds_up(before):
            await claimed.finish(self._waiting(before))
            return
        else:
            changes = await self._changes(document, before)
        if not await claimed.finish(changes):
            return
        if changes.get("source") == _BY_MODEL:
            self._metrics.count(Event.COMPACTION_REFINED)
        if not _holds_up({**document, **changes}):
            await self._let_next_go_on(document)

    async def _changes(self, document: Row, before: Row | None) -> Mapping[str, Any]:
        """What is changed in a compaction when the model has been asked, or could not be."""
        try:
            summary = await self._summary(document, before)
        except ModelUnavailableError:
            # Whoever asks it says so.
            self._metrics.count(Event.REFINING_DELAYED)
            return delayed(document, self.settings.again_s)
        except NonsenseError as error:
            self._metrics.count(Event.REFINING_REFUSED)
            changes = refused(document, self.settings.again_s)
            attempts = changes["attempts"]
            _log.warning("refining_refused", run_id=document.get("run_id"), reason=str(error), attempts=attempts)
            return changes
        if summary is None:
            return _NOTHING_DUE
        return {**_NOTHING_DUE, "summary": summary, "source": _BY_MODEL, "tokens_after": self._counter.count(summary)}

    async def _summary(self, document: Row, before: Row | None) -> str | None:
        """The summary by the model; None where there is nothing that it could be told."""
        ids: Sequence[str] = document["rows"]
        by_model = before is not None and before.get("source") == _BY_MODEL
        earlier = before["summary"] if before else ""
        most = self.settings.summary_max_tokens
        rewriting = self._rewriter.begin(earlier, min(most, document.get("summary_tokens") or most), by_model=by_model)
        for start in range(0, len(ids), _ROWS_AT_ONCE):
            page = ids[start : start + _ROWS_AT_ONCE]
            found = {row["_id"]: row for row in await self._messages.messages_of_ids(document["owner_key"], page)}
            if not found.keys() >= {*page}:
                return None
            await rewriting.tell([found[row_id] for row_id in page])
        return await rewriting.finish(weight(document["summary"]) // _LEAST_PART)

    async def _beside(self, document: Row) -> tuple[Row | None, Row | None]:
        """The compactions before and after this one, without their rows."""
        number = document["number"]
        around = await self._store.compactions(
            document["owner_key"], document["session_id"], limit=3, before=number + 2
        )
        before = next((other for other in around if other["number"] < number), None)
        return before, next((other for other in around if other["number"] > number), None)

    def _waiting(self, before: Row) -> dict[str, Any]:
        """What is changed in one that waits: it is looked at again when the one before it is done, else then."""
        soon = to_milliseconds(utc_now()) + timedelta(seconds=self.settings.lease_s)
        until = max(soon, before["due_at"])
        return {"due_at": until, "waits": until}

    async def _let_next_go_on(self, document: Row) -> None:
        """Have the next one done now, if it waits: whoever has it in hand has changed its `due_at`."""
        _, after = await self._beside(document)
        if after and after.get("work") == REFINE and after.get("waits") and after["waits"] == after.get("due_at"):
            await self._write(after, {"due_at": utc_now()}, {"work": REFINE, "due_at": after["due_at"]})
            self._bell.ring()


def _holds_up(compaction: Row) -> bool:
    """Whether the next one has to wait for this one."""
    is_due = compaction.get("work") == REFINE and isinstance(compaction.get("due_at"), datetime)
    return is_due and (compaction.get("attempts") or 0) < _HOLDS_UP
