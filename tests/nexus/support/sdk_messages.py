"""What was said, as the message types of the providers' SDKs and of LangChain write it.

Each function makes the JSON of one or more messages from the SDK's own types, so that no form comes in here that they
do not have. `Said` is what was said, whoever writes it.
"""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import anthropic.types as anthropic
from google.genai import types as gemini
from langchain_core import messages as langchain
from openai.types import chat, responses
from openai.types.chat.chat_completion import Choice
from openai.types.chat.chat_completion_message import FunctionCall
from openai.types.chat.chat_completion_message_custom_tool_call import Custom
from openai.types.chat.chat_completion_message_function_tool_call import Function
from openai.types.responses.response_function_web_search import ActionSearch
from openai.types.responses.response_reasoning_item import Summary

PNG: Final = b"\x89PNG\r\n\x1a\n" + bytes(72)
_DATA: Final = base64.b64encode(PNG).decode()
DATA_URL: Final = f"data:image/png;base64,{_DATA}"
# What stands for it.
IMAGE: Final = "[image: image/png, 1 KB]"


@dataclass(frozen=True)
class Call:
    """A call; without an id it can only be answered by its name."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Result:
    """The result of a call."""

    call: Call
    text: str
    failed: bool = False
    image: bool = False


@dataclass(frozen=True)
class Said:
    """What a person, a model or tools said at once."""

    texts: Sequence[str] = ()
    image: bool = False
    thought: str = ""
    calls: Sequence[Call] = ()
    results: Sequence[Result] = field(default=())


Json = dict[str, Any]


def openai_user(said: Said) -> list[Json]:
    """Of chat completions; a text alone is no list."""
    parts: list[Json] = [{"type": "text", "text": text} for text in said.texts]
    if said.image:
        parts.append({"type": "image_url", "image_url": {"url": DATA_URL}})
    if len(parts) == 1 and not said.image:
        return [{"role": "user", "content": parts[0]["text"]}]
    return [{"role": "user", "content": parts}]


def _completion_message(said: Said, tool_calls: Sequence[Any], **more: Any) -> chat.ChatCompletionMessage:
    text = "\n".join(said.texts)
    return chat.ChatCompletionMessage(
        role="assistant", content=text or None, tool_calls=list(tool_calls) or None, **more
    )


def _function_calls(said: Said) -> list[Any]:
    return [
        chat.ChatCompletionMessageFunctionToolCall(
            id=call.id,
            type="function",
            function=Function(name=call.name, arguments=json.dumps(call.arguments, ensure_ascii=False)),
        )
        for call in said.calls
    ]


def openai_assistant(said: Said) -> list[Json]:
    """As `message.model_dump()` gives it, with all the fields that are None."""
    return [_completion_message(said, _function_calls(said)).model_dump(mode="json")]


def openai_assistant_short(said: Said) -> list[Json]:
    """As `message.to_dict()` gives it: only what is set."""
    return [_completion_message(said, _function_calls(said)).to_dict(mode="json")]


def openai_refusal(said: Said) -> list[Json]:
    """The text as a refusal."""
    message = chat.ChatCompletionMessage(role="assistant", content=None, refusal="\n".join(said.texts))
    return [message.to_dict(mode="json")]


def openai_custom(said: Said) -> list[Json]:
    """Calls of custom tools: their input is a text."""
    calls = [
        chat.ChatCompletionMessageCustomToolCall(
            id=call.id, type="custom", custom=Custom(name=call.name, input=f"input {json.dumps(call.arguments)}")
        )
        for call in said.calls
    ]
    return [_completion_message(said, calls).to_dict(mode="json")]


def openai_function_call(said: Said) -> list[Json]:
    """The deprecated single call, which has no id: one message for each."""
    made = [
        chat.ChatCompletionMessage(
            role="assistant",
            content=None,
            function_call=FunctionCall(name=call.name, arguments=json.dumps(call.arguments)),
        ).to_dict(mode="json")
        for call in said.calls
    ]
    return (openai_assistant_short(Said(said.texts)) if said.texts else []) + made


def openai_completion(said: Said) -> list[Json]:
    """A whole chat completion as a content."""
    completion = chat.ChatCompletion(
        id="chatcmpl-1",
        object="chat.completion",
        created=1,
        model="m",
        choices=[
            Choice(
                index=0,
                finish_reason="tool_calls" if said.calls else "stop",
                message=_completion_message(said, _function_calls(said)),
            )
        ],
    )
    return [{"role": "assistant", "content": completion.model_dump(mode="json")}]


def openai_tool(said: Said) -> list[Json]:
    """A message for each result."""
    return [
        {"role": "tool", "tool_call_id": result.call.id, "content": [{"type": "text", "text": result.text}]}
        if result.image
        else {"role": "tool", "tool_call_id": result.call.id, "content": result.text}
        for result in said.results
    ]


def openai_function(said: Said) -> list[Json]:
    """The deprecated form of a result, which names the function."""
    return [{"role": "function", "name": result.call.name, "content": result.text} for result in said.results]


def responses_user(said: Said) -> list[Json]:
    """An input item of OpenAI's Responses API."""
    parts: list[Json] = [{"type": "input_text", "text": text} for text in said.texts]
    if said.image:
        parts.append({"type": "input_image", "detail": "auto", "image_url": DATA_URL})
    return [{"type": "message", "role": "user", "content": parts}]


