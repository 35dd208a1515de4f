"""What the first build of a run records: where the run belongs, its input and its turn (contract §1.5, §2, §6)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio
import structlog
from anyio.abc import TaskGroup

from nexus.core.concurrency import ungrouped
from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Event
from nexus.core.ports import OutboxRow, RunOrigin
from nexus.core.turns import TurnStart
from nexus.services.context.gather import Build, Sources
from nexus.services.context.request import DEFAULT_SESSION

_log = structlog.get_logger(__name__)

# How long an answer that is otherwise ready waits for its input to be in the store.
_RECORDING_S: Final = 0.25
_OF_ANOTHER: Final = (
    "run.metadata.agent: another agent began the run, so results that are not marked are recorded as that one's"
)
_IN_ANOTHER: Final = (
    "run.metadata.session_id: the run was begun in another session, so results that name none are recorded there"
)


class RunStart:
    """Begins the run of one build, beside the build's reads.

    Args:
        sources: where the run is begun.
        build: the run's first, or a later one.
    """

    def __init__(self, sources: Sources, build: Build) -> None:
        self._sources = sources
        self._build = build
        self._tasks: TaskGroup | None = None
        self._begun = False
        self._recording = False
        self._stored = False
        self._insert_over = anyio.Event()
        self._origin_known = anyio.Event()
        self._notes: list[str] = []

    @asynccontextmanager
    async def beside(self) -> AsyncIterator[None]:
        """Have the build made inside; what is begun for its run and not done then is given up."""
        with ungrouped():
            async with anyio.create_task_group() as self._tasks:
                try:
                    yield
                finally:
                    self._tasks.cancel_scope.cancel()

    def begin(self, goal: str | None = None) -> None:
        """Begin to record the input, say where the run belongs, and offer its turn to turn memory. Never waits.

        A continuation of a run of which something is kept only has its turn take over what it brings. Any other request
        may be the run's first, sent again because a replica died that had kept its view and not stored its input: it
        begins the run again, which changes nothing of what is there.

        Args:
            goal: the one that an earlier build has kept, `""` where that is not known; None where nothing is kept.
        """
        if self._begun or not self._tasks:
            return
        self._begun = True
        request = self._build.request
        if goal is not None and request.continuation:
            thought = request.layout == "thinking" and request.turn.thinking_rounds
            if thought or request.turn.task_context not in {"", goal}:
                self._offer_turn()
            return
        self._recording = True
        self._offer_turn()
        self._tasks.start_soon(self._insert)
        self._tasks.start_soon(self._say_origin)

    async def notes(self) -> list[str]:
        """What is to be noted of where the run belongs, when the ledger has said; nothing of one that is not begun."""
        if self._recording:
            await self._origin_known.wait()
        return self._notes

    async def recorded(self) -> None:
        """Return when the store has the input, or does not take it soon; at the latest at the build's deadline."""
        if self._recording:
            with anyio.move_on_after(min(_RECORDING_S, self._build.deadline - anyio.current_time())):
                await self._insert_over.wait()

    def outbox_row(self) -> OutboxRow | None:
        """The input, where the store has not taken it and may yet do so."""
        if self._stored or not self._recording:
            return None
        return self._sources.conversation.outbox_row(self._build.input_row)

    async def _insert(self) -> None:
        build = self._build
        try:
            await self._sources.conversation.insert_input(build.input_row, outbox_waiting=build.outbox_waiting)
            self._stored = True
        except StoreUnavailableError as error:
            _log.warning("input_not_recorded", request_id=build.request.request_id, reason=str(error))
        except StoreRejectedError:
            # Nor would it be taken out of the outbox. The rejection is logged and counted where it comes from.
            self._stored = True
        self._insert_over.set()

    def _offer_turn(self) -> None:
        request = self._build.request
        if self._sources.turns is None or request.origin.sub_agent is not None:
            # What a sub-agent does is part of the turn of the run that sent it.
            return
        kept = self._sources.turns.begin_turn(
            TurnStart(
                owner_key=request.owner_key,
                session_id=request.session_id,
                run_id=request.run_id,
                timestamp=request.human.timestamp,
                input=request.current_input,
                input_id=request.human.id,
                task_context=request.turn.task_context,
                workspace_context=request.turn.workspace_context,
                thinking=request.layout == "thinking",
                rounds=request.turn.thinking_rounds,
            )
        )
        if kept is None:
            self._sources.metrics.count(Event.TURN_LOST)
            _log.error("turn_not_recorded", request_id=request.request_id, reason="too much is waiting")

    async def _say_origin(self) -> None:
        request, conversation = self._build.request, self._sources.conversation
        mine = request.origin
        if request.layout == "dialogue" and mine == RunOrigin(DEFAULT_SESSION):
            # What is assumed of a run of which nothing is known.
            conversation.remember_run(request.owner_key, request.run_id, mine)
        else:
            keep_ms = self._build.settings.keep_prefix_ms
            first = await conversation.begin_run(request.owner_key, request.run_id, mine, keep_ms)
            self._notes += [] if first.sub_agent == mine.sub_agent else [_OF_ANOTHER]
            self._notes += [] if first.session_id == mine.session_id else [_IN_ANOTHER]
        self._origin_known.set()
