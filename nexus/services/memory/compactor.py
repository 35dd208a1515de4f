"""Makes compactions (contract §7).

- A compaction exists once it is stored under its number, and each number is stored once: a replica that finds it
  taken starts again with the rows that are left.
- Archives are stored before their compaction. One whose compaction is then not stored is harmless
  (`disowned_archives`).
- A tail that is too long for memory is compacted in steps, each valid by itself. All carry the id of the message that
  asked, and all but the last are marked as steps: a resent message does the rest.
- A compaction goes on when its requester stops waiting. One that is not finished when the service ends is asked for
  again by the session's next context.
- Work that grows with the rows is done in a thread.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Self

import anyio
import structlog
from anyio import to_thread

from nexus.core.concurrency import OuterHandler, Pauses
from nexus.core.errors import CallRefusedError, StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Metrics
from nexus.core.models import is_internal, parse_moment, to_milliseconds, utc_now
from nexus.core.ports import MemoryStore, MessageStore, Row, TokenCounter
from nexus.core.working_memory import REFINE, WHOLE, Compaction, CompactionJob, CompactionRequest, Detail
from nexus.services.due_work import NOTHING_DUE
from nexus.services.history.condense import is_condensed
from nexus.services.history.messages import messages_of
from nexus.services.history.rows import storable
from nexus.services.history.tombstones import Made, Tombstones
from nexus.services.memory.archive import archive
from nexus.services.memory.documents import LOOKED_BACK, disowned_archives, document_of, read_all
from nexus.services.memory.plan import MOST_ROWS, TailRows, look_at_runs, read_tail, select
from nexus.services.memory.rule_summary import by_run, summarise
from nexus.services.memory.units import KnownRuns
from nexus.services.text.sentences import weight
from nexus.services.text.tokens import Measure

_log = structlog.get_logger(__name__)

Compact = Callable[[CompactionRequest], Awaitable[Compaction | None]]

# Each time the number is taken another compaction was made, so there is soon nothing left to do.
_MOST_ATTEMPTS: Final = 20
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.1
_NO_GAIN: Final = (
    "Nothing would be gained: what is to be compacted takes {} tokens, and the summary would grow by {}. Nothing was "
    "changed"
)
# Background compactions: of long sessions at once, and of sessions under way at all.
_LONG_AT_ONCE: Final = 2
_MOST_JOBS: Final = 1_000
# Characters from either end of a content that a summary by rules looks at.
_TOLD: Final = 8_192


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """Settings of compactions.

    A run is over after `idle_s` seconds of silence although its answer is not known. With `refine`, a model writes a
    better summary later. `detail_max_bytes` is for one part of an archive.
    """

    idle_s: float = 300.0
    summary_max_tokens: int = 1_500
    refine: bool = False
    detail_max_bytes: int = 65_536


# A compaction before it is stored, without the names of its archives, and the rows that it covers.
Draft = tuple[Compaction, tuple[Row, ...]]


class Compactor:
    """Compacts sessions. Its settings may be replaced at any time."""

    def __init__(
        self,
        store: MemoryStore,
        messages: MessageStore,
        tombstones: Tombstones,
        counter: TokenCounter,
        settings: CompactionSettings | None = None,
    ) -> None:
        self._store = store
        self._tombstones = tombstones
        self._messages = messages
        self._counter = counter
        self.settings = settings or CompactionSettings()

    async def compact(self, request: CompactionRequest, /) -> Compaction | None:
        """Make the compaction, and return the last one made for it, here or meanwhile by another replica.

        One message is served once: asked again, it gets the compaction that it got before. None where there is nothing
        to compact.

        Raises:
            ErasedError: of what is to be compacted something was erased a moment ago.
            CallRefusedError: a model asks for a summary that would be no shorter than the rows it stands for.
            StoreUnavailableError: the store did not answer. The compaction may have been stored or not.
        """
        made: Compaction | None = None
        attempts, most_rows, pauses = 0, MOST_ROWS, Pauses(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            begun_at = utc_now()
            latest = await self._latest(request)
            made = made or await self._made_before(request, latest)
            if made and not made.is_step:
                return made
            found, drafted = await self._draft(request, latest, most_rows)
            if drafted is None and found.goes_on:
                # The oldest rows all stay: look further.
                most_rows *= 2
            elif drafted is None or (made and not _is_worthwhile(request, drafted[0])):
                return await self._finished(request, made) if made else (latest if attempts else None)
            elif not _is_worthwhile(request, planned := drafted[0]):
                grown = planned.tokens_after - planned.tokens_carried
                raise CallRefusedError(_NO_GAIN.format(planned.tokens_before, grown))
            elif compaction := await self._store_draft(*drafted, request, latest, begun_at):
                made, attempts = compaction, 0
                # Where some of the oldest rows are not meant, they come first again.
                most_rows = MOST_ROWS if request.target == "all" else 2 * most_rows
            elif (attempts := attempts + 1) == _MOST_ATTEMPTS:
                raise StoreUnavailableError("others compact the session all the time")
            else:
                await pauses.wait()

    async def _draft(
        self, request: CompactionRequest, latest: Compaction | None, most_rows: int
    ) -> tuple[TailRows, Draft | None]:
        tail = latest.tail if latest else WHOLE
        is_archive = request.strategy == "archive"
        found = await read_tail(self._messages, *request.session, tail, most_rows=most_rows, whole=is_archive)
        now, settings = to_milliseconds(utc_now()), self.settings
        idle = timedelta(seconds=settings.idle_s)
        known = await look_at_runs(self._messages, request.owner_key, found, now=now, idle=idle)
        make = partial(draft, request, found, latest, now, counter=self._counter, settings=settings, known=known)
        # The requester may stop waiting, and the thread changes nothing.
        return found, await to_thread.run_sync(make, abandon_on_cancel=True)

    async def _latest(self, request: CompactionRequest) -> Compaction | None:
        """The newest compaction. One that cannot be read is an error: nothing could follow it."""
        document = await self._store.latest_compaction(*request.session)
        found = read_all(Compaction, request.session, [document])
        if document is not None and not found:
            raise StoreUnavailableError("the newest compaction of the session cannot be read")
        return next(iter(found), None)

    async def _made_before(self, request: CompactionRequest, latest: Compaction | None) -> Compaction | None:
        if latest is None or not request.call_id or latest.call_id == request.call_id:
            return latest if request.call_id else None
        documents = await self._store.compactions(*request.session, limit=LOOKED_BACK, before=latest.number)
        found = read_all(Compaction, request.session, documents)
        return next((each for each in found if each.call_id == request.call_id), None)

    async def _finished(self, request: CompactionRequest, made: Compaction) -> Compaction:
        """The last step, marked as such, when nothing is left to do."""
        changes, seen = {"is_step": False}, {"is_step": True}
        await self._store.update_compaction(*request.session, made.number, changes, seen=seen)
        return made.model_copy(update=changes)

    async def _store_draft(
        self,
        compaction: Compaction,
        covered: Sequence[Row],
        request: CompactionRequest,
        latest: Compaction | None,
        begun_at: datetime,
    ) -> Compaction | None:
        """Store the archive, then the compaction; None where its number is taken."""
        owner_key, session_id = request.session
        made = [Made(owner_key, begun_at, session_id)]
        await self._tombstones.raise_if_erased(made)
        if compaction.strategy == "archive":
            whole = await self._whole(covered, request.owner_key)
            names = await self._store_archive(compaction, whole, request.session)
            compaction = compaction.model_copy(update={"details": names})
        listed = read_all(Detail, request.session, await self._store.list_details(*request.session))
        compaction = compaction.model_copy(update={"disowned": disowned_archives(listed, compaction, latest)})
        work = {"work": REFINE, "due_at": compaction.created_at} if self.settings.refine else NOTHING_DUE
        document = {**document_of(compaction, request.session), **work}
        # Long archives take a while.
        await self._tombstones.raise_if_erased(made)
        return compaction if await self._store.insert_compaction(document) else None

    async def _whole(self, rows: Sequence[Row], owner_key: str) -> list[Row]:
        """The rows, with what large results say in the place of what contexts show of them."""
        large = [row["_id"] for row in rows if is_condensed(row)]
        found = {row["_id"]: row for row in await self._messages.messages_of_ids(owner_key, large)} if large else {}
        return [found.get(row["_id"], row) for row in rows]

    async def _store_archive(
        self, compaction: Compaction, covered: Sequence[Row], session: tuple[str, str]
    ) -> tuple[str, ...]:
        number, most_bytes, attempt = compaction.number, self.settings.detail_max_bytes, 0
        while True:
            attempt += 1
            make = partial(archive, covered, number, most_bytes=most_bytes, attempt=attempt)
            details = [
                Detail(
                    name=name,
                    version=1,
                    kind="archive",
                    bytes=weight(content),
                    updated_at=compaction.created_at,
                    content=storable(content),
                    compaction=number,
                    call_id=compaction.call_id,
                )
                for name, content in await to_thread.run_sync(make, abandon_on_cancel=True)
            ]
            if await self._store_details([document_of(detail, session) for detail in details], session):
                return tuple(detail.name for detail in details)

    async def _store_details(self, left: list[Row], session: tuple[str, str]) -> bool:
        """Whether all are stored, by this attempt or by another with the same words."""
        while left:
            left = left[await self._store.insert_details(left) :]
            if left:
                there = await self._store.find_detail(*session, left[0]["name"], version=1)
                if there is None or there.get("content") != left[0]["content"]:
                    return False
                left = left[1:]
        return True


class BackgroundCompactions:
    """Makes compactions in the background, one at a time for each session, while `running()`.

    Compactions that a request waits for start at once. Those of sessions with more messages than a context ever reads,
    such as sessions from before there was working memory, take long, and few of them run at once.
    """

    def __init__(self, compact: Compact, metrics: Metrics) -> None:
        self._compact = compact
        self._metrics = metrics
        self._jobs: dict[tuple[str, str], CompactionJob] = {}
        self._long = anyio.Semaphore(_LONG_AT_ONCE)
        self._tasks = anyio.create_task_group()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Make the started compactions, until the context ends."""
        async with self._tasks:
            try:
                yield self
            finally:
                self._tasks.cancel_scope.cancel()

    def start(self, request: CompactionRequest, *, long: bool) -> CompactionJob | None:
        """Start it, or join the one of the session that is under way. None when too many sessions have one."""
        if job := self._jobs.get(request.session):
            return job
        if len(self._jobs) >= _MOST_JOBS:
            return None
        job = self._jobs[request.session] = CompactionJob()
        self._tasks.start_soon(self._run, request, job, long)
        return job

    async def _run(self, request: CompactionRequest, job: CompactionJob, long: bool) -> None:  # start_soon: positional
        job.failed = True
        with OuterHandler(self._metrics, "compaction", run_id=request.run_id):
            try:
                async with self._long if long else nullcontext():
                    job.made = await self._compact(request)
                job.failed = False
            except (StoreUnavailableError, StoreRejectedError) as error:
                _log.warning("compaction_delayed", run_id=request.run_id, reason=str(error))
            finally:
                del self._jobs[request.session]
                job.done.set()


