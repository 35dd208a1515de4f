"""The schemas under docs/schemas say what the service takes, and every example in the docs keeps to them."""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import pytest
import yaml
from jsonschema_rs import meta

from nexus.core.errors import RequestError
from nexus.core.models import Message, Role
from nexus.core.wire import decode
from nexus.services.context.request import deadline_ms, read_request, reply_suffix
from nexus.services.history.rows import llm_row
from nexus.services.session_state.merge import read_change
from nexus.services.tools.definitions import read_definitions
from tests.nexus.support.schemas import SCHEMAS, faults
from tests.nexus.unit.test_docs import PAGES, ROOT

SHELL: Final = "/bin/sh"
FENCED: Final = re.compile(r"^ *```(.*?)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
# Instead of asking Redis it tells its arguments, each with a NUL behind it, and a line end behind all.
REDIS_CLI: Final = "redis_cli() { printf '%s\\0' \"$@\"; printf '\\n'; }\n"
TOPICS: Final = {
    channel["address"]: next(iter(channel["messages"]))
    for channel in yaml.safe_load((SCHEMAS.parent / "asyncapi.yaml").read_text("utf-8"))["channels"].values()
}


class Example(NamedTuple):
    """A value in JSON on a page, and the schema that it names or whose topic it is sent on."""

    place: str
    schema: str
    value: Any


def examples() -> Iterator[Example]:
    """All of them on all pages."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in FENCED.finditer(text):
            language, _, schema = block[1].strip().partition(" ")
            place = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, block.start()) + 1}"
            if language == "json" or _is_json(block[2]):
                yield Example(place, schema, json.loads(block[2]))
            elif language in {"", "sh"} and "redis-cli" in block[2]:
                yield from (Example(place, *sent) for sent in _sent(block[2]))


def _sent(script: str) -> Iterator[tuple[str, Any]]:
    """What a script sends with redis-cli: of each message the schema of its topic, and the message."""
    with TemporaryDirectory() as folder:
        # Nothing else is found, and so nothing else is run.
        run = [SHELL, "-c", REDIS_CLI + script.replace("redis-cli", "redis_cli")]
        told = subprocess.run(
            run, cwd=folder, env={"PATH": folder}, capture_output=True, check=False, timeout=10
        ).stdout
    for call in told.decode().split("\0\n"):
        *words, last = call.split("\0")
        if topic := next((word for word in words if word in TOPICS), None):
            yield TOPICS[topic], json.loads(last)


def _is_json(text: str) -> bool:
    """Whether a block is an object, or a list of them."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return isinstance(value, dict) or (isinstance(value, list) and all(isinstance(item, dict) for item in value))


EXAMPLES: Final = list(examples())
(ANSWER,) = (example.value for example in EXAMPLES if example.schema == "answer")
# The complete one.
REQUEST: Final = next(each.value for each in EXAMPLES if each.schema == "build-request" and "status" in str(each.value))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.place)
def test_the_examples_of_the_docs(example: Example) -> None:
    """Each names its schema after `json`, as `answer` or `answer.content` for what stands there, and keeps to it."""
    assert (SCHEMAS / f"{example.schema.partition('.')[0]}.json").exists(), "name a schema: ```json build-request"
    assert faults(example.schema, example.value, example=True) == []


def test_there_are_examples_of_every_kind() -> None:
    """Requests with redis-cli on two pages, an answer, an error, each format, messages about state and tools."""
    found = [(example.place.partition(":")[0], example.schema) for example in EXAMPLES]
    assert {page for page, schema in found if schema == "build-request"} >= {
        "docs/contract.md",
        "docs/orchestrators.md",
    }
    assert len([schema for _, schema in found if schema.startswith("answer.content")]) >= 5
    assert {"session-state", "tool-definition", "tool-request", "tool-result"} <= {schema for _, schema in found}


@pytest.mark.parametrize("path", sorted(SCHEMAS.glob("*.json")), ids=lambda path: path.stem)
def test_they_are_schemas(path: Any) -> None:
    """By the dialect that they name."""
    meta.validate(json.loads(path.read_text(encoding="utf-8")))


def changed(value: Any, path: str, new: Any) -> Any:
    """A copy of JSON with another value at that place; without it for `...`."""
    copy = json.loads(json.dumps(value))
    *way, last = [int(name) if name.isdigit() else name for name in path.split("/")]
    there = copy
    for name in way:
        there = there[name]
    if new is ...:
        del there[last]
    else:
        there[last] = new
    return copy


