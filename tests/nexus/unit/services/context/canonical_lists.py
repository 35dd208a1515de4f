"""Valid message lists to convert, drawn at random, and what a list says in whatever format it stands."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from hypothesis import strategies as st

from nexus.services.context.formats import Converted
from nexus.services.tools.definitions import read_definition

# What was said: who or what, and the words.
Said = tuple[str, ...]

OPENING: Final[Said] = ("user", "(The conversation begins here.)")

_TEXTS: Final = st.sampled_from(
    [
        "hi",
        "two\nlines\n",
        " lead",
        "tail \t",
        "你好，世界",
        "😀👩‍👩‍👧",
        "א\u0301",
        "<b>&amp;\\\"'",
        '{"a": 1}',
        "x" * 300,
    ]
)
_NAMES: Final = st.sampled_from(["search", "_1st", "_-x", "___", "x" * 64, "a-b_C9"])
_ARGUMENTS: Final = st.dictionaries(
    st.sampled_from(["q", "", "ключ", "args", "cache_control"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXTS,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
        max_leaves=4,
    ),
    max_size=3,
)
_STEPS: Final = st.sampled_from(["system", "user", "user", "assistant", "calls", "calls with text"])


def system(text: str) -> dict[str, Any]:
    """A system message."""
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    """A user message."""
    return {"role": "user", "content": text}


def assistant(text: str | None, *calls: dict[str, Any]) -> dict[str, Any]:
    """An assistant message, with calls if there are any."""
    return {"role": "assistant", "content": text, **({"tool_calls": list(calls)} if calls else {})}


def call(call_id: str, name: str = "search", arguments: str = "{}") -> dict[str, Any]:
    """A call as it stands in an assistant message."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(call_id: str, text: str = "found", *, failed: bool = False) -> dict[str, Any]:
    """The result of a call."""
    return {"role": "tool", "tool_call_id": call_id, "content": text, **({"failed": True} if failed else {})}


def tool(name: str, parameters: Any = None, description: str = "It helps.") -> dict[str, Any]:
    """A tool's definition."""
    function = {"name": name, "description": description}
    return {"type": "function", "function": function if parameters is None else {**function, "parameters": parameters}}


# An agent in the middle of its work: parallel calls, and the pinned block after their results.
AGENT: Final = [
    system("You are a friend."),
    user("[TASK_CONTEXT]"),
    user("Look it up."),
    assistant("I look.", call("c1", "search", '{"q": "你好 😀"}'), call("c2", "2nd_search")),
    result("c1", "one"),
    result("c2", "two"),
    user("## Current TODO List\n\n- [ ] look (ID: 1)"),
    user("## Useful Information\n\n- none"),
    assistant("Here it is."),
    user("Thanks. And now?"),
    system("[CONTEXT_META]"),
]
TOOLS: Final = [tool("search", {"type": "object", "properties": {"q": {"type": "string"}}}), tool("2nd_search")]


@st.composite
def canonical_lists(draw: st.DrawFn, max_steps: int = 12) -> list[dict[str, Any]]:
    """A list as the validity gate leaves it, of one message at least."""
    messages: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, max_steps))):
        step = draw(_STEPS)
        if not step.startswith("calls"):
            messages.append({"role": step, "content": draw(_TEXTS)})
            continue
        ids = [f"call_{len(messages)}-{number}" for number in range(draw(st.integers(1, 3)))]
        calls = [call(call_id, draw(_NAMES), json.dumps(draw(_ARGUMENTS))) for call_id in ids]
        messages.append(assistant(draw(_TEXTS) if "text" in step else None, *calls))
        messages += [result(call_id, draw(_TEXTS), failed=draw(st.booleans())) for call_id in ids]
    return messages


def tool_lists() -> st.SearchStrategy[list[dict[str, Any]]]:
    """Definitions as the registry lists them: names are unique."""
    parameters = st.sampled_from(
        [
            None,
            {},
            {"type": "object"},
            {"properties": {"q": {"type": "string"}}, "required": ["q"]},
            {"type": "object", "properties": {"q": {}}, "anyOf": [{"required": ["q"]}, True]},
            {"oneOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"b": {}}, "required": ["b"]}]},
            {
                "allOf": [{"properties": {"a": {}}, "required": ["a"]}, {"required": None}],
                "additionalProperties": False,
            },
        ]
    )
    # As they are registered.
    one = st.builds(tool, _NAMES, parameters, st.sampled_from(["", " ", "It searches."])).map(
        lambda given: read_definition(given).checked
    )
    return st.lists(one, max_size=4, unique_by=lambda definition: str(definition["function"]["name"]))


def boundaries(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """How many of the first messages are a valid list of their own."""
    return [index for index in range(len(messages) + 1) if index == len(messages) or messages[index]["role"] != "tool"]


def said(messages: Sequence[Mapping[str, Any]]) -> list[Said]:
    """What a list in OpenAI's form says, in order; what the system says after others counts as the user's."""
    spoken: list[Said] = []
    leading = True
    for message in messages:
        leading = leading and message["role"] == "system"
        if message["role"] == "tool":
            spoken.append(("result", message["tool_call_id"], message["content"]))
            continue
        if message["content"] is not None:
            role = "user" if message["role"] == "system" and not leading else message["role"]
            spoken.append((role, message["content"]))
        for made in message.get("tool_calls", ()):
            function = made["function"]
            spoken.append(("call", made["id"], function["name"], _spelled(json.loads(function["arguments"]))))
    return spoken


def said_in_anthropic(converted: Converted) -> Iterator[Said]:
    """The same, of what is in Anthropic's form."""
    for block in converted.system or ():
        yield "system", block["text"]
    for message in converted.messages:
        for block in message["content"]:
            match block["type"]:
                case "text":
                    yield message["role"], block["text"]
                case "tool_use":
                    yield "call", block["id"], block["name"], _spelled(block["input"])
                case _:
                    yield "result", block["tool_use_id"], block["content"]


def said_in_gemini(converted: Converted) -> Iterator[Said]:
    """The same, of what is in Gemini's form."""
    for part in (converted.system or {"parts": []})["parts"]:
        yield "system", part["text"]
    for content in converted.messages:
        for part in content["parts"]:
            if "text" in part:
                yield {"user": "user", "model": "assistant"}[content["role"]], part["text"]
            elif "function_call" in part:
                made = part["function_call"]
                yield "call", made["id"], made["name"], _spelled(made["args"])
            else:
                answer = part["function_response"]
                (text,) = answer["response"].values()
                yield "result", answer["id"], text


def _spelled(arguments: Any) -> str:
    return json.dumps(arguments)
