"""The one part of the context that does input and output: gather, assemble, answer (CONTRACT §1.4, §4, §8).

Rules of this module:

- Everything that is read is read at once, under one deadline. What cannot be had in time is missing from the context,
  which says so in `degraded`; the history may be demanded instead (`on_history_failure`).
- The first build of a run records its input and has it remembered as a turn. It keeps what later builds begin with: in
  the dialogue layout its first messages, in the others where the history ended and what was remembered, so that what is
  pinned or thought can be new each time.
- Of a context with parts missing nothing is kept: a later build of the run may be whole again.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import anyio
import structlog

from nexus.core.errors import ErrorCode, RequestError
from nexus.core.metrics import Metrics, NoMetrics, Stage
from nexus.core.models import Message, Role, new_run_id
from nexus.core.ports import (
    Conversation,
    DocumentStore,
    MemorySource,
    Past,
    RequestLedger,
    TokenCounter,
    TurnSource,
)
from nexus.services.context.ahead import Ahead, Glance
from nexus.services.context.answers import answer, error_answer
from nexus.services.context.build_agent import build_agent
from nexus.services.context.build_dialogue import (
    Prepared,
    build_dialogue,
    dialogue_at_once,
    fresh_dialogue,
    may_be_at_once,
    prepare_dialogue,
)
from nexus.services.context.build_memory import check_input, offered
from nexus.services.context.build_parts import Build, BuilderSettings, BuildParts
from nexus.services.context.build_thinking import build_thinking
from nexus.services.context.counting import bound_of, bounds_of, closed
from nexus.services.context.gathering import StateSource
from nexus.services.context.prefix import RunPrefix, in_format, prefix_key
from nexus.services.context.request import (
    BuildRequest,
    deadline_ms,
    is_first_dialogue,
    read_history_size,
    read_profile,
    read_request,
)
from nexus.services.context.request_run import read_run
from nexus.services.context.session_state import SessionState
from nexus.services.context.tokens import Measure
from nexus.services.context.validity import faults
from nexus.tools.registry import ToolRegistry

__all__ = ["BuilderSettings", "ContextBuilder"]

_log = structlog.get_logger(__name__)

_DEFAULT_BUDGET_S: Final = 5.0
# Of the time that is left, this part is for gathering; the rest is for assembling and publishing.
GATHERING: Final = 0.8
_SHOWN_FAULTS: Final = 3


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
        states: StateSource | None = None,
        turns: TurnSource | None = None,
        memory: MemorySource | None = None,
        counter: TokenCounter | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._parts = BuildParts(
            conversation,
            documents,
            tools,
            ledger,
            states or _NoStates(),
            turns,
            memory,
            metrics or NoMetrics(),
        )
        self._counter = counter
        self._bounds = bounds_of(counter)
        self._counted: dict[str, int] = {}
        self.settings = settings or BuilderSettings()

    def glance(self, message: Message) -> Glance | None:
        """What is seen of a request at first; None for one that cannot be read."""
        since = time.monotonic()
        try:
            run = read_run(message)
            if not is_first_dialogue(run, self.settings.default_layout):
                return Glance(run, since)
            size, _ = read_history_size(read_profile(run.metadata, run.owner_key), self.settings.history_size)
        except RequestError:
            return None
        chars, asked = self.settings.truncate_chars, run.history[-1]
        past = self._parts.conversation.past(run.owner_key, messages=size, excerpt_chars=chars, asked=asked)
        return Glance(run, since, past, size, chars)

    def look_ahead(self, message: Message, glance: Glance, default_deadline_ms: int) -> Ahead | None:
        """What can be done for a request before it is claimed; None for one that cannot be read."""
        run, since, past, history_size, excerpt_chars = glance
        try:
            request = read_request(message, default_layout=self.settings.default_layout, run=run)
            allowed_ms = deadline_ms(message, default_deadline_ms)
            ahead = Ahead(message, request, prefix_key(request), allowed_ms, since)
        except RequestError:
            return None
        if request.layout != "dialogue":
            # Perhaps since settings were replaced after the glance.
            return ahead
        ahead.past, ahead.history_size, ahead.excerpt_chars = past, history_size, excerpt_chars
        ahead.may_be_at_once = past is not None and past.is_journaled and may_be_at_once(self._parts, request)
        return ahead

    def prepare(self, ahead: Ahead) -> Prepared | None:
        """All that `build_at_once` needs but for the past; None where it would not build it."""
        return prepare_dialogue(self._parts, self._begun(ahead.request, 0.0, 0.0, {}, ahead))

    def build_at_once(self, ahead: Ahead, prepared: Prepared, past: Past) -> Message | None:
        """The answer to a run's first build, if nothing has to be read or waited for, nor anything closely looked at.

        Args:
            ahead: what `look_ahead` made of the message. It has what is to happen with the answer then, and what was
                measured.
            prepared: what `prepare` made of it.
            past: of the owner.
        """
        timings_ms = ahead.timings_ms
        started = time.perf_counter()
        content = dialogue_at_once(self._parts, prepared, past)
        timings_ms[Stage.ASSEMBLE.value] = round((time.perf_counter() - started) * 1_000, 3)
        if content is None or faults(content["messages"]):
            return None
        content = in_format(ahead.request.form, content)
        timings_ms[Stage.BUILD.value] = round((time.monotonic() - ahead.since) * 1_000, 3)
        content["context"]["timings_ms"] = timings_ms
        return answer(ahead.message.id, ahead.message.run_id, ahead.message.owner_key, content)

    async def handle_build_request(
        self,
        message: Message,
        *,
        budget_s: float = _DEFAULT_BUDGET_S,
        timings_ms: Mapping[str, float] | None = None,
        ahead: Ahead | None = None,
    ) -> Message:
        """The answer to a build request (CONTRACT §1.4): a success, or the error that the request deserves.

        Args:
            message: the envelope, whose content is the run.
            budget_s: seconds in which the answer is needed; what cannot be read in time is missing from it.
            timings_ms: what was measured before, for the manifest.
            ahead: what `look_ahead` made of the message, claimed.
        """
        try:
            request = ahead.request if ahead else read_request(message, default_layout=self.settings.default_layout)
            content = await self._build(request, budget_s, dict(timings_ms or {}), ahead)
        except RequestError as error:
            return error_answer(message.id, message.run_id, message.owner_key, error)
        return answer(message.id, message.run_id, message.owner_key, content)

    def overhear(self, message: Message) -> None:
        """Take note of a request that another replica answers."""
        try:
            request = read_request(message, default_layout=self.settings.default_layout)
        except RequestError:
            return
        self._parts.conversation.remember_run(request.owner_key, request.run_id, request.origin)

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
        ends_at = anyio.current_time() + _DEFAULT_BUDGET_S
        build = self._begun(request, _DEFAULT_BUDGET_S, ends_at, {})
        return (await fresh_dialogue(self._parts, build)).messages

    async def _build(
        self, request: BuildRequest, budget_s: float, timings_ms: dict[str, float], ahead: Ahead | None
    ) -> dict[str, Any]:
        with self._parts.measured(Stage.BUILD, timings_ms):
            seconds = budget_s * GATHERING
            build = self._begun(request, seconds, anyio.current_time() + seconds, timings_ms, ahead)
            check_input(offered(self._parts.tools, request), build)
            prefix = await _LAYOUTS[request.layout](self._parts, build)
            content = closed(prefix, build)
            if found := faults(content["messages"]):
                _log.error("invalid_list", request_id=request.request_id, reason="; ".join(found[:_SHOWN_FAULTS]))
                raise RequestError(ErrorCode.INTERNAL, "the message list would not be one that providers accept")
            content = in_format(request.form, content)
        content["context"]["timings_ms"] = timings_ms
        return content

    def _begun(
        self,
        request: BuildRequest,
        seconds: float,
        ends_at: float,
        timings_ms: dict[str, float],
        ahead: Ahead | None = None,
    ) -> Build:
        settings, counter = self.settings, self._counter
        measure = Measure(counter, request.form, self._counted) if counter else None
        bound = bound_of(self._bounds, request, settings)
        return Build(request, settings, seconds, ends_at, timings_ms, measure, bound, ahead)


_LAYOUTS: Final[Mapping[str, Callable[[BuildParts, Build], Awaitable[RunPrefix]]]] = {
    "dialogue": build_dialogue,
    "agent": build_agent,
    "thinking": build_thinking,
}


class _NoStates:
    async def get(self, owner_key: str, session_id: str) -> SessionState:  # noqa: ARG002  # there is none for anybody
        return SessionState()