@pytest.mark.parametrize(
    ("path", "new"),
    [
        ("id", ...),
        ("role", "AI"),
        ("metadata/request_sha256", "5f0c"),
        ("content/status", "fine"),
        ("content/messages", {}),
        ("content/messages/0/role", "model"),
        ("content/context", ...),
        ("content/context/blocks/0/tag", ...),
        ("content/context/blocks/0/bytes", -1),
        ("content/context/blocks/0/colour", "red"),
        ("content/context/more", 1),
        ("content/degraded", ["weather"]),
        ("content/format", "gemini"),
        ("content", {"status": "error", "error": {"code": "NEW", "message": "", "retryable": False}}),
    ],
)
def test_a_wrong_answer(path: str, new: Any) -> None:
    """A field that is missing, wrong or new is found, so that none is forgotten in the schema."""
    whole = changed(ANSWER, "metadata/request_sha256", "0" * 64)
    assert faults("answer", whole, ours=True) == []
    assert faults("answer", changed(whole, path, new), ours=True)


ROUND: Final = {"round_number": 1, "content": "Hm."}
# By place in a request what is right there and what is wrong; the layout is one that shows it.
PLACES: Final[Mapping[str, tuple[str, list[Any], list[Any]]]] = {
    "id": ("dialogue", ["m", "x" * 256, ...], ["", "x" * 257, 5]),
    "run_id": ("dialogue", ["run_2"], ["", ..., None]),
    "owner_key": ("dialogue", ["ada"], ["", ..., None]),
    "role": ("dialogue", [*Role], ["BOSS", ..., None]),
    "timestamp": ("dialogue", ["2026-11-21T22:37:45Z", ...], [None, {}]),
    "metadata": ("dialogue", [{}, None, ..., {"other": 1}], [[], "x"]),
    "metadata/reply_to": ("dialogue", ["me-1.x_Y", "x" * 64, None, ...], ["a b", "", "x" * 65, 5]),
    "metadata/deadline_ms": ("dialogue", [100, 60_000, 250.5, None, ...], [99, 60_001, "5", True]),
    "metadata/after": ("dialogue", [[], ["msg_1"], ["m"] * 100, None, ...], ["msg_1", [5], ["m"] * 101]),
    "content": ("dialogue", [], ["Good morning", None, ..., []]),
    "content/id": ("dialogue", ["run_2", ...], ["", 5]),
    "content/owner_key": ("dialogue", ["ada"], ["", ..., None]),
    "content/history": ("dialogue", [], [..., None, {}, ["Good morning"]]),
    "content/history/0/id": ("dialogue", ["m", None, ...], ["", 5]),
    "content/history/0/run_id": ("dialogue", ["run_2", None, ...], ["", 5]),
    "content/history/0/owner_key": ("dialogue", ["ada", None, ...], ["", 5]),
    "content/history/0/timestamp": ("dialogue", ["2026-11-21T22:37:45Z", None, ...], [{}]),
    "content/tools": ("dialogue", [[], [{}], ...], [{}, "x"]),
    "content/metadata": ("dialogue", [{}, None, ..., {"other": 1}], [[], "x"]),
    "content/metadata/layout": ("dialogue", ["dialogue", "agent", "thinking", None, ...], ["chat", 1]),
    "content/metadata/format": ("dialogue", ["openai", "anthropic", "gemini", None, ...], ["xml", 3, []]),
    "content/metadata/session_id": ("dialogue", ["s", "x" * 256, None], ["", "x" * 257, 5]),
    "content/metadata/user_profile": ("dialogue", [{}, {"public_key": "ada"}, None], [[], "x"]),
    "content/metadata/client_timestamp_utc": ("dialogue", ["2026-11-21T07:45:10.250Z", None], []),
    "content/metadata/client_timezone_offset": ("dialogue", [-480, "-480", None], []),
    "content/metadata/agent": (
        "agent",
        [{}, {"kind": "main"}, {"kind": "sub", "id": "x" * 256, "role": "r"}, {"kind": None, "role": None}, None],
        [{"kind": "boss"}, {"role": 3}, {"id": "x" * 257}, {"system_prompt": []}, {"task_prompt": 1}, "x"],
    ),
    "content/metadata/state": ("agent", [{}, None, {"todos": []}], [[], "x", {"todo": []}, {"role": " "}]),
    "content/metadata/task_context": ("agent", ["g", "x" * 32_000, "", None], ["x" * 32_001, 5]),
    "content/metadata/workspace_context": ("thinking", ["w", "", None], [5, []]),
    "content/metadata/thinking_rounds": (
        "thinking",
        [[], [ROUND], [{**ROUND, "tokens_used": 0}], [{**ROUND, "round_number": 2.0, "tokens_used": None}], None],
        [
            *({}, [{}], ["x"], [{"content": "x"}], [{"round_number": 1}], [{**ROUND, "tokens_used": -1}]),
            *([{**ROUND, "round_number": number}] for number in (0, 1.5, 10**9 + 1)),
            [{**ROUND, "round_number": number + 1} for number in range(101)],
        ],
    ),
    "content/metadata/summary_detail_level": ("agent", ["brief", "detailed", "comprehensive", None], ["short", 1]),
    "content/metadata/context_window": ("dialogue", [1_000, 10_000_000, 5_000.0, None], [999, 10_000_001, "5", True]),
}


