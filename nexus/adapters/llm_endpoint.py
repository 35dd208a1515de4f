"""An endpoint of a model: its address, the client of the SDK and the HTTP client below it, and what its errors mean.

- The SDK adds headers from environment variables (OPENAI_ORG_ID, OPENAI_PROJECT_ID, OPENAI_CUSTOM_HEADERS) and headers
  that describe the machine. Only those on a list are sent.
- User and password of an address are sent as a header, since errors and logs of HTTP clients quote addresses.
- Redirections are not followed: they would carry the key to another host.
- Texts of errors name a status and a well-known code, and nothing else of the answer, which may quote the key or the
  prompt.
"""

import os
import re
import socket
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from errno import errorcode
from http import HTTPStatus
from http.client import responses
from typing import Final, cast
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

import anyio
import httpx2
from openai import APIConnectionError, APIStatusError, APITimeoutError, AsyncOpenAI

from nexus.core.errors import ConfigError, ModelUnavailableError, PromptTooLongError

_SENT: Final = frozenset({"host", "accept", "connection", "content-type", "content-length", "transfer-encoding"})
# Statuses with which endpoints refuse a prompt or a response format. llama.cpp does it with 500.
_EXPLAINED: Final = frozenset({400, 413, 415, 422, 500, 501})
# The words of OpenAI, vLLM, llama.cpp and its Python binding, Ollama, LM Studio, TGI, Mistral and gateways to others.
_TOO_LONG: Final = re.compile(
    r"context_length_exceeded|exceed_context_size|context (length|size|window)|maximum context|model length"
    r"|(prompt|input|message|request)s? (is |are )?too (long|large)|too many (input )?tokens|input token count"
    r"|reduce the length|max_new_tokens` must be <=|max_tokens must be at least 1",
    re.IGNORECASE,
)
_FORMAT: Final = re.compile(r"response[_ ]?formats?|json_schema|json_object|structured.outputs?|grammar", re.IGNORECASE)
_CLOSING_S: Final = 1.0
_READ_CHARS: Final = 4_096
_CODES: Final = frozenset(
    {
        "billing_hard_limit_reached",
        "insufficient_quota",
        "invalid_api_key",
        "model_not_found",
        "permission_denied",
        "rate_limit_exceeded",
        "server_error",
        "unsupported_country_region_territory",
    }
)


@dataclass(frozen=True, slots=True)
class Address:
    """Where an endpoint is and how to log in there.

    Attributes:
        section: of the settings, where it stands.
        url: without user, password and query.
        query: options that every request carries.
        authorization: the header field; `""` for none.
    """

    section: str
    url: str
    query: dict[str, str] = field(repr=False)
    authorization: str = field(repr=False)


def read_address(base_url: str, api_key: str, section: str = "llm") -> Address:
    """The parts of an address of these settings. A key comes before user and password, since one header field is both.

    Raises:
        ConfigError: the address or the key cannot be used. The text repeats neither.
    """
    key = api_key.strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{section}.api_key: has characters that no header field of HTTP can hold")
    try:
        parts = urlsplit(base_url)
        login, _, host = parts.netloc.rpartition("@")
        url = urlunsplit((parts.scheme, host, parts.path, "", ""))
        if not parts.hostname or not httpx2.URL(url).host or parts.port == 0:
            raise ValueError  # noqa: TRY301  # said below, as for those that the parsers refuse
    except (ValueError, httpx2.InvalidURL):
        raise ConfigError(f"{section}.base_url: names no host and port; http://host:port/v1 is allowed") from None
    user, _, password = login.partition(":")
    basic = b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode() if login else ""
    authorization = f"Bearer {key}" if key else f"Basic {basic}" if basic else ""
    return Address(section, url, dict(parse_qsl(parts.query, keep_blank_values=True)), authorization)


@asynccontextmanager
async def open_sdk(address: Address, *, retries: int, at_once: int, max_bytes: int) -> AsyncIterator[AsyncOpenAI]:
    """The SDK at an address, over `open_http`."""
    client = AsyncOpenAI(
        base_url=address.url,
        # The transport sets the header. Without a value the SDK would take one from the environment.
        api_key="unused",
        default_query=address.query,
        max_retries=retries,
        timeout=None,
        http_client=open_http(address, at_once=at_once, max_bytes=max_bytes),
    )
    try:
        yield client
    finally:
        with anyio.move_on_after(_CLOSING_S, shield=True):
            await client.close()


