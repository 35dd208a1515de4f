"""The language model behind an endpoint that speaks the OpenAI protocol, on the SDK of OpenAI (contract §6).

- The SDK retries what may pass, with its own pauses. `timeout_s` covers one call with all its attempts, also an answer
  that trickles; the wait for a free place does not count.
- A call asks for an answer that follows the schema. Where the endpoint refuses that, for any JSON object, and where it
  refuses that too, for text; later calls begin with the form that worked.
- One log line says that the model is unavailable and one that it is back, however many calls there are between.
"""

import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

import anyio
import structlog
from openai import AsyncOpenAI, OpenAIError

from nexus.adapters.llm_endpoint import (
    FormatRefusedError,
    not_wanted,
    open_sdk,
    read_address,
    read_error,
    read_error_text,
)
from nexus.core.errors import ModelUnavailableError, PromptTooLongError
from nexus.core.ports.model import Completion
from nexus.core.tracing import Key, describe, model_call

_log = structlog.get_logger(__name__)

_Format = Literal["json_schema", "json_object", "text"]
_FORMATS: Final[tuple[_Format, ...]] = ("json_schema", "json_object", "text")
_MAX_ANSWER_BYTES: Final = 1 << 20
# Of a count that an endpoint reports.
_MOST_TOKENS: Final = 1 << 31
# A rest of the breaker lasts up to this factor longer, so that replicas do not all come back at once.
_LONGEST_FACTOR: Final = 1.25


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """How a model is asked: see `llm` in config.example.yml."""

    timeout_s: float = 30.0
    retries: int = 2
    max_concurrency: int = 4
    breaker_failures: int = 5
    breaker_rest_s: float = 30.0


@asynccontextmanager
async def open_llm(base_url: str, api_key: str, name: str, limits: ModelLimits) -> AsyncIterator["OpenAiModel"]:
    """The model `name` at an endpoint, connected to by the first call; ConfigError for an unusable address or key.

    An empty key is not sent.
    """
    address = read_address(base_url, api_key)
    at_once = limits.max_concurrency
    async with open_sdk(address, retries=limits.retries, at_once=at_once, max_bytes=_MAX_ANSWER_BYTES) as client:
        yield OpenAiModel(client, name, limits)


class Breaker:
    """A circuit breaker around calls.

    - After `failures` failed calls in a row it opens: for about `rest_s` seconds every call fails at once.
    - Then one trial call is made, and other calls wait for its outcome: a success closes the breaker, a failure opens
      it again.
    - A cancelled call counts neither way. If it was the trial, the next call is.
    """

    def __init__(self, failures: int, rest_s: float, clock: Callable[[], float] = anyio.current_time) -> None:
        self._most = failures
        self._rest_s = rest_s
        self._clock = clock
        self._in_a_row = 0
        # Until when no call is made; None while the breaker is closed.
        self._until: float | None = None
        self._trial: anyio.Event | None = None

    @property
    def resting_s(self) -> float:
        """For how many seconds from now calls fail at once; 0 when the next one is made."""
        return 0.0 if self._until is None else max(self._until - self._clock(), 0.0)

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """A call; ModelUnavailableError while the breaker is open. PromptTooLongError, raised inside, is an answer."""
        trial = await self._admitted()
        try:
            yield
        except ModelUnavailableError:
            self._failed(is_trial=trial is not None)
            raise
        except PromptTooLongError:
            self._succeeded()
            raise
        else:
            self._succeeded()
        finally:
            if trial is not None:
                self._trial = None
                trial.set()

    async def _admitted(self) -> anyio.Event | None:
        """Wait until the call may be made. Returns the event to set at its end when it is the trial."""
        while self._until is not None:
            if self.resting_s:
                raise ModelUnavailableError(f"no call is made for {self.resting_s:.1f} s, after failures")
            if self._trial is None:
                self._trial = anyio.Event()
                return self._trial
            await self._trial.wait()
        return None

    def _failed(self, *, is_trial: bool) -> None:
        self._in_a_row += 1
        # A call that was begun before the rest and fails in it does not prolong it.
        if is_trial or (self._until is None and self._in_a_row >= self._most):
            self._until = self._clock() + self._rest_s * random.uniform(1, _LONGEST_FACTOR)  # noqa: S311  # jitter

    def _succeeded(self) -> None:
        self._in_a_row, self._until = 0, None