def is_taken(request: Any) -> bool:
    """Whether the service takes a request."""
    try:
        message = decode(json.dumps(request).encode())
        reply_suffix(message)
        deadline_ms(message, 5_000)
        read_request(message)
    except RequestError:
        return False
    return True


@pytest.mark.parametrize("path", PLACES)
def test_requests(path: str) -> None:
    """What the schema allows is taken, and what it does not allow here is refused."""
    layout, right, wrong = PLACES[path]
    request = changed(REQUEST, "content/metadata/layout", layout)
    if path.startswith("content/metadata/"):
        request = changed(request, path, None)
    for value in right:
        sent = changed(request, path, value) if value is not ... else changed(changed(request, path, 1), path, ...)
        assert (faults("build-request", sent), is_taken(sent)) == ([], True), value
    for value in wrong:
        sent = changed(request, path, value)
        assert (bool(faults("build-request", sent)), is_taken(sent)) == (True, False), value


TODO: Final = {"id": "t1", "text": "Read"}
STATES: Final[list[dict[str, Any]]] = [
    {},
    {"role": "r", "sub_agent_roles": {"the scout": "s", "b": None}, "todos": [TODO], "useful_info": ["x"]},
    {"role": None, "sub_agent_roles": None, "todos": None, "useful_info": None, "folder_notes": None},
    {"todos": [{"id": 1, "content": "Read", "status": "in_progress"}, {"id": "a.b:c-d_e", "text": "x" * 2_000}]},
    {"todos": [{"id": "t1", "text": None, "content": "Read", "status": None, "colour": "red"}]},
    {"useful_info": [{"text": "x"}, {"id": None, "content": "y", "createdAt": "2025-12-10T08:00:00Z"}, "x" * 8_000]},
    {"folder_notes": ["x", {"text": "y"}, {"id": 1, "path": "src", "content": "z"}, {"folder": "a", "text": "z"}]},
]
WRONG_STATES: Final[list[Any]] = [
    None,
    [],
    {"todo": []},
    {"role": ""},
    {"role": " \n"},
    {"role": 5},
    {"role": "x" * 32_001},
    {"sub_agent_roles": ["scout"]},
    {"sub_agent_roles": {"": "x"}},
    {"sub_agent_roles": {"scout": 1}},
    {"sub_agent_roles": {f"agent {number}": "x" for number in range(51)}},
    {"todos": {"t1": "Read"}},
    {"todos": ["Read"]},
    {"todos": [{"text": "Read"}]},
    {"todos": [{"id": None, "text": "Read"}]},
    {"todos": [{**TODO, "text": " "}]},
    {"todos": [{**TODO, "text": "x" * 2_001}]},
    {"todos": [{**TODO, "status": "done"}]},
    {"todos": [{**TODO, "id": "a b"}]},
    {"todos": [{**TODO, "id": "x" * 129}]},
    {"todos": [{**TODO, "id": 1.5}]},
    {"todos": [{**TODO, "id": True}]},
    {"todos": [{**TODO, "id": number} for number in range(501)]},
    {"useful_info": [5]},
    {"useful_info": [""]},
    {"useful_info": [{"text": "x", "created_at": 5}]},
    {"folder_notes": [{"folder": "x" * 1_025, "text": "y"}]},
]
ONLY_WHOLE: Final[list[dict[str, Any]]] = [
    {"todos": [{"id": "t1"}]},
    {"useful_info": [{"id": 1, "created_at": "2025-12-10T08:00:00Z"}]},
    {"folder_notes": [{"id": 1, "folder": "a"}]},
]
CHANGES: Final[list[Any]] = [
    *({"op": "set", "state": state} for state in STATES),
    *({"op": "patch", "state": state} for state in [*STATES, *ONLY_WHOLE]),
    {"op": "patch", "remove": {"todos": ["t1", 2], "sub_agent_roles": ["the scout"]}},
    {"op": "patch", "state": None, "remove": {}},
    {"op": "clear"},
    {"op": "clear", "parts": None},
    {"op": "clear", "parts": ["todos", "role"]},
]
WRONG_CHANGES: Final[list[Any]] = [
    *({"op": "set", "state": state} for state in [*WRONG_STATES, *ONLY_WHOLE]),
    *({"op": "patch", "state": state} for state in WRONG_STATES),
    {"op": "patch", "state": {"useful_info": [{"created_at": "2025-12-10T08:00:00Z"}]}},
    None,
    "clear",
    {},
    {"op": "zap"},
    {"op": "set"},
    {"op": "set", "state": {}, "remove": {}},
    {"op": "patch"},
    {"op": "patch", "state": None, "remove": None},
    {"op": "patch", "remove": {"role": []}},
    {"op": "patch", "remove": {"todos": "t1"}},
    {"op": "patch", "remove": {"todos": ["a b"]}},
    {"op": "patch", "remove": {"sub_agent_roles": [""]}},
    {"op": "clear", "parts": []},
    {"op": "clear", "parts": ["todo"]},
    {"op": "clear", "state": {}},
]