def open_http(address: Address, *, at_once: int, max_bytes: int) -> httpx2.AsyncClient:
    """A client for `at_once` calls, which reads `max_bytes` of an answer and fails on one that is longer.

    It sets no time limits: each call has one as a whole. Proxies and certificates are those of the environment
    (HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE), as for every HTTP client; ConfigError where they cannot be used.
    """

    async def sent(request: httpx2.Request) -> None:
        for name in [name for name in request.headers if name.lower() not in _SENT]:
            del request.headers[name]
        # A compressed answer could be a thousand times longer than what comes over the wire.
        request.headers["Accept-Encoding"] = "identity"
        request.headers["User-Agent"] = "nexus"
        if address.authorization:
            request.headers["Authorization"] = address.authorization

    async def received(response: httpx2.Response) -> None:
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise ModelUnavailableError("a compressed answer, which was not asked for")
        response.stream = _Bounded(cast("httpx2.AsyncByteStream", response.stream), max_bytes)

    try:
        return httpx2.AsyncClient(
            event_hooks={"request": [sent], "response": [received]},
            limits=httpx2.Limits(max_connections=at_once, max_keepalive_connections=at_once),
            timeout=None,
            follow_redirects=False,
        )
    except (OSError, ValueError, httpx2.InvalidURL) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        named = "SSL_CERT_FILE, SSL_CERT_DIR or a proxy of the environment"
        raise ConfigError(f"{address.section}.base_url: {named} cannot be used: {reason}") from None


class _Bounded(httpx2.AsyncByteStream):
    """The bytes of another stream, up to so many."""

    def __init__(self, stream: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = 0
        async for piece in self._stream:
            read += len(piece)
            if read > self._max_bytes:
                raise ModelUnavailableError(f"the answer is longer than {self._max_bytes:,} bytes")
            yield piece

    async def aclose(self) -> None:
        """Give the connection back, or close it when there is more to read."""
        await self._stream.aclose()


class FormatRefusedError(Exception):
    """The endpoint does not know the `response_format` that was asked for."""


def read_error(error: Exception, timeout_s: float, wanted: str = "chat completion") -> Exception:
    """The error of ours that an exception of the SDK, or of the HTTP client below it, means for an answer wanted."""
    if isinstance(error, TimeoutError | APITimeoutError):
        return ModelUnavailableError(f"no answer within {timeout_s:g} s")
    if isinstance(error, APIStatusError):
        return _read_status(error)
    if isinstance(error, APIConnectionError):
        if "CERTIFICATE" in str(error.__cause__).upper():
            return ModelUnavailableError("the certificate of the endpoint is not trusted")
        return ModelUnavailableError(f"no connection ({_reason(error)})")
    return not_wanted(wanted)


def not_wanted(wanted: str = "chat completion") -> ModelUnavailableError:
    """The endpoint answered with something else."""
    return ModelUnavailableError(f"the answer is no {wanted}")


def read_error_text(text: str) -> Exception:
    """The error that a text means which an endpoint gave in place of an answer, with the status of a success."""
    if _TOO_LONG.search(text[:_READ_CHARS]):
        return PromptTooLongError("the prompt does not fit")
    return ModelUnavailableError("an error in the place of an answer")


def _read_status(error: APIStatusError) -> Exception:
    status, text = error.status_code, error.response.text[:_READ_CHARS]
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE or (status in _EXPLAINED and _TOO_LONG.search(text)):
        return PromptTooLongError(f"the prompt does not fit ({status})")
    if status in _EXPLAINED and _FORMAT.search(text):
        return FormatRefusedError()
    code = next((code for code in (error.code, error.type) if code in _CODES), None)
    return ModelUnavailableError(f"{status} {code or responses.get(status, '')}".strip())


def _reason(error: Exception) -> str:
    """The reason in the operating system's general words, since an error's own text holds addresses."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return "TLS failed"
        if isinstance(cause, socket.gaierror):
            return "the name of the host cannot be resolved"
        code = cause.errno if isinstance(cause, OSError) else None
        if code is not None and code in errorcode:
            return os.strerror(code)
        # A host with several addresses gives an error for each.
        cause = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause.__cause__ or cause.__context__
    return type(error.__cause__ or error).__name__
