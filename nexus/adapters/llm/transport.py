"""The HTTP client below the SDK.

- The SDK adds headers from environment variables (OPENAI_ORG_ID, OPENAI_PROJECT_ID, OPENAI_CUSTOM_HEADERS) and headers
  that describe the machine. Only those on a list are sent.
- User and password of an address are sent as a header, since errors and logs of HTTP clients quote addresses.
- Redirections are not followed: they would carry the key to another host.
"""

from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final, cast
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

import httpx2

from nexus.core.errors import ConfigError, ModelUnavailableError

_SENT: Final = frozenset({"host", "accept", "connection", "content-type", "content-length", "transfer-encoding"})


@dataclass(frozen=True, slots=True)
class Address:
    """Where an endpoint is and how to log in there.

    Attributes:
        url: without user, password and query.
        query: options that every request carries.
        authorization: the header field; `""` for none.
    """

    url: str
    query: dict[str, str] = field(repr=False)
    authorization: str = field(repr=False)


def read_address(base_url: str, api_key: str) -> Address:
    """The parts of an address. A key comes before user and password, since there is one header field for both.

    Raises:
        ConfigError: the address or the key cannot be used. The text repeats neither.
    """
    key = api_key.strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError("llm.api_key: has characters that no header field of HTTP can hold")
    try:
        parts = urlsplit(base_url)
        login, _, host = parts.netloc.rpartition("@")
        url = urlunsplit((parts.scheme, host, parts.path, "", ""))
        if not parts.hostname or not httpx2.URL(url).host or parts.port == 0:
            raise ValueError  # noqa: TRY301  # said below, as for those that the parsers refuse
    except (ValueError, httpx2.InvalidURL):
        raise ConfigError("llm.base_url: names no host and port; http://host:port/v1 is allowed") from None
    user, _, password = login.partition(":")
    basic = b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode() if login else ""
    authorization = f"Bearer {key}" if key else f"Basic {basic}" if basic else ""
    return Address(url, dict(parse_qsl(parts.query, keep_blank_values=True)), authorization)


def open_http(address: Address, *, at_once: int, max_bytes: int) -> httpx2.AsyncClient:
    """A client for `at_once` calls, which reads `max_bytes` of an answer and fails on one that is longer.

    It sets no time limits: each call has one as a whole. Proxies and certificates are those of the environment
    (HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE), as for every HTTP client.
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

    return httpx2.AsyncClient(
        event_hooks={"request": [sent], "response": [received]},
        limits=httpx2.Limits(max_connections=at_once, max_keepalive_connections=at_once),
        timeout=None,
        follow_redirects=False,
    )


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