def draft(
    request: CompactionRequest,
    found: TailRows,
    latest: Compaction | None,
    now: datetime,
    *,
    counter: TokenCounter,
    settings: CompactionSettings,
    known: KnownRuns,
) -> Draft | None:
    """The compaction that follows `latest`, `now` to the millisecond; None where there is nothing to compact. Pure."""
    measure = Measure(counter)
    cost = partial(_cost_of, measure)
    tail, total = (latest.tail, latest.total) if latest else (WHOLE, 0)
    selected = select(request, found, tail, now=now, idle=timedelta(seconds=settings.idle_s), cost=cost, known=known)
    covered = selected.covered
    if not covered:
        return None
    most_tokens = _most_tokens(request, latest, settings)
    left = _runs_left(found.rows, covered)
    told = by_run([*map(_in_short, covered)])
    summary = summarise(latest, told, most_tokens=most_tokens, count=counter.count, elsewhere=left)
    moments = [to_milliseconds(moment) for row in covered if (moment := parse_moment(row.get("timestamp")))]
    # One row may be several messages.
    row_ids = tuple(dict.fromkeys(row["_id"] for row in covered))
    made = Compaction(
        number=1 + (latest.number if latest else 0),
        created_at=now,
        target=selected.target,
        summary=storable(summary),
        rows=row_ids,
        count=len(row_ids),
        total=total + len(row_ids),
        is_step=found.goes_on,
        since=selected.tail.since,
        without=tuple(sorted(selected.tail.without)),
        first_at=min(moments, default=None),
        last_at=max(moments, default=None),
        summary_tokens=most_tokens,
        tokens_before=sum(map(cost, covered)),
        tokens_after=measure.text(summary),
        tokens_carried=measure.text(latest.summary) if latest else 0,
        strategy=request.strategy,
        trigger=request.trigger,
        keep_recent=request.keep_recent,
        run_id=request.run_id,
        call_id=request.call_id,
    )
    return made, covered