def _output_items(said: Said) -> list[Any]:
    thought = (
        [
            responses.ResponseReasoningItem(
                id="rs_1", type="reasoning", summary=[Summary(type="summary_text", text=said.thought)]
            )
        ]
        if said.thought
        else []
    )
    texts: list[Any] = [
        responses.ResponseOutputText(type="output_text", text=text, annotations=[]) for text in said.texts
    ]
    message = (
        [
            responses.ResponseOutputMessage(
                id="msg_9", type="message", role="assistant", status="completed", content=texts
            )
        ]
        if texts
        else []
    )
    calls = [
        responses.ResponseFunctionToolCall(
            type="function_call",
            id=f"fc_{index}",
            call_id=call.id,
            name=call.name,
            arguments=json.dumps(call.arguments),
        )
        for index, call in enumerate(said.calls)
    ]
    return [*thought, *message, *calls]


def responses_items(said: Said) -> list[Json]:
    """The output items, each a message by itself."""
    return [item.model_dump(mode="json") for item in _output_items(said)]


def responses_whole(said: Said) -> list[Json]:
    """A whole response as a content."""
    response = responses.Response(
        id="resp_1",
        created_at=1.0,
        model="m",
        object="response",
        output=_output_items(said),
        parallel_tool_calls=True,
        tool_choice="auto",
        tools=[],
    )
    return [{"role": "assistant", "content": response.model_dump(mode="json")}]


def responses_custom(said: Said) -> list[Json]:
    """Items of calls of custom tools."""
    made = [
        responses.ResponseCustomToolCall(
            type="custom_tool_call", call_id=call.id, name=call.name, input=f"input {json.dumps(call.arguments)}"
        ).model_dump(mode="json")
        for call in said.calls
    ]
    return responses_items(Said(said.texts)) + made


def responses_web_search(said: Said) -> list[Json]:
    """A response with an item of a tool of the provider's, which says what it looked for."""
    action = ActionSearch(type="search", query="\n".join(said.texts))
    item = responses.ResponseFunctionWebSearch(id="ws_1", type="web_search_call", status="completed", action=action)
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I looked."}]}
    return [{"role": "assistant", "content": [item.model_dump(mode="json"), message]}]


