"""Builds the message list of a request: gather, assemble, fit, check, render (contract §1.4, §4, §5, §6, §8).

- A part that is not read in time is missing from the context, which says so in `degraded`; a missing history may be
  an error instead (`on_history_failure`).
- Every build that is no continuation records the run's input and its turn: the first may have failed on the way.
- The first build keeps the beginning of later builds: in the dialogue layout its first messages, in the others a view
  on history and memory. Nothing is kept of a context with missing parts.
- In the agent layout the pinned block is new in every build, and all is once the session has been compacted.
- The constraints in force are in every context. In the dialogue layout a run for which others hold by now than it began
  with goes on with another beginning.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

import anyio
import structlog

from nexus.core.concurrency import computed
from nexus.core.errors import ErrorCode, RequestError, StoreUnavailableError
from nexus.core.metrics import Metrics, NoMetrics, Part, Stage
from nexus.core.models import Message, Role, new_run_id
from nexus.core.person import Constraint
from nexus.core.ports import (
    ConstraintSource,
    DocumentStore,
    FactSource,
    MemorySource,
    OutboxRow,
    RecallSource,
    RequestLedger,
    TokenCounter,
    TurnSource,
)
from nexus.core.tracing import span
from nexus.core.wire import compact
from nexus.services.context import agent, thinking
from nexus.services.context.agent import AgentContext, agent_context
from nexus.services.context.blocks import listed
from nexus.services.context.budget import Budget
from nexus.services.context.dialogue import dialogue_prefix
from nexus.services.context.gather import (
    FIRST,
    Build,
    BuilderSettings,
    Sources,
    StateSource,
    gather_dialogue,
    offered,
    read_beginning,
    read_run_messages,
)
from nexus.services.context.person_blocks import constraints_text
from nexus.services.context.pinned import is_role_given
from nexus.services.context.prompts import identity_block
from nexus.services.context.request import BuildRequest, Deadline, read_request
from nexus.services.context.run_messages import RunMessages, run_messages_in
from nexus.services.context.run_prefix import (
    IMAGE_TOKENS,
    RunPrefix,
    RunView,
    images_of,
    in_format,
    since_constraints,
    with_images,
)
from nexus.services.context.run_start import RunStart
from nexus.services.context.session import (
    NOT_COMPACTED,
    TO_COMPACT,
    CompactionCooldown,
    compact_session,
    gather_session,
    gather_thinking,
    read_run_memory,
)
from nexus.services.context.thinking import thinking_prefix
from nexus.services.history.rows import chars_of, invalid_request
from nexus.services.history.transcript import Admitted, faults
from nexus.services.persistence import PersistenceService
from nexus.services.text.tokens import too_many_tokens
from nexus.services.tools.registry import ToolRegistry

__all__ = ["BuilderSettings", "Built", "ContextBuilder"]

_log = structlog.get_logger(__name__)

_DEFAULT_ALLOWED_MS: Final = 5_000
# The part of the remaining time for gathering; the rest is for assembling and publishing.
_GATHERING: Final = 0.8
_NO_RECALL: Final = (
    "run.metadata.recall: there is no [RECALL], since long-term memory is off in this service (recall.enabled)"
)
_SHOWN_FAULTS: Final = 3


@dataclass(frozen=True, slots=True)
class Built:
    """The outcome of a build.

    Attributes:
        result: the content of the answer (contract §1.4), or an error.
        outbox: the row of the run's input, where the store has not taken it in time.
        failed: the error is the builder's fault, and the log says why.
        request: what was asked for, where it could be read.
        settings: the version of the settings that the build went by.
    """

    result: dict[str, Any] | RequestError
    outbox: OutboxRow | None = None
    failed: bool = False
    request: BuildRequest | None = None
    settings: str = ""


class _Timings:
    """Durations of the stages of one build, for the metrics, the manifest and the trace."""

    def __init__(self, metrics: Metrics, before_ms: Mapping[str, float]) -> None:
        self.ms = dict(before_ms)
        self._metrics = metrics

    @contextmanager
    def measured(self, stage: Stage) -> Iterator[None]:
        """Measure the work inside, also if it fails."""
        started = time.perf_counter()
        try:
            with span(stage.value):
                yield
        finally:
            seconds = time.perf_counter() - started
            # A context that is assembled anew after a compaction is gathered twice.
            self.ms[stage.value] = round(self.ms.get(stage.value, 0) + seconds * 1_000, 3)
            self._metrics.took(stage, seconds)


class ContextBuilder:
    """Builds message lists. `settings` may be replaced at any time; a build uses those at its beginning."""

    def __init__(
        self,
        conversation: PersistenceService,
        documents: DocumentStore,
        tools: ToolRegistry,
        ledger: RequestLedger,
        settings: BuilderSettings,
        *,
        states: StateSource | None = None,
        turns: TurnSource | None = None,
        memory: MemorySource | None = None,
        recall: RecallSource | None = None,
        facts: FactSource | None = None,
        constraints: ConstraintSource | None = None,
        counter: TokenCounter | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._metrics = metrics or NoMetrics()
        self._sources = Sources(
            conversation, documents, tools, ledger, states, turns, memory, recall, facts, constraints, self._metrics
        )
        self._cooldown = CompactionCooldown()
        self._counter = counter
        self.settings = settings

    async def build(
        self,
        message: Message,
        deadline: Deadline,
        *,
        timings_ms: Mapping[str, float] | None = None,
        outbox_waiting: bool = False,
        sent_at: datetime | None = None,
    ) -> Built:
        """Build the context for the run in `message`. Raises nothing but cancellation.

        `timings_ms` of earlier stages are for the manifest; `outbox_waiting`: the outbox has rows to be read, too;
        `sent_at`: when the bus took the request, where it says so.
        """
        request, settings = None, self.settings.version
        try:
            request = read_request(message, default_layout=self.settings.default_layout)
            chars = sum(len(compact([each.content, each.metadata.get("tool_calls")])) for each in request.later)
            # Before all else, so that none of them counts as recorded later than the run's own input.
            unrecorded = await self._unrecorded(request, deadline)
            until = anyio.current_time() + deadline.left_s * _GATHERING * FIRST
            run = await read_run_messages(self._sources, request, until, chars, self.settings.condense_above)
            admitted = await computed(request.owner_key, chars, run.admitted) if request.later else None
            build = self._begin(request, deadline, run, admitted)._replace(
                run_chars=chars,
                unrecorded=unrecorded,
                outbox_waiting=outbox_waiting,
                said_at=min(request.human.timestamp, sent_at or request.human.timestamp),
            )
            _check_input(build)
        except RequestError as error:
            return Built(error, request=request, settings=settings)
        start = RunStart(self._sources, build)
        result: dict[str, Any] | RequestError | None = None
        failed = False
        try:
            with anyio.move_on_after(deadline.left_s):
                async with start.running():
                    result = await self._content(build, start, _Timings(self._metrics, timings_ms or {}))
        except RequestError as error:
            result = error
        except Exception:  # noqa: BLE001  # the outermost handler of a build: whatever goes wrong, there is an answer
            _log.exception("build_failed", request_id=message.id)
            result = RequestError(ErrorCode.INTERNAL, "the context could not be built; the service's log says why")
            failed = True
        return Built(result or deadline.exceeded(), start.outbox_row(), failed, request, settings)

    async def _unrecorded(self, request: BuildRequest, deadline: Deadline) -> int:
        """How many of the messages that the request is to come after are not recorded, after a wait for them."""
        if not request.after:
            return 0
        try:
            seconds = deadline.left_s * _GATHERING * FIRST
            return len(await self._sources.conversation.unrecorded(request.owner_key, request.after, seconds))
        except StoreUnavailableError as error:
            _log.warning("degraded", part="after", reason=str(error))
            return len(request.after)

    def _begin(
        self, request: BuildRequest, deadline: Deadline, run: RunMessages, admitted: Admitted | None = None
    ) -> Build:
        settings = self.settings
        if request.recall and self._sources.recall is None:
            request = request._replace(notes=(*request.notes, _NO_RECALL))
        limit = settings.window.limit(request.layout, request.context_window)
        images = images_of(request, limit)
        budget = Budget.of(
            self._counter,
            layout=request.layout,
            form=request.form,
            limit=limit - IMAGE_TOKENS * len(images[0]),
            tools=offered(self._sources.tools, request, settings.dialogue_tools),
            run=admitted.messages if admitted else (),
            shares=settings.window.shares,
            blocks=settings.window.budget,
            always=settings.count_tokens == "always",
        )
        read_until = anyio.current_time() + deadline.left_s * _GATHERING
        row = self._sources.conversation.input_row(request.human, request.origin)
        return Build(request, settings, read_until, budget, row, images, run=run)

    async def _content(self, build: Build, start: RunStart, timings: _Timings) -> dict[str, Any]:
        """The content of the answer, when the run's input is recorded."""
        request = build.request
        if not request.continuation and _may_begin(request):
            # Beside all reads; the read of the goal waits for the run's turn to be written.
            start.begin()
        make = {"agent": self._agent, "thinking": self._thinking}.get(request.layout, self._dialogue)
        with timings.measured(Stage.BUILD):
            prefix = await make(build, start, timings)
            chars = build.run_chars + sum(len(message["content"] or "") for message in prefix.messages)
            with span("render"):
                content = await computed(build.request.owner_key, chars, partial(_closed, build, prefix))
            if not {Part.HISTORY, Part.TURNS} & {*prefix.degraded}:
                # Else the store is away.
                await start.recorded()
            await start.admitted()
        manifest = content["context"]
        if reasons := Counter(each.why for each in manifest["left_out"]):
            reason = ", ".join(f"{amount} {why.name.lower()}" for why, amount in reasons.items())
            _log.debug("left_out", request_id=request.request_id, reason=reason)
        for why, amount in reasons.items():
            self._metrics.left_out(why, amount)
        published = {**manifest, "left_out": listed(manifest["left_out"]), "timings_ms": timings.ms}
        return {**content, "context": published}

    async def _dialogue(self, build: Build, start: RunStart, timings: _Timings) -> RunPrefix:
        sources, first = self._sources, None
        if build.request.continuation:
            with timings.measured(Stage.GATHER):
                first, stored = await read_beginning(sources, build, RunPrefix.from_bytes)
            start.begin("" if first else None)
            if first and stored is None:
                self._lacking([Part.CONSTRAINTS], build)
            if first and (kept := await self._going_on(build, first, stored)):
                return kept
        prefix, complete = await self._new_dialogue(build, first.constraints if first else (), timings)
        prefix = prefix._replace(notes=[*prefix.notes, *await start.notes()])
        if not complete or prefix.degraded:
            # An earlier build of the run may have been whole.
            stored = None if Part.CONSTRAINTS in prefix.degraded else prefix.constraints
            first = await sources.kept(build, RunPrefix.from_bytes)
            return (first and await self._going_on(build, first, stored)) or prefix
        mine, shown = prefix.to_bytes(), prefix.shown_constraints
        first = await start.keep(mine, RunPrefix.from_bytes)
        if first and first.shown_constraints != shown:
            return await start.keep(mine, RunPrefix.from_bytes, since_constraints(shown)) or prefix
        return first or prefix

    async def _going_on(self, build: Build, first: RunPrefix, stored: Sequence[Constraint] | None) -> RunPrefix | None:
        """What is kept of the run with the constraints that are in force; None for nothing.

        `first` is kept of its first build; `stored` are None where they could not be read: then it is as if those of
        that build were stored.
        """
        in_force = [*(first.constraints if stored is None else stored), *build.request.constraints]
        degraded = [Part.CONSTRAINTS.value] if stored is None else []
        shown = constraints_text(in_force)
        kept: RunPrefix | None = first
        if first.shown_constraints != shown:
            kept = await self._sources.kept(build, RunPrefix.from_bytes, since_constraints(shown))
        return kept and kept._replace(degraded=degraded)

    async def _new_dialogue(
        self, build: Build, begun_with: Sequence[Constraint], timings: _Timings
    ) -> tuple[RunPrefix, bool]:
        """The messages as of now, and whether all accepted rows are in them; `begun_with` as for `gather_dialogue`."""
        with timings.measured(Stage.GATHER):
            gathered = await gather_dialogue(self._sources, build, begun_with)
            degraded = self._degraded(gathered.missing, build)
        with timings.measured(Stage.ASSEMBLE):
            tools = offered(self._sources.tools, build.request, build.settings.dialogue_tools)
            assembled = partial(dialogue_prefix, build, gathered, tools, degraded)
            chars = sum(map(chars_of, gathered.rows))
            return await computed(build.request.owner_key, chars, assembled), gathered.complete

    async def _thinking(self, build: Build, start: RunStart, timings: _Timings) -> RunPrefix:
        with timings.measured(Stage.GATHER):
            view, stored = await read_beginning(self._sources, build, RunView.from_bytes)
        start.begin(view.remembered.goal if view else None)
        with timings.measured(Stage.GATHER):
            gathered = await gather_thinking(self._sources, build, view, stored)
            degraded = self._degraded(gathered.missing, build)
        with timings.measured(Stage.ASSEMBLE):
            tools = view.tools if view else offered(self._sources.tools, build.request)
            prefix = thinking_prefix(build, gathered, tools, degraded)
        if view is None and gathered.complete and not degraded:
            mine = RunView(tools, gathered.past.remembered, gathered.recall, tuple(gathered.constraints))
            await start.keep(mine.to_bytes(), RunView.from_bytes)
        return prefix._replace(notes=[*prefix.notes, *await start.notes()])

    async def _agent(self, build: Build, start: RunStart, timings: _Timings) -> RunPrefix:
        context, memory = await self._agent_context(build, start, timings), self._sources.memory
        notes: list[str] = []
        if memory and context.session.memory.snapshot:
            outcome = await compact_session(
                memory, self._cooldown, build, context.assembled, context.tools, cut=context.session.cut
            )
            if outcome == "compacted":
                context = await self._agent_context(build, start, timings)
            notes = [{"delayed": NOT_COMPACTED, "due": TO_COMPACT}[outcome]] if outcome in {"delayed", "due"} else []
        view = context.session.memory.view
        # Nothing is recorded of a sub-agent without a role: it has been refused by now.
        start.begin(view.remembered.goal if view else None)
        if view is None:
            view = context.view
            if context.session.complete and not context.degraded:
                view = await start.keep(view.to_bytes(), RunView.from_bytes, context.session.memory.since) or view
        assembled = context.assembled
        return RunPrefix(
            assembled.messages,
            assembled.manifest,
            view.tools,
            context.degraded,
            [*await start.notes(), *context.session.notes, *notes, *assembled.repairs],
            context.left_out,
            meta=context.meta(build) if memory else None,
            results=assembled.results,
        )

    async def _agent_context(self, build: Build, start: RunStart, timings: _Timings) -> AgentContext:
        request, sources = build.request, self._sources
        with timings.measured(Stage.GATHER):
            memory = await read_run_memory(sources, build)
            view = memory.view
            if _may_begin(request):
                start.begin(view.remembered.goal if view else None)
            gathered = await gather_session(sources, build, memory)
            degraded = self._degraded(gathered.missing, build)
        with timings.measured(Stage.ASSEMBLE):
            tools = view.tools if view else offered(sources.tools, request)
            assembled = partial(agent_context, build, gathered, tools, degraded)
            return await computed(request.owner_key, gathered.chars, assembled)

    def _degraded(self, missing: Sequence[Part], build: Build) -> list[str]:
        """The missing parts of a new context, the tools included; see `_lacking`."""
        tools = [] if self._sources.tools.complete else [Part.TOOLS]
        return self._lacking([*missing, *tools], build)

    def _lacking(self, parts: Sequence[Part], build: Build) -> list[str]:
        """These missing parts in a fixed order, counted.

        HISTORY_UNAVAILABLE for a missing history, or missing constraints, where `on_history_failure` is `error`.
        """
        for part in parts:
            self._metrics.degraded(part)
        demanded = [part for part in (Part.HISTORY, Part.CONSTRAINTS) if part in parts]
        if demanded and build.settings.on_history_failure == "error":
            reason = f"the {' and the '.join(demanded)} could not be read in time"
            raise RequestError(ErrorCode.HISTORY_UNAVAILABLE, reason)
        return sorted(part.value for part in parts)

    async def preview(self, message: Message, deadline: Deadline) -> dict[str, Any]:
        """The content of the answer that a request for a run's first context would get now.

        Nothing is recorded, kept or compacted.

        Raises:
            RequestError: as the answer would say.
        """
        request = read_request(message, default_layout=self.settings.default_layout)
        build = self._begin(request, deadline, run_messages_in(request))._replace(preview=True)
        _check_input(build)
        with anyio.move_on_after(deadline.left_s):
            # A start that is not running records nothing.
            return await self._content(build, RunStart(self._sources, build), _Timings(self._metrics, {}))
        raise deadline.exceeded()

    def remember_run(self, message: Message) -> None:
        """Note the session of a run that another replica builds."""
        try:
            request = read_request(message, default_layout=self.settings.default_layout)
        except RequestError:
            return
        self._sources.conversation.origins.remember(request.owner_key, request.run_id, request.origin)

    async def build_context(
        self,
        *,
        owner_key: str,
        user_profile: Mapping[str, Any] | None = None,
        current_input: str,
        current_run_id: str = "",
        timestamp_utc: str = "",
        timezone_offset: int | str = 0,
    ) -> list[dict[str, Any]]:
        """The five messages of the dialogue layout, for use without a bus. Nothing is recorded.

        Raises:
            RequestError: as for a request; HISTORY_UNAVAILABLE only where `on_history_failure` is `error`.
        """
        run_id = current_run_id or new_run_id()
        metadata = {
            "layout": "dialogue",
            "user_profile": None if user_profile is None else dict(user_profile),
            "client_timestamp_utc": timestamp_utc,
            "client_timezone_offset": timezone_offset,
        }
        human = {"run_id": run_id, "owner_key": owner_key, "role": Role.HUMAN, "content": current_input}
        run = {"id": run_id, "owner_key": owner_key, "history": [human], "metadata": metadata}
        message = Message(run_id=run_id, owner_key=owner_key, role=Role.HUMAN, content=run)
        deadline = Deadline(_DEFAULT_ALLOWED_MS, anyio.current_time() + _DEFAULT_ALLOWED_MS / 1_000)
        messages: list[dict[str, Any]] = (await self.preview(message, deadline))["messages"]
        return messages


