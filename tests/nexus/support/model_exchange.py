"""A call that a model server was asked, and its answer on the wire."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import h11
from anyio.abc import SocketStream


@dataclass(frozen=True)
class Asked:
    """A request.

    Attributes:
        headers: by their names in lower case.
        body: what its JSON says.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any

    @property
    def system(self) -> str:
        """The system message."""
        return str(self.body["messages"][0]["content"])

    @property
    def user(self) -> str:
        """The user's message."""
        return str(self.body["messages"][1]["content"])

    @cached_property
    def document(self) -> dict[str, Any]:
        """The JSON object in the user's message; an empty one where there is none."""
        try:
            value = json.loads(self.user)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def form(self) -> str:
        """The form of the answer that is wanted: `json_schema`, `json_object` or `text`."""
        return str(self.body.get("response_format", {}).get("type", "text"))


class Exchange:
    """A request and the way back."""

    def __init__(self, asked: Asked, http: h11.Connection, stream: SocketStream) -> None:
        self.asked = asked
        self._http = http
        self._stream = stream

    async def say(self, text: str | None, finish: str = "stop") -> None:
        """Answer with a chat completion."""
        message = {"role": "assistant", "content": text, "refusal": None}
        await self.answer(
            200,
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1_700_000_000,
                "model": self.asked.body.get("model"),
                "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            },
        )

    async def answer(self, status: int, body: Any, fields: Mapping[str, str] | None = None) -> None:
        """Answer with these bytes, or with JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self.begin(len(content), status, fields)
        await self.send(content)
        await self._stream.send(self._http.send(h11.EndOfMessage()) or b"")

    async def begin(self, length: int | None, status: int = 200, fields: Mapping[str, str] | None = None) -> None:
        """Send the head of an answer; without a length it is sent in chunks."""
        framing = {"Transfer-Encoding": "chunked"} if length is None else {"Content-Length": str(length)}
        named = {"Content-Type": "application/json", **framing, **(fields or {})}
        await self._stream.send(self._http.send(h11.Response(status_code=status, headers=[*named.items()])) or b"")

    async def send(self, data: bytes) -> None:
        """Send a piece of the body."""
        await self._stream.send(self._http.send(h11.Data(data=data)) or b"")

    async def close(self) -> None:
        """End the connection."""
        await self._stream.aclose()
