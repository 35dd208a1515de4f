"""The one part of the context that does input and output: gather, assemble, answer (CONTRACT §1.4, §4, §8).

Rules of this module:

- Everything that is read is read at once, under one deadline. What cannot be had in time is missing from the context,
  which says so in `degraded`; the history may be demanded instead (`on_history_failure`).
- The first build of a run records its input and keeps its first messages. Later builds begin with the same bytes.
- A context with parts missing is not kept: a later build of the run may be whole again.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

import anyio
import structlog

from nexus.core.errors import BusUnavailableError, ErrorCode, RequestError
from nexus.core.metrics import Event, Metrics, NoMetrics, Part, Stage
from nexus.core.models import Message, Role, new_run_id
from nexus.core.ports import Conversation, DocumentStore, RequestLedger
from nexus.services.context.answers import answer, error_answer
from nexus.services.context.gathering import Gathered, gather
from nexus.services.context.layouts import DialogueInput, assemble_dialogue
from nexus.services.context.prefix import RunPrefix, prefix_key
from nexus.services.context.request import BuildRequest, read_request
from nexus.tools.registry import ToolRegistry

_log = structlog.get_logger(__name__)

_DEFAULT_BUDGET_S: Final = 5.0
# Of the time that is left, this part is for gathering; the rest is for assembling and publishing.
_GATHERING: Final = 0.8
# How long an answer that is otherwise ready waits for its input to be recorded.
_RECORDING_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class BuilderSettings:
    """What the builder needs of the settings (CONTRACT §9).

    Attributes:
        history_size: messages in the memory for owners without a setting of their own, 1 to 200.
        truncate_chars: the length to which a longer message is cut.
        default_profile: the profile text of owners without one.
        on_history_failure: what to do when the history cannot be read.
        keep_prefix_ms: for how long the first messages of a run are kept for its later builds.
    """

    default_layout: str = "dialogue"
    history_size: int = 20
    truncate_chars: int = 500
    default_profile: str = ""
    on_history_failure: Literal["degrade", "error"] = "degrade"
    keep_prefix_ms: int = 3_600_000


class ContextBuilder:
    """Builds the message list for a request.

    `settings` may be replaced at any time; a build uses those that it began with.
    """

    def __init__(
        self,
        conversation: Conversation,
        documents: DocumentStore,
        tools: ToolRegistry,
        ledger: RequestLedger,
        settings: BuilderSettings | None = None,
        *,
        metrics: Metrics | None = None,
    ) -> None:
        self._conversation = conversation
        self._documents = documents
        self._tools = tools
        self._ledger = ledger
        self._metrics = metrics or NoMetrics()
        self.settings = settings or BuilderSettings()

    async def handle_build_request(
        self, message: Message, *, budget_s: float = _DEFAULT_BUDGET_S, timings_ms: Mapping[str, float] | None = None
    ) -> Message:
        """The answer to a build request (CONTRACT §1.4): a success, or the error that the request deserves.

        Args:
            message: the envelope, whose content is the run.
            budget_s: seconds in which the answer is needed; what cannot be read in time is missing from it.
            timings_ms: what was measured before, for the manifest.
        """
        try:
            request = read_request(message, default_layout=self.settings.default_layout)
            content = await self._build(request, budget_s, dict(timings_ms or {}))
        except RequestError as error:
            return error_answer(message.id, message.run_id, message.owner_key, error)
        return answer(message.id, message.run_id, message.owner_key, content)

    def overhear(self, message: Message) -> None:
        """Take note of a request that another replica answers."""
        try:
            request = read_request(message, default_layout=self.settings.default_layout)
        except RequestError:
            return
        self._conversation.remember_session(request.owner_key, request.run_id, request.session_id)

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
            RequestError: an argument is refused as it would be in a request; or HISTORY_UNAVAILABLE, where settings
                want that rather than a context without history.
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
        request = read_request(Message(run_id=run_id, owner_key=owner_key, role=Role.HUMAN, content=run))
        settings = self.settings
        gathered = await self._gather(request, settings, _DEFAULT_BUDGET_S)
        return self._assemble(request, settings, gathered).messages

    async def _build(self, request: BuildRequest, budget_s: float, timings_ms: dict[str, float]) -> dict[str, Any]:
        with self._measured(Stage.BUILD, timings_ms):
            prefix = await self._kept_prefix(request)
            if prefix is None:
                prefix = await self._begin_run(request, budget_s * _GATHERING, timings_ms)
            content = prefix.continued(request)
        content["context"]["timings_ms"] = timings_ms
        return content

    async def _begin_run(self, request: BuildRequest, gathering_s: float, timings_ms: dict[str, float]) -> RunPrefix:
        settings, deadline = self.settings, anyio.current_time() + gathering_s
        recorded = self._conversation.offer_input(request.human, request.current_input, request.session_id)
        with self._measured(Stage.GATHER, timings_ms):
            gathered = await self._gather(request, settings, gathering_s)
        with self._measured(Stage.ASSEMBLE, timings_ms):
            assembled = self._assemble(request, settings, gathered)
        prefix = await self._keep_prefix(request, settings, assembled)
        if recorded is None:
            self._metrics.count(Event.ROW_LOST)
            _log.error("input_not_recorded", request_id=request.request_id, reason="too much is waiting")
        elif "history" not in prefix.degraded:
            with anyio.move_on_after(min(_RECORDING_S, deadline - anyio.current_time())):
                await recorded.wait()
        return prefix

    async def _gather(self, request: BuildRequest, settings: BuilderSettings, seconds: float) -> Gathered:
        gathered = await gather(
            request,
            self._conversation,
            self._documents,
            history_size=settings.history_size,
            excerpt_chars=settings.truncate_chars,
            seconds=seconds,
        )
        if not self._tools.complete:
            gathered.degraded.append(Part.TOOLS.value)
        for part in gathered.degraded:
            self._metrics.degraded(Part(part))
        if "history" in gathered.degraded and settings.on_history_failure == "error":
            raise RequestError(ErrorCode.HISTORY_UNAVAILABLE, "the history could not be read in time")
        return gathered

    def _assemble(self, request: BuildRequest, settings: BuilderSettings, gathered: Gathered) -> RunPrefix:
        tools = self._tools.get_all_tool_definitions()
        assembled = assemble_dialogue(
            DialogueInput(
                tools=tools,
                history=gathered.rows,
                user_profile=gathered.profile,
                current_input=request.current_input,
                current_run_id=request.run_id,
                timestamp_utc=request.timestamp_utc,
                timezone_offset=request.timezone_offset,
                history_size=gathered.history_size,
                truncate_chars=settings.truncate_chars,
                default_profile=settings.default_profile,
                input_id=request.human.id,
            )
        )
        return RunPrefix(assembled.messages, assembled.manifest, tools, gathered.degraded, gathered.notes)

    async def _kept_prefix(self, request: BuildRequest) -> RunPrefix | None:
        try:
            kept = await self._ledger.kept(prefix_key(request))
        except BusUnavailableError:
            return None
        return RunPrefix.from_bytes(kept) if kept else None

    async def _keep_prefix(self, request: BuildRequest, settings: BuilderSettings, prefix: RunPrefix) -> RunPrefix:
        """The prefix that counts for this run: an earlier one that is kept, else this one."""
        if prefix.degraded:
            return prefix
        mine = prefix.to_bytes()
        try:
            kept = await self._ledger.keep_first(prefix_key(request), mine, settings.keep_prefix_ms)
        except BusUnavailableError:
            return prefix
        return prefix if kept == mine else RunPrefix.from_bytes(kept)

    @contextmanager
    def _measured(self, stage: Stage, timings_ms: dict[str, float]) -> Iterator[None]:
        """Measure what is done inside, whatever becomes of it."""
        started = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - started
            timings_ms[stage.value] = round(seconds * 1_000, 3)
            self._metrics.took(stage, seconds)