def _closed(build: Build, prefix: RunPrefix) -> dict[str, Any]:
    """The content of the answer, within the window, checked and in the format that was asked for."""
    request = build.request
    content = build.budget_with(prefix.tools).close(
        lambda measure: prefix.continued(request, build.run, measure), prefix.meta, prefix.results
    )
    if found := faults(content["messages"]):
        _log.error("invalid_list", request_id=request.request_id, reason="; ".join(found[:_SHOWN_FAULTS]))
        raise RequestError(ErrorCode.INTERNAL, "the message list would not be one that providers accept")
    # The input is the last of the layout's own messages.
    return in_format(request.form, with_images(content, len(prefix.messages) - 1, *build.images))


def _may_begin(request: BuildRequest) -> bool:
    """Whether the run may begin before anything is read: a sub-agent whose role has to be read may be refused."""
    agent = request.agent
    return request.layout != "agent" or agent.kind == "main" or is_role_given(agent, request.state)


def _check_input(build: Build) -> None:
    """Check the length of the input and of its constraints before anything of the run is recorded.

    Raises:
        RequestError: INVALID_REQUEST for too many constraints; PAYLOAD_TOO_LARGE as `Budget.check_input`.
    """
    request, measure, most = build.request, build.budget.measure, build.settings.constraint_tokens
    if measure and (taken := too_many_tokens(measure.counter, constraints_text(request.constraints), most)):
        reason = f"run.metadata.constraints: they take {taken} tokens, at most {most} are allowed for those of a run"
        raise invalid_request(reason)
    match request.layout:
        case "thinking":
            opening = thinking.instructions()
        case "agent":
            opening = agent.instructions(agent.bounded_agent(request.agent, build.budget.bounds))
        case _:
            opening = [identity_block()]
    messages = [message for block in opening for message in block.messages]
    build.budget.check_input(messages, request.current_input)
