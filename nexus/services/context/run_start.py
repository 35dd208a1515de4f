"""The records of a run's beginning, written beside the reads of its build (contract §1.5, §4).

An answer waits for them briefly. Whether the input was erased is read beside them as well, and known before anything is
kept.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import anyio
import structlog
from anyio.abc import TaskGroup

from nexus.core.concurrency import OuterHandler, ungrouped
from nexus.core.errors import ErasedError, StoreUnavailableError
from nexus.core.metrics import Event
from nexus.core.models import DEFAULT_SESSION, Role
from nexus.core.ports import OutboxRow, RunOrigin
from nexus.core.tracing import carrier, span
from nexus.core.turns import TurnStart
from nexus.core.wire import compact
from nexus.services.context.gather import BEGINNING, LEDGER_S, Build, Read, Sources
from nexus.services.context.run_prefix import prefix_key
from nexus.services.history.rows import further_row, internal_marks, invalid_request
from nexus.services.history.tombstones import Said, report_erased

_log = structlog.get_logger(__name__)
_Beginning = TypeVar("_Beginning")

# How long an answer that is otherwise ready waits for its input to be in the store.
_RECORDING_S: Final = 0.25
_OTHER_AGENT: Final = (
    "run.metadata.agent: another agent began the run, so results that are not marked are recorded as that one's"
)
_OTHER_SESSION: Final = (
    "run.metadata.session_id: the run was begun in another session, so results that name none are recorded there"
)


class RunStart:
    """Records the beginning of a run beside the reads of its build: its input, where it belongs, and its turn."""

    def __init__(self, sources: Sources, build: Build) -> None:
        self._sources = sources
        self._build = build
        self._tasks: TaskGroup | None = None
        self._begun = False
        self._recording = False
        self._needs_outbox = False
        self._erased: ErasedError | None = None
        # Why it is not known.
        self._unknown = "it was not asked about"
        self._looked = anyio.Event()
        self._insert_over = anyio.Event()
        self._origin_known = anyio.Event()
        self._notes: list[str] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Record while the build is made inside; at its end unfinished recording is given up."""
        with ungrouped():
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._look)
                try:
                    yield
                finally:
                    self._tasks.cancel_scope.cancel()

    def begin(self, goal: str | None = None) -> None:
        """Begin to record the input and where the run belongs, and offer its turn to turn memory. Never waits.

        A continuation of a run whose beginning is kept only brings its turn up to date. Any other request may be the
        run's first, sent again because a replica died after it had kept the beginning and before it stored the input:
        it begins the run again, which changes nothing that is stored. `goal` is the one in the run's kept beginning,
        `""` where that is unknown; None without a kept beginning.
        """
        if self._begun or not self._tasks:
            return
        self._begun = True
        request = self._build.request
        self._record_further()
        if goal is not None and request.continuation:
            has_rounds = request.layout == "thinking" and request.turn.thinking_rounds
            if has_rounds or request.turn.task_context not in {"", goal}:
                self._offer_turn()
            return
        self._recording = self._needs_outbox = True
        self._offer_turn()
        self._tasks.start_soon(self._insert)
        self._tasks.start_soon(self._learn_origin)

    async def admitted(self) -> None:
        """Return when the run's input is known not to be erased, or that cannot be known in time.

        Raises:
            RequestError: INVALID_REQUEST; it was erased, and nothing of the run is recorded or to be kept.
        """
        if self._tasks:
            with anyio.move_on_after(max(self._build.read_until - anyio.current_time(), 0)):
                await self._looked.wait()
        if self._erased:
            raise invalid_request(f"{self._build.request.place}: {self._erased}")

    async def keep(self, mine: bytes, parse: Callable[[bytes], _Beginning], since: str = "") -> _Beginning | None:
        """Keep `mine` for later builds of the run. Returns what another build has kept before, if anything.

        Raises as `admitted`. A start that is not running keeps nothing.
        """
        await self.admitted()
        if not self._tasks:
            return None
        build, ledger = self._build, self._sources.ledger

        async def call() -> _Beginning | None:
            key = prefix_key(build.request, since)
            kept = await ledger.keep_first(key, mine, build.settings.keep_prefix_ms)
            return None if kept == mine else parse(kept)

        deadline = max(build.read_until, anyio.current_time() + LEDGER_S)
        return (await self._sources.read_all({BEGINNING: Read(call, deadline)})).get(BEGINNING)

    async def notes(self) -> list[str]:
        """Notes on where the run belongs, when the ledger has answered."""
        if self._recording:
            with anyio.move_on_after(max(self._build.read_until - anyio.current_time(), LEDGER_S)):
                await self._origin_known.wait()
        return self._notes

    async def recorded(self) -> None:
        """Wait until the store has the input, but only briefly and not beyond the time for reading."""
        if self._recording:
            with anyio.move_on_after(min(_RECORDING_S, self._build.read_until - anyio.current_time())):
                await self._insert_over.wait()

    def outbox_row(self) -> OutboxRow | None:
        """The input for the outbox, where the store has neither taken nor refused it, and it was not erased."""
        if self._erased or not self._needs_outbox:
            return None
        return self._sources.conversation.outbox_row(self._build.input_row)

    async def _insert(self) -> None:
        build = self._build
        await self._looked.wait()
        if self._unknown:
            _log.warning("input_not_recorded", request_id=build.request.request_id, reason=self._unknown)
        elif not self._erased:
            await self._insert_admitted()
        self._insert_over.set()

    async def _insert_admitted(self) -> None:
        build = self._build
        with OuterHandler(self._sources.metrics, "inputs", request_id=build.request.request_id):
            try:
                with span("record input"):
                    await self._sources.conversation.insert_input(build.input_row, outbox_waiting=build.outbox_waiting)
                self._needs_outbox = False
            except StoreUnavailableError as error:
                _log.warning("input_not_recorded", request_id=build.request.request_id, reason=str(error))

    async def _look(self) -> None:
        """Learn whether the run's input was erased."""
        build, request = self._build, self._build.request
        with OuterHandler(self._sources.metrics, "inputs", request_id=request.request_id):
            try:
                said = Said(request.owner_key, request.session_id, build.said_at)
                (self._erased,) = await self._sources.conversation.tombstones.refusals([said])
                self._unknown = ""
            except StoreUnavailableError as error:
                self._unknown = str(error)
        if self._erased:
            report_erased(self._sources.metrics, self._erased, request_id=request.request_id, run_id=request.run_id)
        self._looked.set()

    def _record_further(self) -> None:
        """Have recorded what the person said since; where there is no room, the run's next request brings it again."""
        request = self._build.request
        # Named, since the ledger may not know yet where the run belongs.
        belongs = {"session_id": request.session_id, **internal_marks(request.origin.sub_agent)}
        for message in request.later:
            if message.role is Role.HUMAN:
                named = message.model_copy(update={"metadata": {**message.metadata, **belongs}})
                size = len(compact(message.content))
                if not self._sources.conversation.offer(further_row(named, size), size):
                    _log.warning("input_not_recorded", message_id=message.id, reason="too much is waiting")

    def _offer_turn(self) -> None:
        request = self._build.request
        if self._sources.turns is None or request.origin.sub_agent is not None:
            # A sub-agent's work is part of the turn of the run that sent it.
            return
        start = TurnStart(
            owner_key=request.owner_key,
            session_id=request.session_id,
            run_id=request.run_id,
            timestamp=self._build.said_at,
            input=request.current_input,
            input_id=request.human.id,
            task_context=request.turn.task_context,
            workspace_context=request.turn.workspace_context,
            thinking=request.layout == "thinking",
            rounds=request.turn.thinking_rounds,
            traceparent=carrier().get("traceparent", ""),
        )
        if self._sources.turns.begin_turn(start) is None:
            self._sources.metrics.count(Event.TURN_LOST)
            _log.error("turn_not_recorded", request_id=request.request_id, reason="too much is waiting")

    async def _learn_origin(self) -> None:
        with OuterHandler(self._sources.metrics, "inputs", request_id=self._build.request.request_id):
            await self._record_origin()
        self._origin_known.set()

    async def _record_origin(self) -> None:
        request, conversation = self._build.request, self._sources.conversation
        mine = request.origin
        if request.layout == "dialogue" and mine == RunOrigin(DEFAULT_SESSION):
            # The ledger need not know: runs without an origin are taken to be of this one.
            conversation.origins.remember(request.owner_key, request.run_id, mine)
        else:
            keep_ms = self._build.settings.keep_prefix_ms
            first = await conversation.origins.begin(request.owner_key, request.run_id, mine, keep_ms)
            self._notes += [] if first.sub_agent == mine.sub_agent else [_OTHER_AGENT]
            self._notes += [] if first.session_id == mine.session_id else [_OTHER_SESSION]
