"""Faults for which providers refuse a request, by their documents, sharing no code with the formats.

Each function lists what is wrong with a `Converted`; an empty list means that the provider would take it. The types
say what fields there are; what they do not say, and the servers answer with status 400, is written down here. Where
each rule comes from is in docs/decisions/0013-one-list-three-formats.md, of tools and images beside the formats' own.
"""

import base64
import binascii
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
_MOST_CALLS: Final = 128
_IMAGES: Final = {"image/png", "image/jpeg", "image/gif", "image/webp"}
_GEMINI_IMAGES: Final = _IMAGES - {"image/gif"} | {"image/heic", "image/heif"}


def openai_faults(converted: Converted, *, typed: bool = True) -> list[str]:
    """Faults for which OpenAI would refuse it; without its types, which are slow to check, if not `typed`."""
    functions = [tool["function"] for tool in converted.tools]
    rules = [*_openai_rules(converted), *_tool_rules(functions, _NAME, most=128), *_openai_functions(functions)]
    return rules + (_types().openai_type_faults(converted) if typed else [])


def anthropic_faults(converted: Converted, *, typed: bool = True) -> list[str]:
    """Faults for which Anthropic would refuse it; without its types, which are slow to check, if not `typed`."""
    rules = [
        *_anthropic_order(converted.messages),
        *_anthropic_results(converted.messages),
        *_anthropic_blocks(converted.messages),
        *_anthropic_frame(converted),
        *_tool_rules(converted.tools, _NAME),
        *_anthropic_tools(converted.tools),
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
        *_tool_rules(declared, _GEMINI_NAME, most=512),
        *_gemini_schemas(declared),
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
        yield from _openai_content(message, path)
        if calls is not None:
            waiting = [call["id"] for call in calls]
            yield from _openai_calls(calls, seen, path)
    if waiting:
        yield f"messages: end before {len(waiting)} results"


def _openai_calls(calls: Sequence[dict[str, Any]], seen: set[str], path: str) -> Iterator[str]:
    if not 1 <= len(calls) <= _MOST_CALLS:
        yield f"{path}.tool_calls: there are {len(calls)}"
    for call in calls:
        if call["id"] in seen or not _OPENAI_ID.fullmatch(call["id"]):
            yield f"{path}.tool_calls: an id is repeated or not allowed"
        seen.add(call["id"])
        if not _NAME.fullmatch(call["function"]["name"]):
            yield f"{path}.tool_calls: a name is not allowed"
        if not isinstance(json.loads(call["function"]["arguments"]), dict):
            yield f"{path}.tool_calls: arguments are no object"


def _openai_content(message: dict[str, Any], path: str) -> Iterator[str]:
    role, content = message["role"], message["content"]
    if isinstance(content, list) and role == "user":
        yield from _openai_parts(content, path)
    elif _blank(content) and not (content is None and message.get("tool_calls") and role == "assistant"):
        yield f"{path}.content: is blank"


def _openai_parts(parts: Sequence[dict[str, Any]], path: str) -> Iterator[str]:
    if not parts:
        yield f"{path}.content: is empty"
    for part in parts:
        if part["type"] == "text" and _blank(part["text"]):
            yield f"{path}.content: a text is blank"
        if part["type"] == "image_url":
            url = part["image_url"]["url"]
            found = re.fullmatch(r"data:([a-z/]+);base64,(.*)", url)
            if found:
                yield from _image_faults(found[1], found[2], _IMAGES, 28_000_000, path)
            elif not re.match(r"https?://[^/\s]", url):
                yield f"{path}.content: no address of an image"


def _image_faults(kind: str, data: str, allowed: Iterable[str], most: int, path: str) -> Iterator[str]:
    """Faults of an image in base64, of which there may be `most` characters."""
    if kind not in allowed:
        yield f"{path}: {kind} is no type of image that is taken"
    try:
        if not base64.b64decode(data, validate=True) or len(data) > most:
            yield f"{path}: the image is empty or too large"
    except binascii.Error:
        yield f"{path}: the image is not in base64"


def _openai_functions(functions: Sequence[dict[str, Any]]) -> Iterator[str]:
    for function in functions:
        name, schema = function["name"], function.get("parameters")
        if len(function.get("description", "")) > 1024:
            yield f"tools: the description of {name} is too long"
        if schema is None:
            continue
        if schema.get("type") != "object" or not isinstance(schema.get("properties"), dict):
            yield f"tools: the schema of {name} is not of an object with properties"
        if schema.keys() & {"oneOf", "allOf", "anyOf", "enum", "not"}:
            yield f"tools: the schema of {name} combines others at its top"
        yield from _array_faults(schema, name)
        for node in _nodes(schema) if function.get("strict") else ():
            if "object" in str(node.get("type")) and node.get("additionalProperties") is not False:
                yield f"tools: {name} is strict, and an object in its schema is open"
            if not {"type", "$ref", "anyOf"} & {*node}:
                yield f"tools: {name} is strict, and something in its schema has no type"


def _anthropic_tools(tools: Sequence[dict[str, Any]]) -> Iterator[str]:
    for tool in tools:
        for key in tool["input_schema"].get("properties", {}):
            if not re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", key):
                yield f"tools: {tool['name']} has a parameter {key!r}"


def _gemini_schemas(functions: Sequence[dict[str, Any]]) -> Iterator[str]:
    for function in functions:
        schema = function.get("parameters_json_schema", {})
        yield from _array_faults(schema, function["name"])
        for node in _nodes(schema):
            if "$ref" in node and node.keys() - {"$ref", "description", "default"}:
                yield f"tools: {function['name']}: a reference has something beside it"
            if not {*node.get("required", ())} <= {*node.get("properties", ())}:
                yield f"tools: {function['name']}: required: property is not defined"
        try:
            for node in _nodes(schema):
                _expanded(schema, node)
        except RecursionError:
            yield f"tools: {function['name']}: a schema refers to itself"


def _expanded(root: Any, node: Any) -> None:
    """Go through `node` and whatever it refers to."""
    if isinstance(node, dict) and isinstance(node.get("$ref"), str):
        place = root
        for step in node["$ref"].removeprefix("#").split("/")[1:]:
            place = place[int(step)] if isinstance(place, list) else place[step]
        _expanded(root, place)
    for inner in _inner_schemas(node):
        _expanded(root, inner)


def _array_faults(schema: Any, name: str) -> Iterator[str]:
    for node in _nodes(schema):
        kind = node.get("type")
        if (kind == "array" or (isinstance(kind, list) and "array" in kind)) and not isinstance(
            node.get("items"), dict
        ):
            yield f"tools: {name}: array schema missing items"


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """All schemas in a schema."""
    if isinstance(schema, dict):
        yield schema
        for inner in _inner_schemas(schema):
            yield from _nodes(inner)


def _inner_schemas(schema: Any) -> Iterator[Any]:
    if not isinstance(schema, dict):
        return
    for word in ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"):
        if isinstance(schema.get(word), dict):
            yield from schema[word].values()
    for word in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if isinstance(schema.get(word), list):
            yield from schema[word]
    for word in ("items", "unevaluatedItems", "additionalProperties", "unevaluatedProperties", "not"):
        yield schema.get(word)
    for word in ("if", "then", "else", "contains", "propertyNames"):
        yield schema.get(word)


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
    allowed = {"user": ("text", "tool_result", "image"), "assistant": ("text", "tool_use")}
    for index, message in enumerate(messages):
        for number, block in enumerate(message["content"]):
            path = f"messages[{index}].content[{number}]"
            if block["type"] not in allowed[message["role"]]:
                yield f"{path}: a {block['type']} of the {message['role']}"
            if block["type"] == "text" and _blank(block["text"]):
                yield f"{path}.text: is blank"
            if block["type"] == "image":
                yield from _anthropic_image(block["source"], path)
            if block["type"] == "tool_result" and _blank(block["content"]):
                yield f"{path}.content: is blank"
            if block["type"] == "tool_use" and not (_ID.fullmatch(block["id"]) and _NAME.fullmatch(block["name"])):
                yield f"{path}: the id or the name is not allowed"
            if block["type"] == "tool_use" and not isinstance(block["input"], dict):
                yield f"{path}.input: is no object"


def _anthropic_image(source: dict[str, Any], path: str) -> Iterator[str]:
    if source["type"] == "base64":
        yield from _image_faults(source["media_type"], source["data"], _IMAGES, 5_242_880, path)
    elif not re.match(r"https://[^/\s]", source["url"]):
        yield f"{path}: no https address"


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
    allowed = {"user": {"text", "function_response", "inline_data", "file_data"}, "model": {"text", "function_call"}}
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
            if inline := part.get("inline_data"):
                yield from _image_faults(inline["mime_type"], inline["data"], _GEMINI_IMAGES, 9_786_708, path)
            if (file := part.get("file_data")) and not (
                file["mime_type"] in _GEMINI_IMAGES and re.match(r"(https|gs)://[^/\s]", file["file_uri"])
            ):
                yield f"{path}: the type or the address of a file is not taken"


def _gemini_frame(converted: Converted) -> Iterator[str]:
    if converted.system is not None:
        parts = converted.system["parts"]
        if not parts or any(_blank(part["text"]) for part in parts):
            yield "system_instruction: is blank"
    if any(not tool["function_declarations"] for tool in converted.tools):
        yield "tools: declare nothing"


def _tool_rules(functions: Sequence[dict[str, Any]], name: re.Pattern[str], most: int | None = None) -> Iterator[str]:
    if most is not None and len(functions) > most:
        yield f"tools: there are {len(functions)}"
    seen: set[str] = set()
    for function in functions:
        if function["name"] in seen or not name.fullmatch(function["name"]):
            yield f"tools: the name {function['name']} is repeated or not allowed"
        seen.add(function["name"])
