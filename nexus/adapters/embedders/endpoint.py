"""An embedder behind an endpoint that speaks the OpenAI protocol (`/embeddings`), on the SDK of OpenAI (contract §14).

- Of many models all vectors lie close together, so their signs tell little. Those of the difference from a centre do:
  from the mean vector of some sentences, which the endpoint is asked for once. Every replica gets the same one, and a
  change of the sentences is a new generation.
- The SDK retries what may pass. `timeout_s` covers one call with all its attempts; a question has less, since a context
  waits for it, and words find without.
- One log line says that the embedder is unavailable and one that it is back, however many calls there are between.
"""

import binascii
import hashlib
import json
import math
import re
from array import array
from base64 import b64decode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.client import responses
from typing import Any, Final

import anyio
import httpx2
import structlog
from anyio import to_thread
from openai import APIStatusError, AsyncOpenAI, OpenAIError

from nexus.adapters.embedders.texts import SAMPLES, shortened
from nexus.adapters.llm import Breaker
from nexus.adapters.llm_endpoint import not_wanted, open_sdk, read_address, read_error
from nexus.core.errors import ModelUnavailableError, PromptTooLongError
from nexus.core.tracing import model_call

_log = structlog.get_logger(__name__)

# Servers take so many by default.
_TEXTS_AT_ONCE: Final = 32
_CALLS_AT_ONCE: Final = 8
_QUESTION_S: Final = 1.0
_RETRIES: Final = 2
_BREAKER_FAILURES: Final = 5
_BREAKER_REST_S: Final = 30.0
# As many vectors of 4,096 numbers as texts.
_MAX_ANSWER_BYTES: Final = 1 << 23
_MOST_DIMENSIONS: Final = 1 << 14
_WANTED: Final = "list of vectors"
# With these statuses texts are refused. Some servers do it with 500, where a vector comes out as no numbers.
_REFUSED: Final = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
        HTTPStatus.INTERNAL_SERVER_ERROR,
    }
)
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_CHARS: Final = 40
_HASH_CHARS: Final = 12


@dataclass(frozen=True, slots=True)
class EmbeddingModel:
    """A model and what it wants before questions and texts."""

    name: str
    question_prefix: str = ""
    text_prefix: str = ""

    @property
    def generation(self) -> str:
        """Of its codes."""
        parts = (self.name, self.question_prefix, self.text_prefix, *SAMPLES)
        depends_on = hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()
        return f"{_NOT_IN_NAMES.sub('-', self.name)[:_NAME_CHARS]}-{depends_on[:_HASH_CHARS]}"


@asynccontextmanager
async def open_endpoint(
    base_url: str, api_key: str, model: EmbeddingModel, *, timeout_s: float, question_s: float = _QUESTION_S
) -> AsyncIterator["EndpointEmbedder"]:
    """The embedder at an endpoint, connected to by the first call; ConfigError for an unusable address or key.

    An empty key is not sent.
    """
    address = read_address(base_url, api_key, "recall")
    async with open_sdk(address, retries=_RETRIES, at_once=_CALLS_AT_ONCE, max_bytes=_MAX_ANSWER_BYTES) as client:
        yield EndpointEmbedder(client, model, timeout_s, min(question_s, timeout_s))


class _RefusedError(Exception):
    """The endpoint does not take these texts, or makes no vectors of them."""