def shown(value: Any) -> str:
    """A value as the name of a test."""
    return json.dumps(value)[:80]


def is_change(content: Any) -> bool:
    """Whether the service takes it for a change of a state."""
    try:
        read_change(content, datetime.now(UTC), "msg_1")
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("content", [*CHANGES, *WRONG_CHANGES], ids=shown)
def test_states(content: Any) -> None:
    """A change is taken when the schema allows it."""
    message = {"run_id": "run_1", "owner_key": "ada", "role": "COMMAND", "content": content}
    assert (faults("session-state", message) == []) == is_change(content) == (content in CHANGES)


FUNCTION: Final = {"name": "look"}
AT: Final = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
FLAT: Final = {"name": "look", "description": "Looks."}
TOOLS: Final[list[Any]] = [
    {"function": FUNCTION},
    {"type": "function", "function": {"name": "x" * 256, "description": "", "parameters": None}},
    {"function": {**FUNCTION, "parameters": AT, "strict": True}, "more": 1},
    {"type": "function", **FLAT, "parameters": AT},
    {**FLAT, "input_schema": AT},
    {**FLAT, "title": "Look", "inputSchema": AT},
    {"functionDeclarations": [{**FLAT, "parameters": {**AT, "type": "OBJECT"}}]},
    {"function_declarations": [{**FLAT, "parameters_json_schema": AT}]},
    {"tools": [{**FLAT, "inputSchema": AT}]},
    [{"function": FUNCTION}, {**FLAT, "input_schema": AT}],
]
WRONG_TOOLS: Final[list[Any]] = [
    None,
    {},
    {"function": {}},
    {"function": {"name": ""}},
    {"function": {"name": "x" * 257}},
    {"function": {**FUNCTION, "description": 5}},
    {"function": {**FUNCTION, "parameters": []}},
    {"function": {**FUNCTION, "parameters": {"properties": {"at": 5}}}},
    {"function": {**FUNCTION, "parameters": {"properties": ["at"]}}},
    {**FLAT, "input_schema": []},
    {"type": "web_search", **FLAT},
    {"tools": [5]},
    [{"function": FUNCTION}, {"function": {}}],
]


@pytest.mark.parametrize("content", [*TOOLS, *WRONG_TOOLS], ids=shown)
def test_tools(content: Any) -> None:
    """Definitions are taken, all of them, when the schema allows them."""
    _, refused = read_definitions(content)
    message = {"run_id": "run_1", "owner_key": "ada", "role": "COMMAND", "content": content}
    assert (faults("tool-register", message) == []) == (refused == []) == (content in TOOLS)


NESTED: Final = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CALL: Final = {"id": "c1", "name": "look", "arguments": {}}


@pytest.mark.parametrize(
    ("content", "text", "calls"),
    [
        ("Hello", "Hello", None),
        ({"content": "Hello"}, "Hello", None),
        ({"content": None, "tool_calls": [NESTED]}, "", [NESTED]),
        ({"tool_calls": [CALL], "usage": {"prompt_tokens": 3}}, "", [CALL]),
    ],
)
def test_answers_of_models(content: Any, text: str, calls: Any) -> None:
    """What the schema allows is recorded, with its text and its calls."""
    message = {"run_id": "run_1", "owner_key": "ada", "role": "AI", "content": content}
    assert faults("llm-result", message) == []
    row = llm_row(Message.model_validate(message))
    assert row
    assert (row["content"], row["metadata"]["tool_calls"]) == (text, calls)


@pytest.mark.parametrize("content", [5, {"content": 5}, {"tool_calls": {}}, {"tool_calls": [{"name": "look"}]}])
def test_wrong_answers_of_models(content: Any) -> None:
    """Other forms may be understood, and are not what to send."""
    assert faults("llm-result", {"run_id": "run_1", "owner_key": "ada", "role": "AI", "content": content})
