"""Faults for which providers refuse a request, by their documents, sharing no code with the formats.

Each function lists what is wrong with a `Converted`; an empty list means that the provider would take it. The types
say what fields there are; what they do not say, and the servers answer with status 400, is written down here. Where
each rule comes from is in docs/decisions/0013-one-list-three-formats.md.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from nexus.services.context.formats import Converted

_OPENAI_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
_ID: Final = re.compile(r"[A-Za-z0-9_-]+")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_GEMINI_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}")
_MOST_MARKS: Final = 4


def openai_faults(converted: Converted, *, typed: bool = True) -> list[str]:
    """Faults for which OpenAI would refuse it; without its types, which are slow to check, if not `typed`."""
    rules = [*_openai_rules(converted), *_tool_rules([tool["function"] for tool in converted.tools], _NAME)]
    return rules + (_types().openai_type_faults(converted) if typed else [])


def anthropic_faults(converted: Converted, *, typed: bool = True) -> list[str]:
    """Faults for which Anthropic would refuse it; without its types, which are slow to check, if not `typed`."""
    rules = [
        *_anthropic_order(converted.messages),
        *_anthropic_results(converted.messages),
        *_anthropic_blocks(converted.messages),
        *_anthropic_frame(converted),
        *_tool_rules(converted.tools, _NAME),
    ]
    return rules + (_types().anthropic_type_faults(converted) if typed else [])


def gemini_faults(converted: Converted, *, typed: bool = True) -> list[str]:
    """Faults for which Gemini would refuse it; without its types, which are slow to check, if not `typed`."""
    declared = [function for tool in converted.tools for function in tool["function_declarations"]]
    rules = [
        *_gemini_order(converted.messages),
        *_gemini_responses(converted.messages),
        *_gemini_parts(converted.messages),
        *_gemini_frame(converted),
        *_tool_rules(declared, _GEMINI_NAME),
    ]
    return rules + (_types().gemini_type_faults(converted) if typed else [])


def _types() -> Any:
    from tests.nexus.support import provider_types  # noqa: PLC0415  # the SDKs take more than a second to import

    return provider_types


def _blank(text: Any) -> bool:
    return not isinstance(text, str) or not text.strip()


def _openai_rules(converted: Converted) -> Iterator[str]:
    if not converted.messages:
        yield "messages: there must be one"
    if converted.system is not None:
        yield "system: stands in the messages"
    seen: set[str] = set()
    waiting: list[str] = []
    for index, message in enumerate(converted.messages):
        path, role = f"messages[{index}]", message["role"]
        if role == "tool":
            if message["tool_call_id"] not in waiting:
                yield f"{path}: answers no call of the message before"
            waiting = [call for call in waiting if call != message["tool_call_id"]]
        elif waiting:
            yield f"{path}: comes before {len(waiting)} results"
            waiting = []
        calls = message.get("tool_calls")
        if _blank(message["content"]) and not (message["content"] is None and calls and role == "assistant"):
            yield f"{path}.content: is blank"
        if calls is not None:
            waiting = [call["id"] for call in calls]
            yield from _openai_calls(calls, seen, path)
    if waiting:
        yield f"messages: end before {len(waiting)} results"


def _openai_calls(calls: Sequence[dict[str, Any]], seen: set[str], path: str) -> Iterator[str]:
    if not calls:
        yield f"{path}.tool_calls: is empty"
    for call in calls:
        if call["id"] in seen or not _OPENAI_ID.fullmatch(call["id"]):
            yield f"{path}.tool_calls: an id is repeated or not allowed"
        seen.add(call["id"])
        if not _NAME.fullmatch(call["function"]["name"]):
            yield f"{path}.tool_calls: a name is not allowed"
        if not isinstance(json.loads(call["function"]["arguments"]), dict):
            yield f"{path}.tool_calls: arguments are no object"


def _anthropic_order(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    if not messages:
        yield "messages: there must be one"
    for index, message in enumerate(messages):
        if message["role"] != ("user", "assistant")[index % 2]:
            yield f"messages[{index}].role: the roles alternate, and a user begins"
        if not message["content"]:
            yield f"messages[{index}].content: is empty"


def _anthropic_results(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    seen: set[str] = set()
    asked: list[str] = []
    for index, message in enumerate(messages):
        kinds = [block["type"] for block in message["content"]]
        count = kinds.count("tool_result")
        if kinds[:count] != ["tool_result"] * count:
            yield f"messages[{index}]: results come first"
        answered = [block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"]
        if sorted(answered) != sorted(asked):
            yield f"messages[{index}]: {len(asked)} results are due, and there are {len(answered)}, or others"
        asked = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        if len(set(asked)) < len(asked) or seen & set(asked):
            yield f"messages[{index}]: an id is repeated"
        seen |= set(asked)
    if asked:
        yield f"messages: end before {len(asked)} results"


def _anthropic_blocks(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    allowed = {"user": ("text", "tool_result"), "assistant": ("text", "tool_use")}
    for index, message in enumerate(messages):
        for number, block in enumerate(message["content"]):
            path = f"messages[{index}].content[{number}]"
            if block["type"] not in allowed[message["role"]]:
                yield f"{path}: a {block['type']} of the {message['role']}"
            if block["type"] == "text" and _blank(block["text"]):
                yield f"{path}.text: is blank"
            if block["type"] == "tool_result" and _blank(block["content"]):
                yield f"{path}.content: is blank"
            if block["type"] == "tool_use" and not (_ID.fullmatch(block["id"]) and _NAME.fullmatch(block["name"])):
                yield f"{path}: the id or the name is not allowed"
            if block["type"] == "tool_use" and not isinstance(block["input"], dict):
                yield f"{path}.input: is no object"


def _anthropic_frame(converted: Converted) -> Iterator[str]:
    system, messages = converted.system, converted.messages
    if system is not None and (not system or any(_blank(block["text"]) for block in system)):
        yield "system: is blank"
    last = messages[-1]["content"][-1] if messages and messages[-1]["content"] else {}
    if messages and messages[-1]["role"] == "assistant" and last.get("text", "").endswith(tuple(" \t\r\n")):
        yield "messages: the last text of the assistant ends in white space"
    blocks = [*(system or []), *converted.tools, *(block for message in messages for block in message["content"])]
    marks = [block["cache_control"] for block in blocks if "cache_control" in block]
    if len(marks) > _MOST_MARKS or any(mark != {"type": "ephemeral"} for mark in marks):
        yield f"cache_control: {len(marks)} marks, or not ephemeral"
    for tool in converted.tools:
        schema = tool["input_schema"]
        if schema.get("type") != "object" or schema.keys() & {"oneOf", "allOf", "anyOf"}:
            yield f"tools: the schema of {tool['name']} is not of an object alone"


def _gemini_order(contents: Sequence[dict[str, Any]]) -> Iterator[str]:
    if not contents or contents[0]["role"] != "user":
        yield "contents: a user begins"
    before = ""
    for index, content in enumerate(contents):
        if content["role"] not in ("user", "model"):
            yield f"contents[{index}].role: is not known"
        # Said of calls: they come after a user or after responses.
        if content["role"] == before == "model":
            yield f"contents[{index}]: the model speaks twice in a row"
        if not content["parts"]:
            yield f"contents[{index}].parts: is empty"
        before = content["role"]


def _gemini_responses(contents: Sequence[dict[str, Any]]) -> Iterator[str]:
    due: list[tuple[str, str]] = []
    for index, content in enumerate(contents):
        responses = [part["function_response"] for part in content["parts"] if "function_response" in part]
        if responses and len(responses) < len(content["parts"]):
            yield f"contents[{index}]: something stands beside responses"
        if [(response["id"], response["name"]) for response in responses] != due:
            yield f"contents[{index}]: {len(due)} responses are due, and there are {len(responses)}, or others"
        due = [
            (part["function_call"]["id"], part["function_call"]["name"])
            for part in content["parts"]
            if "function_call" in part
        ]
        signed = [bool(part.get("thought_signature")) for part in content["parts"] if "function_call" in part]
        if signed and signed != [True] + [False] * (len(signed) - 1):
            yield f"contents[{index}]: the first call has a signature, and no other"
    if due:
        yield f"contents: end before {len(due)} responses"


def _gemini_parts(contents: Sequence[dict[str, Any]]) -> Iterator[str]:
    allowed = {"user": {"text", "function_response"}, "model": {"text", "function_call"}}
    for index, content in enumerate(contents):
        for number, part in enumerate(content["parts"]):
            path = f"contents[{index}].parts[{number}]"
            kinds = part.keys() - {"thought_signature"}
            if len(kinds) != 1 or not kinds <= allowed.get(content["role"], set()):
                yield f"{path}: {sorted(kinds)} of the {content['role']}"
            if "text" in part and _blank(part["text"]):
                yield f"{path}.text: is blank"
            call = part.get("function_call")
            if call and not (_GEMINI_NAME.fullmatch(call["name"]) and isinstance(call["args"], dict) and call["id"]):
                yield f"{path}: the name or the arguments of the call are not allowed"
            response = part.get("function_response")
            if response and not (isinstance(response["response"], dict) and response["response"]):
                yield f"{path}: the response is no object"


def _gemini_frame(converted: Converted) -> Iterator[str]:
    if converted.system is not None:
        parts = converted.system["parts"]
        if not parts or any(_blank(part["text"]) for part in parts):
            yield "system_instruction: is blank"
    if any(not tool["function_declarations"] for tool in converted.tools):
        yield "tools: declare nothing"


def _tool_rules(functions: Iterable[dict[str, Any]], name: re.Pattern[str]) -> Iterator[str]:
    seen: set[str] = set()
    for function in functions:
        if function["name"] in seen or not name.fullmatch(function["name"]):
            yield f"tools: the name {function['name']} is repeated or not allowed"
        seen.add(function["name"])
