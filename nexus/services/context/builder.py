"""The one part of the context that does input and output: gather, assemble, answer (CONTRACT §1.4, §4, §8)."""

import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import anyio
import structlog

from nexus.core.errors import BusUnavailableError, ErrorCode, RequestError, StoreUnavailableError
from nexus.core.models import Message, Role
from nexus.core.ports import Conversation, DocumentStore, RequestLedger, Row
from nexus.services.context.continuation import provider_messages
from nexus.services.context.escape import CountingEscape
from nexus.services.context.layouts import DialogueInput, assemble_dialogue, describe_prefix
from nexus.services.context.request import BuildRequest, read_request
from nexus.tools.registry import ToolRegistry

_log = structlog.get_logger(__name__)

_HISTORY_SIZES: Final = (1, 200)
# Of the time that is left, this part is for gathering; the rest is for assembling and publishing.
_GATHERING: Final = 0.8
_DEFAULT_BUDGET_S: Final = 5.0
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


@dataclass(slots=True)
class _Gathered:
    """What was read for one build, and what of it is missing."""

    profile: Mapping[str, Any] | None = None
    rows: Sequence[Row] = ()
    history_size: int = 0
    degraded: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Prefix:
    """The messages of a run that are the same in every build of it, with all that was said about them."""

    messages: list[dict[str, Any]]
    manifest: dict[str, Any]
    tools: list[dict[str, Any]]
    degraded: list[str]
    notes: list[str]

    def to_bytes(self) -> bytes:
        kept = [self.messages, self.manifest, self.tools, self.notes]
        return json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, kept: bytes) -> "_Prefix":
        messages, manifest, tools, notes = json.loads(kept)
        return cls(messages, manifest, tools, [], notes)


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
    ) -> None:
        self._conversation = conversation
        self._documents = documents
        self._tools = tools
        self._ledger = ledger
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
            RequestError: HISTORY_UNAVAILABLE, where settings want that rather than a context without history.
        """
        run = {
            "id": current_run_id or "run_unnamed",
            "owner_key": owner_key,
            "history": [{"run_id": current_run_id or "run_unnamed", "owner_key": owner_key, "role": "HUMAN"}],
            "metadata": {
                "layout": "dialogue",
                "user_profile": user_profile,
                "client_timestamp_utc": timestamp_utc,
                "client_timezone_offset": timezone_offset,
            },
        }
        run["history"][0]["content"] = current_input  # type: ignore[index]  # a list, as written above
        envelope = {"run_id": run["id"], "owner_key": owner_key, "role": "HUMAN", "content": run}
        request = read_request(Message.model_validate(envelope))
        gathered = await self._gather(request, _DEFAULT_BUDGET_S, self.settings)
        return self._assemble(request, gathered, self.settings).messages

    async def _build(self, request: BuildRequest, budget_s: float, timings_ms: dict[str, float]) -> dict[str, Any]:
        settings, started = self.settings, time.perf_counter()
        key = _prefix_key(request)
        prefix = await self._kept_prefix(key) if request.continuation else None
        if prefix is None:
            recorded = self._conversation.offer_input(request.human, request.current_input, request.session_id)
            gathered = await self._gather(request, budget_s * _GATHERING, settings)
            gathered_at = time.perf_counter()
            timings_ms["gather"] = _ms(started, gathered_at)
            assembled = self._assemble(request, gathered, settings)
            timings_ms["assemble"] = _ms(gathered_at, time.perf_counter())
            prefix = await self._keep_prefix(key, assembled, settings)
            if recorded is None:
                _log.error("input_not_recorded", request_id=request.request_id, reason="too much is waiting")
            elif "history" not in gathered.degraded:
                with anyio.move_on_after(_RECORDING_S):
                    await recorded.wait()
        content = _continued(prefix, request)
        timings_ms["build"] = _ms(started, time.perf_counter())
        content["context"]["timings_ms"] = timings_ms
        return content

    async def _gather(self, request: BuildRequest, budget_s: float, settings: BuilderSettings) -> _Gathered:
        gathered = _Gathered(profile=request.user_profile, notes=list(request.notes))

        async def read_profile() -> None:
            gathered.profile = await self._documents.find_identity(request.owner_key)

        async def read_history() -> None:
            size, note = _history_size(gathered.profile, settings.history_size)
            gathered.notes += [note] if note else []
            past = await self._conversation.get_past(
                request.owner_key,
                messages=size,
                excerpt_chars=settings.truncate_chars,
                current_run_id=request.run_id,
                continued=request.human if request.continuation else None,
            )
            gathered.rows, gathered.history_size = past.rows, size
            gathered.notes += ["history: reading stopped early"] if past.stopped_early else []

        deadline = anyio.current_time() + budget_s
        if request.user_profile is None:
            await _within(deadline, "profile", read_profile, gathered)
        await _within(deadline, "history", read_history, gathered)
        if "history" in gathered.degraded and settings.on_history_failure == "error":
            raise RequestError(ErrorCode.HISTORY_UNAVAILABLE, "the history could not be read in time")
        if not self._tools.complete:
            gathered.degraded.append("tools")
        return gathered

    def _assemble(self, request: BuildRequest, gathered: _Gathered, settings: BuilderSettings) -> _Prefix:
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
        return _Prefix(assembled.messages, assembled.manifest, tools, gathered.degraded, gathered.notes)

    async def _kept_prefix(self, key: str) -> _Prefix | None:
        try:
            kept = await self._ledger.kept(key)
        except BusUnavailableError:
            return None
        return _Prefix.from_bytes(kept) if kept else None

    async def _keep_prefix(self, key: str, prefix: _Prefix, settings: BuilderSettings) -> _Prefix:
        # A context with parts missing is not worth repeating: a later build of the run may be whole again.
        if prefix.degraded:
            return prefix
        mine = prefix.to_bytes()
        try:
            kept = await self._ledger.keep_first(key, mine, settings.keep_prefix_ms)
        except BusUnavailableError:
            return prefix
        return prefix if kept == mine else _Prefix.from_bytes(kept)


def answer(request_id: str, run_id: str, owner_key: str, content: Mapping[str, Any]) -> Message:
    """A response message to the request of that id."""
    # The ids of a request that could not be read are still repeated; an envelope cannot be without them.
    return Message(
        run_id=run_id or "unknown",
        owner_key=owner_key or "unknown",
        role=Role.SYSTEM,
        content=content,
        metadata={"request_id": request_id},
    )


def error_answer(request_id: str, run_id: str, owner_key: str, error: RequestError) -> Message:
    """The response that tells a requester what is wrong."""
    described = {"code": error.code.value, "message": error.message, "retryable": error.code.retryable}
    return answer(request_id, run_id, owner_key, {"status": "error", "error": described, "messages": [], "tools": []})


async def _within(deadline: float, part: str, read: Callable[[], Awaitable[None]], gathered: _Gathered) -> None:
    finished = False
    with anyio.move_on_after(deadline - anyio.current_time()):
        try:
            await read()
            finished = True
        except StoreUnavailableError as error:
            _log.warning("degraded", part=part, reason=str(error))
    if not finished:
        gathered.degraded.append(part)


def _continued(prefix: _Prefix, request: BuildRequest) -> dict[str, Any]:
    """The content of a success: the prefix, and after it the run's own later messages."""
    escape = CountingEscape()
    later, repairs = provider_messages(request.later, escape)
    blocks = list(prefix.manifest["blocks"])
    if later:
        blocks.append(
            {
                "tag": "RUN",
                "role": later[0]["role"],
                "index": len(prefix.messages),
                "bytes": len(json.dumps(later, ensure_ascii=False, separators=(",", ":")).encode()),
                "sources": [message.id for message in request.later],
                "truncated": 0,
                "dropped": 0,
                "escaped": escape.marked,
            }
        )
    manifest = {**prefix.manifest, "blocks": blocks, "notes": [*prefix.notes, *repairs]}
    if "tools" in prefix.degraded:
        manifest["prefix"] = describe_prefix(prefix.messages, 1)
    return {
        "status": "success",
        "layout": request.layout,
        "messages": [*prefix.messages, *later],
        "tools": prefix.tools,
        "context": manifest,
        "degraded": list(prefix.degraded),
    }


def _history_size(profile: Mapping[str, Any] | None, default: int) -> tuple[int, str | None]:
    overrides = profile.get("config_overrides") if profile else None
    wanted = overrides.get("history_context_size") if isinstance(overrides, Mapping) else None
    if wanted is None:
        return default, None
    low, high = _HISTORY_SIZES
    where = "user_profile.config_overrides.history_context_size"
    if isinstance(wanted, bool) or not isinstance(wanted, int):
        return default, f"{where}: a whole number from {low} to {high} is allowed, {default} is used"
    size = min(max(wanted, low), high)
    return size, None if size == wanted else f"{where}: {low} to {high} are allowed, {size} is used"


def _prefix_key(request: BuildRequest) -> str:
    identity = json.dumps([request.owner_key, request.run_id, request.layout, request.current_input])
    return hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()


def _ms(start: float, end: float) -> float:
    return round((end - start) * 1_000, 3)