def _in_short(row: Row) -> Row:
    """The row with no more of its content than a line of a summary is made of."""
    content = row.get("content")
    if not isinstance(content, str) or len(content) <= 2 * _TOLD:
        return row
    return {**row, "content": f"{content[:_TOLD]}\n{content[-_TOLD:]}"}


def _most_tokens(request: CompactionRequest, latest: Compaction | None, settings: CompactionSettings) -> int:
    # A call of the model names no window; the compaction before may have been made with one.
    asked = request.summary_tokens or (latest.summary_tokens if latest else None)
    return min(settings.summary_max_tokens, asked or settings.summary_max_tokens)


def _is_worthwhile(request: CompactionRequest, made: Compaction) -> bool:
    """A summary that a model asks for has to save tokens. An archive may be wanted for itself."""
    if request.trigger != "tool" or request.strategy == "archive" or made.is_step:
        return True
    return made.tokens_after - made.tokens_carried < made.tokens_before


def _runs_left(rows: Iterable[Row], covered: Iterable[Row]) -> frozenset[str]:
    """The runs of which rows are left that may be shown."""
    taken = {row["_id"] for row in covered}
    left = [row for row in rows if row["_id"] not in taken and not is_internal(row.get("metadata"))]
    return frozenset(run_id for row in left if isinstance(run_id := row.get("run_id"), str))


def _cost_of(measure: Measure, row: Row) -> int:
    """The tokens that the row takes in a context; none where it is never shown."""
    tokens = 0
    for item in messages_of([row]):
        calls = [{"function": {"name": call.name, "arguments": call.raw_arguments}} for call in item.calls]
        shown = {"role": item.role, "content": item.text, "tool_calls": calls}
        tokens += measure.message(shown) if item.role else 0
    return tokens