def anthropic_search_result(said: Said) -> list[Json]:
    """A message with a passage to quote from, before a question."""
    texts: list[Json] = [{"type": "text", "text": text} for text in said.texts]
    passage = {"type": "search_result", "source": "s", "title": "t", "content": texts}
    return [{"role": "user", "content": [passage, {"type": "text", "text": "Is it so?"}]}]


def responses_output(said: Said) -> list[Json]:
    """An item for each result."""
    return [
        {
            "type": "function_call_output",
            "call_id": result.call.id,
            "output": [{"type": "input_text", "text": result.text}, {"type": "input_image", "image_url": DATA_URL}]
            if result.image
            else result.text,
        }
        for result in said.results
    ]


def responses_custom_output(said: Said) -> list[Json]:
    """An item for each result of a custom tool."""
    return [
        {"type": "custom_tool_call_output", "call_id": result.call.id, "output": result.text} for result in said.results
    ]


def anthropic_user(said: Said) -> list[Json]:
    """Content blocks, results before texts; what comes of tools comes under the user's name."""
    blocks: list[Json] = []
    for result in said.results:
        inner: list[Json] = [{"type": "text", "text": result.text}]
        if result.image:
            inner.append({"type": "image", "source": _ANTHROPIC_SOURCE})
        failed = {"is_error": True} if result.failed else {}
        blocks.append({"type": "tool_result", "tool_use_id": result.call.id, "content": inner, **failed})
    blocks += [{"type": "text", "text": text} for text in said.texts]
    if said.image:
        blocks.append({"type": "image", "source": _ANTHROPIC_SOURCE})
    return [{"role": "user", "content": blocks}]


_ANTHROPIC_SOURCE: Final = {"type": "base64", "media_type": "image/png", "data": _DATA}


def _anthropic_message(said: Said) -> Json:
    thought = [anthropic.ThinkingBlock(type="thinking", thinking=said.thought, signature="s")] if said.thought else []
    texts = [anthropic.TextBlock(type="text", text=text) for text in said.texts]
    calls = [
        anthropic.ToolUseBlock(type="tool_use", id=call.id, name=call.name, input=dict(call.arguments))
        for call in said.calls
    ]
    message = anthropic.Message(
        id="msg_1",
        type="message",
        role="assistant",
        model="m",
        content=[*thought, *texts, *calls],
        stop_reason="end_turn",
        usage=anthropic.Usage(input_tokens=3, output_tokens=2),
    )
    dumped: Json = message.model_dump(mode="json")
    return dumped


def anthropic_assistant(said: Said) -> list[Json]:
    """The message as it is sent back: role and blocks."""
    return [{"role": "assistant", "content": _anthropic_message(said)["content"]}]


def anthropic_whole(said: Said) -> list[Json]:
    """A whole message as a content."""
    return [{"role": "assistant", "content": _anthropic_message(said)}]


def anthropic_server_tools(said: Said) -> list[Json]:
    """Calls and their results, which the provider ran, in one message."""
    blocks: list[Json] = [{"type": "text", "text": text} for text in said.texts]
    for result in said.results:
        use = anthropic.ServerToolUseBlock(
            type="server_tool_use", id=result.call.id, name="web_search", input=dict(result.call.arguments)
        )
        found = anthropic.WebSearchResultBlock(
            type="web_search_result", encrypted_content="e", title=result.text, url="https://example.org"
        )
        block = anthropic.WebSearchToolResultBlock(
            type="web_search_tool_result", tool_use_id=result.call.id, content=[found]
        )
        blocks += [use.model_dump(mode="json"), block.model_dump(mode="json")]
    return [{"role": "assistant", "content": blocks}]


def _gemini(role: str, parts: list[gemini.Part], *, by_alias: bool = True) -> Json:
    content = gemini.Content(role=role, parts=parts)
    dumped: Json = content.model_dump(mode="json", exclude_none=True, by_alias=by_alias)
    return dumped


