"""One conversation as five SDKs have it, made with their own types, as a file that a person keeps of it."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from anthropic.types import Message, TextBlock, ThinkingBlock, ToolUseBlock, Usage
from google.genai.types import Blob, Candidate, Content, FunctionCall, FunctionResponse, GenerateContentResponse, Part
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage, messages_to_dict
from openai.types.chat import ChatCompletion, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice
from openai.types.chat.chat_completion_message_function_tool_call import (
    ChatCompletionMessageFunctionToolCall,
    Function,
)
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseReasoningItem,
)

PIXEL: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
GOAL: Final = "Which trains go to Paris? 文 😀"
THANKS: Final = "Thanks. And back?"
INSTRUCTIONS: Final = "Be brief."
SEARCH: Final[Mapping[str, Any]] = {"to": "Paris", "filter": {"class": [1, 2], "名": "é"}}
WEATHER: Final[Mapping[str, Any]] = {"city": "Paris"}
# What each message says: texts, calls with their arguments, results.
SAID: Final[tuple[Any, ...]] = (
    GOAL,
    "I look.",
    ("search", dict(SEARCH)),
    ("weather", dict(WEATHER)),
    "TGV 9:00\nTGV 11:00",
    "no such city",
    "The TGV at nine.",
    THANKS,
    "At seven.",
)


def openai_chat() -> Any:
    """A request of the Chat Completions API and, as its last message, a whole completion."""
    calls: Any = [
        ChatCompletionMessageFunctionToolCall(
            id=f"call_{name}", type="function", function=Function(name=name, arguments=json.dumps(arguments))
        )
        for name, arguments in (("search", SEARCH), ("weather", WEATHER))
    ]
    asked = ChatCompletionMessage(role="assistant", content="I look.", tool_calls=calls)
    answer = ChatCompletionMessage(role="assistant", content="The TGV at nine.")
    last = ChatCompletion(
        id="chatcmpl-1",
        choices=[
            Choice(finish_reason="stop", index=0, message=ChatCompletionMessage(role="assistant", content="At seven."))
        ],
        created=1_750_000_000,
        model="gpt",
        object="chat.completion",
    )
    return [
        {
            "model": "gpt",
            "messages": [
                {"role": "developer", "content": INSTRUCTIONS},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": GOAL},
                        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
                    ],
                },
                asked.model_dump(),
                {"role": "tool", "tool_call_id": "call_search", "content": "TGV 9:00\nTGV 11:00"},
                {"role": "tool", "tool_call_id": "call_weather", "content": "no such city"},
                answer.model_dump(exclude_none=True),
                {"role": "user", "content": THANKS},
            ],
        },
        last.model_dump(mode="json"),
    ]


def openai_responses() -> Any:
    """Input and output items of the Responses API."""

    def message(name: str, text: str) -> Any:
        content: Any = [ResponseOutputText(annotations=[], text=text, type="output_text")]
        return ResponseOutputMessage(
            id=name, content=content, role="assistant", status="completed", type="message"
        ).model_dump()

    def call(name: str, arguments: Mapping[str, Any]) -> Any:
        return ResponseFunctionToolCall(
            arguments=json.dumps(arguments), call_id=f"call_{name}", name=name, type="function_call", id=f"fc_{name}"
        ).model_dump()

    image = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "auto"}
    return {
        "instructions": INSTRUCTIONS,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": GOAL}, image]},
            ResponseReasoningItem(id="rs_1", summary=[], type="reasoning").model_dump(),
            message("msg_1", "I look."),
            call("search", SEARCH),
            call("weather", WEATHER),
            {"type": "function_call_output", "call_id": "call_search", "output": "TGV 9:00\nTGV 11:00"},
            {"type": "function_call_output", "call_id": "call_weather", "output": "no such city"},
            message("msg_2", "The TGV at nine."),
            {"type": "message", "role": "user", "content": THANKS},
        ],
        "output": [message("msg_3", "At seven.")],
    }


def anthropic_messages() -> Any:
    """A request of the Messages API that ends with a whole response."""
    blocks: Any = [
        ThinkingBlock(signature="c2ln", thinking="Trains, then weather.", type="thinking"),
        TextBlock(text="I look.", type="text"),
        ToolUseBlock(id="toolu_1", input=dict(SEARCH), name="search", type="tool_use"),
        ToolUseBlock(id="toolu_2", input=dict(WEATHER), name="weather", type="tool_use"),
    ]
    last: Any = [TextBlock(text="At seven.", type="text")]
    response = Message(
        id="msg_01",
        content=last,
        model="claude",
        role="assistant",
        stop_reason="end_turn",
        type="message",
        usage=Usage(input_tokens=1, output_tokens=1),
    )
    return {
        "system": [{"type": "text", "text": INSTRUCTIONS}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": GOAL},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
                ],
            },
            {"role": "assistant", "content": [block.model_dump(mode="json") for block in blocks]},
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_1",
                        "content": [{"type": "text", "text": "TGV 9:00"}, {"type": "text", "text": "TGV 11:00"}],
                    },
                    {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no such city", "is_error": True},
                ],
            },
            {"role": "assistant", "content": "The TGV at nine."},
            {"role": "user", "content": THANKS},
            response.model_dump(mode="json"),
        ],
    }


def gemini_contents() -> Any:
    """A request of generateContent, and the response to it."""

    def call(name: str, arguments: Mapping[str, Any]) -> Part:
        return Part(function_call=FunctionCall(name=name, args=dict(arguments)))

    def result(name: str, response: dict[str, Any]) -> Part:
        return Part(function_response=FunctionResponse(name=name, response=response))

    image = Part(inline_data=Blob(mime_type="image/png", data=PIXEL.encode()))
    contents = [
        Content(role="user", parts=[Part(text=GOAL), image]),
        Content(
            role="model",
            parts=[
                Part(text="Trains, then weather.", thought=True),
                Part(text="I look."),
                call("search", SEARCH),
                call("weather", WEATHER),
            ],
        ),
        Content(
            role="user",
            parts=[
                result("search", {"output": "TGV 9:00\nTGV 11:00"}),
                result("weather", {"error": "no such city"}),
            ],
        ),
        Content(role="model", parts=[Part(text="The TGV at nine.")]),
        Content(parts=[Part(text=THANKS)]),
    ]
    response = GenerateContentResponse(
        candidates=[Candidate(content=Content(role="model", parts=[Part(text="At seven.")]))]
    )
    return [
        {
            "system_instruction": {"parts": [{"text": INSTRUCTIONS}]},
            "contents": [content.model_dump(mode="json", by_alias=True, exclude_none=True) for content in contents],
        },
        response.model_dump(mode="json", by_alias=True, exclude_none=True),
    ]


def langchain_messages() -> Any:
    """What `messages_to_dict` makes of a history."""
    image = {"type": "image", "source_type": "base64", "mime_type": "image/png", "data": PIXEL}
    asked = AIMessage(
        "I look.",
        tool_calls=[
            {"name": "search", "args": dict(SEARCH), "id": "c1", "type": "tool_call"},
            {"name": "weather", "args": dict(WEATHER), "id": "c2", "type": "tool_call"},
        ],
    )
    return messages_to_dict(
        [
            SystemMessage(INSTRUCTIONS),
            HumanMessage([{"type": "text", "text": GOAL}, image], id="h1"),
            asked,
            ToolMessage("TGV 9:00\nTGV 11:00", tool_call_id="c1"),
            ToolMessage("no such city", tool_call_id="c2", status="error"),
            AIMessage("The TGV at nine."),
            HumanMessage(THANKS),
            AIMessage([{"type": "text", "text": "At seven."}]),
        ]
    )


SDKS: Final[Mapping[str, tuple[str, Callable[[], Any]]]] = {
    "chat": ("openai", openai_chat),
    "responses": ("openai", openai_responses),
    "anthropic": ("anthropic", anthropic_messages),
    "gemini": ("gemini", gemini_contents),
    "langchain": ("langchain", langchain_messages),
}
