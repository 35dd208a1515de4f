"""Small endpoints that speak as OpenAI, Anthropic and Gemini do, for the documentation's examples.

Each holds a request to the types of the provider's SDK and refuses what they do not know. The model behind them calls
the tool `weather` where it is asked about an umbrella, and knows the weather only from what is in the context.
"""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from nexus.http.server import serving
from nexus.services.context.formats import Converted
from tests.nexus.support.provider_types import anthropic_type_faults, gemini_type_faults, openai_type_faults

HOST: Final = "127.0.0.1"
RESULT: Final = "Rain in Oslo from noon."
ANSWER: Final = f"Yes: {RESULT}"
REMEMBERED: Final = "From noon, as I said."
FORGOTTEN: Final = "I do not know."


@dataclass
class Endpoints:
    """Where they are, and why they refused requests."""

    port: int = 0
    faults: list[str] = field(default_factory=list)
    asked: int = 0

    @property
    def environment(self) -> dict[str, str]:
        """What the SDKs read from the environment."""
        url = f"http://{HOST}:{self.port}"
        return {
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": "none",
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "none",
            "GOOGLE_GEMINI_BASE_URL": url,
            "GEMINI_API_KEY": "none",
        }

    async def openai(self, request: Request) -> JSONResponse:
        """Chat Completions."""
        asked = await request.json()
        last = asked["messages"][-1]
        message: dict[str, Any] = {"role": "assistant", "content": _answer(asked, last["role"] == "tool")}
        if message["content"] is None:
            function = {"name": "weather", "arguments": json.dumps({"city": "Oslo"})}
            message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
        reason = "stop" if message["content"] else "tool_calls"
        content = {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "finish_reason": reason, "message": message}],
        }
        return self._checked(openai_type_faults, _converted(asked["messages"], asked), content)

    async def anthropic(self, request: Request) -> JSONResponse:
        """Messages."""
        asked = await request.json()
        last = asked["messages"][-1]["content"]
        answer = _answer(asked, isinstance(last, list) and last[0]["type"] == "tool_result")
        call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
        content = {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [{"type": "text", "text": answer} if answer else call],
            "stop_reason": "end_turn" if answer else "tool_use",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
        converted = _converted(asked["messages"], asked, asked["system"])
        return self._checked(anthropic_type_faults, converted, content)

    async def gemini(self, request: Request) -> JSONResponse:
        """GenerateContent."""
        asked = await request.json()
        last = asked["contents"][-1]["parts"][-1]
        answer = _answer(asked, "functionResponse" in last)
        part = {"text": answer} if answer else {"functionCall": {"name": "weather", "args": {"city": "Oslo"}}}
        content = {"candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}]}
        converted = _converted(asked["contents"], asked, asked["systemInstruction"])
        return self._checked(gemini_type_faults, converted, content)

    def _checked(self, check: Callable[[Converted], list[str]], converted: Converted, content: Any) -> JSONResponse:
        self.asked += 1
        faults = check(converted)
        self.faults += faults
        return JSONResponse({"error": {"message": "; ".join(faults)}}, 400) if faults else JSONResponse(content)


def _converted(messages: list[dict[str, Any]], asked: dict[str, Any], system: Any = None) -> Converted:
    return Converted(messages, asked["tools"], [], [], system)


def _answer(asked: Any, has_result: bool) -> str | None:
    """What the model says; None for a call of its tool."""
    text = json.dumps(asked)
    if has_result:
        return ANSWER if RESULT in text else FORGOTTEN
    if "<human_input>\\nWhen does it rain?" in text:
        return REMEMBERED if ANSWER in text else FORGOTTEN
    return None


@asynccontextmanager
async def provider_endpoints() -> AsyncIterator[Endpoints]:
    """The three endpoints on a free port."""
    endpoints = Endpoints()
    routes = [
        Route("/v1/chat/completions", endpoints.openai, methods=["POST"]),
        Route("/v1/messages", endpoints.anthropic, methods=["POST"]),
        Route("/{version}/models/{call}", endpoints.gemini, methods=["POST"]),
    ]
    async with serving(Starlette(routes=routes), HOST, 0) as endpoints.port:
        yield endpoints