class OpenAiModel:
    """`nexus.core.ports.LanguageModel` on the SDK of OpenAI."""

    def __init__(self, client: AsyncOpenAI, name: str, limits: ModelLimits) -> None:
        self._client = client
        self._name = name
        self._limits = limits
        self._places = anyio.Semaphore(limits.max_concurrency)
        self._breaker = Breaker(limits.breaker_failures, limits.breaker_rest_s)
        self._first_format = 0
        self._unavailable = False

    @property
    def name(self) -> str:
        """What the model is called."""
        return self._name

    @property
    def resting_s(self) -> float:
        """For how many seconds from now every call fails at once; 0 when the next one is made."""
        return self._breaker.resting_s

    async def complete(self, system: str, user: str, *, schema: Mapping[str, Any], schema_name: str) -> Completion:
        """The model's answer; see the port. Half surrogate pairs, which no JSON can carry, become `?`."""
        request = {
            "model": self._name,
            "messages": [
                {"role": "system", "content": _sendable(system)},
                {"role": "user", "content": _sendable(user)},
            ],
        }
        asked_schema = {"name": schema_name, "schema": dict(schema), "strict": True}
        try:
            completion = await self._complete_in_some_format(request, asked_schema)
        except ModelUnavailableError as error:
            if not self._unavailable:
                self._unavailable = True
                _log.warning("model_unavailable", reason=str(error))
            raise
        if self._unavailable:
            self._unavailable = False
            _log.info("model_available")
        return completion

    async def _complete_in_some_format(self, request: Mapping[str, Any], schema: Mapping[str, Any]) -> Completion:
        for number in range(self._first_format, len(_FORMATS)):
            try:
                with model_call("chat", self._name):
                    completion = await self._call({**request, **_response_format(_FORMATS[number], schema)})
                    described = {Key.PROMPT_TOKENS: completion.prompt_tokens}
                    describe({**described, Key.COMPLETION_TOKENS: completion.completion_tokens})
            except FormatRefusedError:
                continue
            self._first_format = max(self._first_format, number)
            return completion
        raise ModelUnavailableError("every form of an answer is refused")

    async def _call(self, request: Mapping[str, Any]) -> Completion:
        async with self._places, self._breaker.call():
            try:
                with anyio.fail_after(self._limits.timeout_s):
                    completion = await self._client.chat.completions.create(**request)
            # ValueError: an answer that is not JSON. RecursionError: JSON that is nested too deep.
            except (OpenAIError, TimeoutError, ValueError, RecursionError) as error:
                # Its text may quote addresses, header fields and words of the endpoint, so it is not chained.
                raise read_error(error, self._limits.timeout_s) from None
            usage = getattr(completion, "usage", None)
            tokens = (_count_in(usage, name) for name in ("prompt_tokens", "completion_tokens"))
            return Completion(_text_of(completion), *tokens)


def _sendable(text: str) -> str:
    return text.encode(errors="replace").decode()


def _response_format(form: _Format, schema: Mapping[str, Any]) -> dict[str, Any]:
    if form == "json_schema":
        return {"response_format": {"type": form, "json_schema": schema}}
    return {"response_format": {"type": form}} if form == "json_object" else {}


def _count_in(usage: object, name: str) -> int:
    count = getattr(usage, name, 0)
    return count if isinstance(count, int) and 0 <= count < _MOST_TOKENS else 0


def _text_of(completion: object) -> str:
    """The text of an answer, `""` where it has none. The SDK does not validate what it returns."""
    if error := getattr(completion, "error", None):
        raise read_error_text(str(error))
    choices = getattr(completion, "choices", None)
    message = getattr(choices[0], "message", None) if isinstance(choices, list) and choices else None
    if message is None:
        raise not_wanted()
    content = getattr(message, "content", None)
    if isinstance(content, list):
        # Some endpoints answer in parts, thoughts among them.
        texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""