def _gemini_parts(said: Said) -> list[gemini.Part]:
    parts = [gemini.Part(text=said.thought, thought=True)] if said.thought else []
    parts += [gemini.Part(text=text) for text in said.texts]
    if said.image:
        parts.append(gemini.Part(inline_data=gemini.Blob(data=PNG, mime_type="image/png")))
    parts += [
        gemini.Part(function_call=gemini.FunctionCall(id=call.id or None, name=call.name, args=dict(call.arguments)))
        for call in said.calls
    ]
    return parts + [
        gemini.Part(
            function_response=gemini.FunctionResponse(
                id=result.call.id or None,
                name=result.call.name,
                response={"error" if result.failed else "output": result.text},
            )
        )
        for result in said.results
    ]


def gemini_user(said: Said) -> list[Json]:
    """A content of the user; responses of functions come under this name, too."""
    return [_gemini("user", _gemini_parts(said))]


def gemini_user_python(said: Said) -> list[Json]:
    """The same as Python spells its fields."""
    return [_gemini("user", _gemini_parts(said), by_alias=False)]


def gemini_model(said: Said) -> list[Json]:
    """A content of the model."""
    return [_gemini("model", _gemini_parts(said))]


def gemini_whole(said: Said) -> list[Json]:
    """A whole response as a content."""
    response = gemini.GenerateContentResponse(
        candidates=[gemini.Candidate(content=gemini.Content(role="model", parts=_gemini_parts(said)))]
    )
    return [{"role": "model", "content": response.model_dump(mode="json", exclude_none=True, by_alias=True)}]


def langchain_human(said: Said) -> list[Json]:
    """A message of `messages_to_dict`."""
    (message,) = openai_user(said)
    return _langchain(langchain.HumanMessage(message["content"]))


def langchain_ai(said: Said) -> list[Json]:
    """With its calls beside the content."""
    calls: Any = [{"name": call.name, "args": dict(call.arguments), "id": call.id or None} for call in said.calls]
    return _langchain(langchain.AIMessage("\n".join(said.texts), tool_calls=calls))


def langchain_ai_blocks(said: Said) -> list[Json]:
    """With the calls in the content, as Anthropic's models answer, and beside it."""
    calls: Any = [{"name": call.name, "args": dict(call.arguments), "id": call.id or None} for call in said.calls]
    return _langchain(langchain.AIMessage(_anthropic_message(said)["content"], tool_calls=calls))


def langchain_tool(said: Said) -> list[Json]:
    """A message for each result."""
    return [
        message
        for result in said.results
        for message in _langchain(
            langchain.ToolMessage(
                [{"type": "text", "text": result.text}] if result.image else result.text,
                tool_call_id=result.call.id,
                name=result.call.name,
                status="error" if result.failed else "success",
            )
        )
    ]


def _langchain(message: langchain.BaseMessage) -> list[Json]:
    made: list[Json] = json.loads(json.dumps(langchain.messages_to_dict([message])))
    return made


Form = Callable[[Said], list[Json]]

USERS: Final[Sequence[Form]] = (
    *(openai_user, responses_user, anthropic_user, gemini_user, gemini_user_python, langchain_human),
)
ASSISTANTS: Final[Sequence[Form]] = (
    *(openai_assistant, openai_assistant_short, openai_completion, responses_items, responses_whole),
    *(anthropic_assistant, anthropic_whole, gemini_model, gemini_whole, langchain_ai, langchain_ai_blocks),
)
CUSTOM_CALLS: Final[Sequence[Form]] = (openai_custom, responses_custom)
RESULTS: Final[Sequence[Form]] = (
    *(openai_tool, responses_output, responses_custom_output, anthropic_user, gemini_user, gemini_user_python),
    *(langchain_tool,),
)
# Calls without an id, and results that only name their tool.
NAMELESS_CALLS: Final[Sequence[Form]] = (openai_function_call, gemini_model, gemini_whole)
NAMELESS_RESULTS: Final[Sequence[Form]] = (openai_function, gemini_user)