class EndpointEmbedder:
    """`nexus.core.ports.Embedder` on the SDK of OpenAI."""

    def __init__(self, client: AsyncOpenAI, model: EmbeddingModel, timeout_s: float, question_s: float) -> None:
        self._client = client
        self._model = model
        self._timeout_s = timeout_s
        self._question_s = question_s
        self._places = anyio.Semaphore(_CALLS_AT_ONCE)
        self._breaker = Breaker(_BREAKER_FAILURES, _BREAKER_REST_S)
        self._unavailable = False
        # Empty until it is known.
        self._centre: Sequence[float] = ()

    @property
    def generation(self) -> str:
        """The name of the model, and a hash of all else that codes depend on."""
        return self._model.generation

    async def codes_of_texts(self, texts: Sequence[str]) -> list[bytes]:
        """Of each text, one bit a dimension; ValueError where the endpoint refuses one of them."""
        codes: list[bytes] = []
        for first in range(0, len(texts), _TEXTS_AT_ONCE):
            some = [self._model.text_prefix + shortened(text) for text in texts[first : first + _TEXTS_AT_ONCE]]
            codes += await self._codes(some, self._timeout_s)
        return codes

    async def code_of_question(self, question: str) -> bytes:
        """The same for a question, in `question_s` once the centre is known."""
        asked = self._model.question_prefix + shortened(question)
        (code,) = await self._codes([asked], self._question_s)
        return code

    async def _codes(self, texts: Sequence[str], most_s: float) -> list[bytes]:
        try:
            vectors = await self._vectors(texts, most_s)
        except ModelUnavailableError as error:
            if not self._unavailable:
                self._unavailable = True
                _log.warning("embedder_unavailable", reason=str(error))
            raise
        if self._unavailable:
            self._unavailable = False
            _log.info("embedder_available")
        return await to_thread.run_sync(_signs, vectors, self._centre)

    async def _vectors(self, texts: Sequence[str], most_s: float) -> list[Sequence[float]]:
        if not self._centre:
            # Calls that begin together each ask for it, and get the same.
            self._centre = await self._mean_of_samples()
        try:
            vectors = await self._ask(texts, most_s)
        except _RefusedError as refusal:
            # An endpoint that refuses everything says nothing about a text.
            await self._mean_of_samples()
            raise ValueError(f"the endpoint gives no vector of it: {refusal}") from None
        if any(len(vector) != len(self._centre) for vector in vectors):
            known, found = len(self._centre), len(vectors[0])
            raise ModelUnavailableError(f"vectors of {found} numbers, and there were {known} before: another model?")
        return vectors

    async def _mean_of_samples(self) -> list[float]:
        try:
            vectors = await self._ask([self._model.text_prefix + sample for sample in SAMPLES], self._timeout_s)
        except _RefusedError as refusal:
            raise ModelUnavailableError(f"a plain sentence is refused: {refusal}") from None
        return await to_thread.run_sync(_mean, vectors)

    async def _ask(self, texts: Sequence[str], most_s: float) -> list[Sequence[float]]:
        """The vectors of the texts, as long as each other.

        Raises:
            ModelUnavailableError, _RefusedError
        """
        async with self._places, self._breaker.call():
            try:
                with model_call("embeddings", self._model.name), anyio.fail_after(most_s):
                    # By its path, since what the SDK makes of the answer it makes on the event loop, number by number.
                    # base64, as it would ask for: far less to read than decimals, which may come all the same.
                    answer = await self._client.post(
                        "/embeddings",
                        cast_to=httpx2.Response,
                        body={"input": [*texts], "model": self._model.name, "encoding_format": "base64"},
                    )
            except (OpenAIError, TimeoutError) as error:
                # Its text may quote addresses, header fields and words of the endpoint, so it is not chained.
                read = read_error(error, most_s, _WANTED)
                status = error.status_code if isinstance(error, APIStatusError) else 0
                if status in _REFUSED or isinstance(read, PromptTooLongError):
                    raise _RefusedError(f"{status} {responses.get(status, '')}".strip()) from None
                raise read if isinstance(read, ModelUnavailableError) else not_wanted(_WANTED) from None
            return await to_thread.run_sync(_read, answer.content, len(texts))


def _read(content: bytes, wanted: int) -> list[Sequence[float]]:
    """The vectors of an answer, in the order of the texts."""
    try:
        answer = json.loads(content)
    # RecursionError: nested too deep.
    except (ValueError, RecursionError):
        raise not_wanted(_WANTED) from None
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
        raise not_wanted(_WANTED)
    if len(data) != wanted:
        raise ModelUnavailableError(f"{len(data)} vectors for {wanted} texts")
    places = [item.get("index") for item in data]
    if sorted(place for place in places if isinstance(place, int)) != [*range(wanted)]:
        raise ModelUnavailableError("the vectors do not say of which texts they are")
    vectors = [_numbers(item.get("embedding")) for item in data]
    if len({*map(len, vectors)}) > 1:
        raise ModelUnavailableError("vectors of different lengths")
    if not all(any(vector) and all(map(math.isfinite, vector)) for vector in vectors):
        raise _RefusedError("it has numbers that are not finite, or only zeros")
    return [vectors[places.index(place)] for place in range(wanted)]


def _numbers(embedding: Any) -> Sequence[float]:
    numbers = array("f" if isinstance(embedding, str) else "d")
    try:
        if isinstance(embedding, str):
            numbers.frombytes(b64decode(embedding, validate=True))
        elif isinstance(embedding, list):
            # Where a server can write no NaN into JSON, null stands for it.
            numbers.extend(math.nan if number is None else number for number in embedding)
    except (TypeError, ValueError, OverflowError, binascii.Error):
        raise ModelUnavailableError("a vector has something else than numbers") from None
    if not 0 < len(numbers) <= _MOST_DIMENSIONS:
        raise ModelUnavailableError(f"a vector of {len(numbers)} numbers; 1 to {_MOST_DIMENSIONS:,} are allowed")
    return numbers


def _mean(vectors: Sequence[Sequence[float]]) -> list[float]:
    return [sum(numbers) / len(vectors) for numbers in zip(*vectors, strict=True)]


def _signs(vectors: Sequence[Sequence[float]], centre: Sequence[float]) -> list[bytes]:
    """Of each vector, whether each number is above the centre's: a bit, the first number's the highest."""
    length = (len(centre) + 7) // 8
    return [
        int(
            "".join("1" if number > middle else "0" for number, middle in zip(vector, centre, strict=True)), 2
        ).to_bytes(length)
        for vector in vectors
    ]
