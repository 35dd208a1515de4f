"""A language model behind an endpoint that speaks the OpenAI protocol (CONTRACT §6).

Rules of this module:

- The SDK repeats nothing by itself; what may be tried again is tried again here.
- A call's time limit covers all of it, also an answer that trickles. The wait for a place does not count.
- A call asks for an answer that follows the schema. Where the endpoint refuses that, it is asked for any JSON object,
  and where it refuses that too, for an answer; the form that worked is the first one of later calls.
- One line of the log says that the model is away, one that it is back, however many calls there are between.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

import anyio
import structlog
from openai import AsyncOpenAI, OpenAIError

from nexus.adapters.breaker import Breaker
from nexus.adapters.llm_faults import CallFailedError, FormRefusedError, fault_of, fault_said, no_completion
from nexus.adapters.llm_http import open_http, read_address
from nexus.core.errors import ModelUnavailableError
from nexus.core.tasks import Pauses

_log = structlog.get_logger(__name__)

_Form = Literal["json_schema", "json_object", "text"]
_FORMS: Final[tuple[_Form, ...]] = ("json_schema", "json_object", "text")
_MOST_BYTES: Final = 1 << 20
# What an endpoint asks to wait is waited for up to the first; longer, and no call is made, up to the second.
_LONGEST_WAIT_S: Final = 20.0
_LONGEST_REST_S: Final = 300.0
_CLOSING_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """How a model is asked. For the first six see `llm` in config.example.yml.

    Attributes:
        most_bytes: of one answer.
        first_pause_s: before the second attempt; later ones are longer.
    """

    timeout_s: float = 30.0
    retries: int = 2
    max_concurrency: int = 4
    breaker_failures: int = 5
    breaker_rest_s: float = 30.0
    most_bytes: int = _MOST_BYTES
    first_pause_s: float = 0.5


@asynccontextmanager
async def open_llm(base_url: str, api_key: str, name: str, limits: ModelLimits) -> AsyncIterator["OpenAiModel"]:
    """The model called `name` at an endpoint, which is reached when it is first asked. No key is sent where it is `""`.

    Raises:
        ConfigError: the address or the key cannot be used.
    """
    address = read_address(base_url, api_key)
    http = open_http(address, at_once=limits.max_concurrency, most_bytes=limits.most_bytes)
    client = AsyncOpenAI(
        base_url=address.url,
        # The header field is made elsewhere. Without a value the SDK would look for one in the environment.
        api_key="unused",
        default_query=address.query,
        max_retries=0,
        timeout=None,
        http_client=http,
    )
    try:
        yield OpenAiModel(client, name, limits)
    finally:
        with anyio.move_on_after(_CLOSING_S, shield=True):
            await client.close()


class OpenAiModel:
    """`nexus.core.ports.LanguageModel` on the SDK of OpenAI."""

    def __init__(self, client: AsyncOpenAI, name: str, limits: ModelLimits) -> None:
        self._client = client
        self._name = name
        self._limits = limits
        self._places = anyio.Semaphore(limits.max_concurrency)
        self._breaker = Breaker(limits.breaker_failures, limits.breaker_rest_s)
        self._first_form = 0
        self._away = False

    @property
    def name(self) -> str:
        """What the model is called."""
        return self._name

    @property
    def resting_s(self) -> float:
        """For how many seconds from now every call fails at once; 0 when the next one is made."""
        return self._breaker.resting_s

    async def complete(self, system: str, user: str, *, schema: Mapping[str, Any], schema_name: str) -> str:
        """The text of the model's answer; see the port. Half surrogate pairs, which no JSON can carry, become `?`."""
        request = {
            "model": self._name,
            "messages": [
                {"role": "system", "content": _sendable(system)},
                {"role": "user", "content": _sendable(user)},
            ],
        }
        asked_schema = {"name": schema_name, "schema": dict(schema), "strict": True}
        pauses = Pauses(self._limits.first_pause_s, longest_s=8 * self._limits.first_pause_s)
        left = self._limits.retries
        while True:
            try:
                return await self._in_some_form(request, asked_schema)
            except ModelUnavailableError as error:
                if not (left and await self._worth_waiting(error, pauses)):
                    self._is_away(str(error))
                    raise
                left -= 1

    async def _worth_waiting(self, error: ModelUnavailableError, pauses: Pauses) -> bool:
        """Wait before the next attempt. False where there is to be none."""
        if not (isinstance(error, CallFailedError) and error.passing) or self.resting_s:
            return False
        wait_s = error.retry_after_s or 0.0
        if wait_s > _LONGEST_WAIT_S:
            self._breaker.rest(min(wait_s, _LONGEST_REST_S))
            return False
        await anyio.sleep(wait_s)
        await pauses.wait()
        return True

    async def _in_some_form(self, request: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
        """The answer, in the first form that the endpoint does not refuse."""
        for number in range(self._first_form, len(_FORMS)):
            try:
                text = await self._once({**request, **_in_form(_FORMS[number], schema)})
            except FormRefusedError:
                continue
            self._first_form = max(self._first_form, number)
            return text
        raise CallFailedError("every form of an answer is refused", passing=False)

    async def _once(self, request: Mapping[str, Any]) -> str:
        """One call."""
        async with self._places, self._breaker.call():
            try:
                with anyio.fail_after(self._limits.timeout_s):
                    completion = await self._client.chat.completions.create(**request)
            # ValueError: JSON that is none. RecursionError: JSON that is nested too deep.
            except (OpenAIError, TimeoutError, ValueError, RecursionError) as error:
                # What the error holds may not be repeated: addresses, header fields, words of the endpoint.
                raise fault_of(error, self._limits.timeout_s) from None
            text = _text_of(completion)
        self._is_there()
        return text

    def _is_away(self, reason: str) -> None:
        if not self._away:
            self._away = True
            _log.warning("model_unavailable", reason=reason)

    def _is_there(self) -> None:
        if self._away:
            self._away = False
            _log.info("model_available")


def _sendable(text: str) -> str:
    return text.encode(errors="replace").decode()


def _in_form(form: _Form, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that ask for an answer in that form."""
    if form == "json_schema":
        return {"response_format": {"type": form, "json_schema": schema}}
    return {"response_format": {"type": form}} if form == "json_object" else {}


def _text_of(completion: object) -> str:
    """The text of an answer; `""` where it has none. The SDK checks nothing of what it hands over.

    Raises:
        CallFailedError: it is no answer.
        PromptTooLongError: it says so.
    """
    if error := getattr(completion, "error", None):
        raise fault_said(str(error))
    choices = getattr(completion, "choices", None)
    message = getattr(choices[0], "message", None) if isinstance(choices, list) and choices else None
    if message is None:
        raise no_completion()
    content = getattr(message, "content", None)
    if isinstance(content, list):
        # Some endpoints give parts, thoughts among them.
        texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""
