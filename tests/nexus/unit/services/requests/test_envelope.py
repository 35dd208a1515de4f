"""What a payload of `tools.requests` asks, whom it can be answered to (contract §7), and the keys that are claimed."""

import hashlib
import json
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.core.errors import UnreadablePayloadError
from nexus.core.models import Message, Role, Topics, utc_now
from nexus.core.ports import Delivery
from nexus.core.signing import Signing
from nexus.core.wire import EnvelopeError, encode
from nexus.services.history.rows import tool_row
from nexus.services.history.transcript import transcript_of_run
from nexus.services.requests.envelope import (
    RequestSettings,
    ToolCallRequest,
    may_name_memory_tool,
    read_incoming,
    read_tool_call,
)

SIGNING: Final = Signing({"k1": b"the first secret"}, required=True)
ARGS: Final = {"query": "porto"}
# Ids and owners that try to look like the keys of others.
_OWNED: Final = hashlib.sha256(b"a").hexdigest()[:32]
NAMES: Final = st.sampled_from(["a", "b", ":", "a:", f"a:{_OWNED}", f"a-{_OWNED}", _OWNED, "tool:a", "é"]) | st.text(
    st.characters(codec="utf-8", exclude_characters="\0\ufffd"), min_size=1, max_size=3
)


def call(content: Any = None, message_id: str = "msg_1", **metadata: Any) -> Message:
    """A call of a tool."""
    given_content = {"name": "search_memory", "args": ARGS, "call_id": "call_1"} if content is None else content
    return Message(
        id=message_id, run_id="run_1", owner_key="ada", role=Role.AI, content=given_content, metadata=metadata
    )


def asked(
    payload: Message | bytes, *, max_bytes: int = 10_000, signing: Signing | None = None
) -> ToolCallRequest | None:
    """What it asks."""
    content = encode(payload, topic=Topics.TOOLS_REQUESTS, signing=signing) if isinstance(payload, Message) else payload
    settings = RequestSettings(max_payload_bytes=max_bytes, signing=signing)
    return read_tool_call(Delivery(Topics.TOOLS_REQUESTS, content), 0.0, settings)


def ask(payload: Message | bytes, **about: Any) -> ToolCallRequest:
    """What it asks, where it is ours."""
    found = asked(payload, **about)
    assert found is not None
    return found


def test_a_call() -> None:
    """Its parts are read, and nothing is wrong with it."""
    found = ask(call(session_id="s"))
    assert (found.name, found.args, found.call_id, found.session_id) == ("search_memory", ARGS, "call_1", "s")
    assert (found.ids.id, found.ids.run_id, found.ids.owner_key) == ("msg_1", "run_1", "ada")
    assert (found.fault, found.sub_agent) == (None, None)


@pytest.mark.parametrize("given", [ARGS, json.dumps(ARGS)])
@pytest.mark.parametrize("missing", [{}, {"args": None}])
def test_arguments(given: Any, missing: dict[str, None]) -> None:
    """They may be called as models' own calls have them; where both are there, `args` counts."""
    content = {"name": "search_memory", "arguments": given, "call_id": "call_1", **missing}
    assert ask(call(content)).args == given
    assert ask(call({**content, "args": {}})).args == {}


@pytest.mark.parametrize(
    "content", [None, "compact_history", [], {"name": "web_search", "args": {}}, {"name": 5}, {"name": ["x"]}, {}]
)
def test_none_of_ours(content: Any) -> None:
    """Messages for other tools are ignored."""
    assert asked(Message(run_id="run_1", owner_key="ada", role=Role.AI, content=content)) is None


FORMS: Final[dict[str, Any]] = {
    "of Chat Completions": {"id": "c", "type": "function", "function": {"name": "search_memory", "arguments": "{1"}},
    "flat": {"id": "c", "name": "search_memory", "arguments": "{1"},
    "of Responses": {"type": "function_call", "call_id": "c", "id": "fc", "name": "search_memory", "arguments": "{1"},
    "of Anthropic": {"type": "tool_use", "id": "c", "name": "search_memory", "input": "{1"},
    "of Gemini": {"functionCall": {"id": "c", "name": "search_memory", "args": "{1"}},
    "before there were tools": {"function_call": {"name": "search_memory", "arguments": "{1"}, "id": "c"},
    "custom": {"id": "c", "type": "custom", "custom": {"name": "search_memory", "input": "{1"}},
    "of LangChain": {"type": "tool_call", "id": "c", "name": "search_memory", "args": "{1"},
    "the only one": {"tool_calls": [{"id": "c", "function": {"name": "search_memory", "arguments": "{1"}}]},
    "of Vercel": {"type": "tool-call", "toolCallId": "c", "toolName": "search_memory", "args": "{1"},
    "as a result names it": {"tool_use_id": "c", "name": "search_memory", "args": "{1"},
    "of Bedrock": {"toolUse": {"toolUseId": "c", "name": "search_memory", "input": "{1"}},
    "of Pydantic AI": {
        "part_kind": "tool-call",
        "tool_name": "search_memory",
        "args": "{1",
        "tool_call_id": "c",
    },
    "of LlamaIndex": {
        "block_type": "tool_call",
        "tool_name": "search_memory",
        "tool_kwargs": "{1",
        "tool_call_id": "c",
    },
    "with its id beside it": {"functionCall": {"name": "search_memory", "args": "{1"}, "call_id": "c"},
    "with an id of the provider's": {
        "part_kind": "tool-call",
        "tool_name": "search_memory",
        "args": "{1",
        "tool_call_id": "c",
        "id": "fc_1",
    },
    "with the message it is from": {
        "name": "search_memory",
        "args": "{1",
        "call_id": "c",
        "message": {"role": "assistant", "tool_calls": [{"id": "d", "name": "update_working_memory", "args": "{}"}]},
        "tool_calls": [{"id": "c", "name": "search_memory", "args": "{1"}, {"id": "d", "name": "web_search"}],
    },
    "beside an invalid one": {
        "tool_calls": [{"id": "c", "name": "search_memory", "args": "{1"}],
        "invalid_tool_calls": [{"id": "d", "name": "search_memory", "args": "{", "type": "invalid_tool_call"}],
    },
    "wrapped in a list of calls": {
        "tool_calls": [{"functionCall": {"id": "c", "name": "search_memory", "args": "{1"}}]
    },
    "with a further name": {
        "type": "function",
        "toolCallId": "c",
        "function": {"name": "search_memory", "arguments": "{1"},
    },
    "with an action that is none of ours": {
        "type": "tool_use",
        "id": "c",
        "name": "search_memory",
        "input": "{1",
        "action": {"a": 1},
    },
    "in a list, with its id beside it": [{"functionCall": {"name": "search_memory", "args": "{1"}, "call_id": "c"}],
    "with an id around it": {"id": "x", "functionCall": {"id": "c", "name": "search_memory", "args": "{1"}},
    "in a message with a name": {
        "role": "assistant",
        "name": "planner",
        "tool_call_id": None,
        "tool_calls": [{"id": "c", "name": "search_memory", "args": "{1"}],
    },
    "with more beside it": {
        "toolCallId": "c",
        "toolName": "search_memory",
        "input": "{1",
        "custom": {"ui": 1},
        "function": {"description": "d"},
    },
    "in a list": [{"type": "tool_use", "id": "c", "name": "search_memory", "input": "{1"}],
    "in a list of OpenAI's": [
        {"id": "c", "type": "function", "function": {"name": "search_memory", "arguments": "{1"}}
    ],
    "in a message of Anthropic": {
        "id": "msg_1",
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "c", "name": "search_memory", "input": "{1"},
        ],
    },
    "in a message of Gemini": {
        "role": "model",
        "parts": [{"functionCall": {"id": "c", "name": "search_memory", "args": "{1"}}],
    },
    "in a message of LangChain": {
        "type": "ai",
        "data": {"id": "run-1", "tool_calls": [{"id": "c", "name": "search_memory", "args": "{1"}]},
    },
    "in a message of AG-UI": {"toolCalls": [{"id": "c", "function": {"name": "search_memory", "arguments": "{1"}}]},
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_calls(form: str) -> None:
    """As models make them; arguments stay as they are, for what is broken must not be carried out."""
    found = ask(call(FORMS[form]))
    assert (found.name, found.args, found.call_id, found.fault) == ("search_memory", "{1", "c", None)


def answering_all(content: Any) -> ToolCallRequest:
    """The call of whatever tool, where all calls are to be answered."""
    settings = RequestSettings(unknown_tools_after_ms=5)
    payload = encode(call(content)) if not isinstance(content, bytes) else content
    found = read_tool_call(Delivery(Topics.TOOLS_REQUESTS, payload), 0.0, settings)
    assert found is not None
    return found


def test_a_call_of_another_tool() -> None:
    """Is read where all calls are to be answered."""
    found = answering_all({"name": "web_search", "args": ARGS, "call_id": "c"})
    assert (found.name, found.call_id, found.fault) == ("web_search", "c", None)


RESULTS: Final[list[Any]] = [
    {"result": "t", "tool_name": "search_memory", "status": "success", "call_id": "c"},
    {"content": "t", "tool_name": "search_memory", "call_id": "c"},
    {"type": "tool-search_memory", "toolCallId": "c", "state": "output-available", "input": {}, "output": "ok"},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "ok"}]},
]


@pytest.mark.parametrize(
    "content",
    ["compact_history", [], {}, {"name": 5}, {"name": ""}, {"tool_calls": [ARGS, ARGS]}, {"function": 5}, *RESULTS],
    ids=str,
)
def test_what_is_no_call(content: Any) -> None:
    """Is a fault of one where all calls are to be answered."""
    found = answering_all(content)
    assert found.name == "unknown"
    assert found.fault == (
        'content: holds no call that is understood; {"name", "args", "call_id"} is, and what models send'
    )


def test_what_is_no_json() -> None:
    """Is answered where it says whose it is."""
    found = answering_all(b'{"id": "m", "run_id": "r", "owner_key": "ada", "role": "AI", "content": {')
    assert (found.name, found.ids.run_id) == ("unknown", "r")
    assert found.fault is not None
    assert found.fault.startswith("not JSON")


@pytest.mark.parametrize("payload", [b"", b"{", b"\xff\xfe", b'{"name": "web_search"', b"[1]"])
def test_unreadable_and_none_of_ours(payload: bytes) -> None:
    """It is no dead letter: others may be able to read it."""
    assert asked(payload) is None


def test_unreadable_and_ours() -> None:
    """What names one of our tools and nobody who asks is a fault."""
    with pytest.raises(UnreadablePayloadError):
        asked(b'{"content": {"name": "search_memory"')


def test_too_large() -> None:
    """Its sender can be answered, with the id of the call."""
    found = ask(call({"name": "update_working_memory", "args": {"content": "x" * 20_000}, "call_id": "call_7"}))
    assert (found.name, found.call_id, found.ids.run_id) == ("update_working_memory", "call_7", "run_1")
    assert found.fault is not None
    assert "at most 10000 are allowed" in found.fault


@pytest.mark.parametrize(
    ("given_id", "call_id", "fault"),
    [
        (7, "7", None),
        (None, "", None),
        (True, "", None),
        ({}, "", None),
        ("字", "字", None),
        ("x" * 300, "", "content.call_id: 300 characters, at most 256 are allowed"),
    ],
)
def test_ids_of_calls(given_id: Any, call_id: str, fault: str | None) -> None:
    """Some servers number their calls, and some models leave the id out; a long one is refused, not repeated."""
    found = ask(call({"name": "search_memory", "args": {}, "call_id": given_id}))
    assert (found.call_id, found.fault) == (call_id, fault)


def test_a_call_has_one_result() -> None:
    """The same message has the same key and the same result; another run's, owner's or message's has another."""
    same = [ask(call()), ask(call(session_id="s")), ask(call({"name": "compact_history"}))]
    assert len({found.key for found in same}) == 1
    others = [
        call(message_id="msg_2"),
        call().model_copy(update={"run_id": "run_2"}),
        call().model_copy(update={"owner_key": "bob"}),
    ]
    assert len({ask(each).result_id for each in [call(), *others]}) == 4


def test_an_unsigned_copy_of_a_call() -> None:
    """On a bus where others sign it is another call: it has another key, and its result another id."""
    signing = replace(SIGNING, required=False)
    signed = ask(call().model_copy(update={"timestamp": utc_now()}), signing=signing)
    unsigned = read_tool_call(Delivery(Topics.TOOLS_REQUESTS, encode(call())), 0.0, RequestSettings(signing=signing))
    assert unsigned is not None
    assert unsigned.key != signed.key == ask(call()).key


def key(request_id: str, owner: str, *, is_signed: bool, holds_run: bool = True) -> str:
    """The key of a request on a bus where some sign."""
    run = {"owner_key": owner if holds_run else f"{owner}x", "history": []}
    message = Message(id=request_id, run_id="run_1", owner_key=owner, role=Role.HUMAN, content=run)
    topic, signing = Topics.CONTEXT_BUILD_REQUEST, replace(SIGNING, required=False)
    payload = encode(message, topic=topic, signing=signing if is_signed else None)
    return read_incoming(Delivery(topic, payload), 0.0, RequestSettings(signing=signing)).key


@given(st.lists(st.tuples(NAMES, NAMES, st.booleans(), st.booleans()), max_size=6, unique=True))
def test_no_two_requests_have_one_key(requests: list[tuple[str, str, bool, bool]]) -> None:
    """Of another id, of another owner, unsigned, or refused: whatever the ids look like."""
    keys = {key(name, owner, is_signed=signed, holds_run=holds_run) for name, owner, signed, holds_run in requests}
    assert len(keys) == len(requests)


@given(NAMES, NAMES, st.booleans())
def test_a_request_keeps_its_key(name: str, owner: str, is_signed: bool) -> None:
    """Its resends, and its copies with another content, have the same, so that these are a conflict."""
    assert key(name, owner, is_signed=is_signed) == key(name, owner, is_signed=is_signed)


@pytest.mark.parametrize("done", [True, False])
def test_a_result(done: bool) -> None:
    """It is recorded, and shown in its run, as what answers the call."""
    result = ask(call()).result("text", done=done, retryable=True, session_id="s")
    row = tool_row(result)
    assert (row["run_id"], row["owner_key"], row["session_id"], row["content"]) == ("run_1", "ada", "s", "text")
    assert row["metadata"] == {
        "source": "tool_result",
        "tool_name": "search_memory",
        "status": "success" if done else "error",
        "execution_success": done,
        "call_id": "call_1",
        # A failure says more than a row does.
        **({} if done else {"raw": result.content}),
    }
    (said,) = transcript_of_run([result])
    assert (said.role, said.text, said.call_id, said.tool_name) == ("tool", "text", "call_1", "search_memory")
    assert result.content.get("error") == (None if done else {"message": "text", "retryable": True})
    assert result.metadata["request_id"] == "msg_1"


def test_a_name_that_is_spelled_with_escapes() -> None:
    """JSON has many spellings, and all of them are read."""
    plain = encode(call())
    spelled = plain.replace(b"search_memory", b"\\u0073earch_memory")
    assert spelled != plain
    assert may_name_memory_tool(spelled)
    assert ask(spelled).name == "search_memory"


@given(st.binary(max_size=200) | st.builds(lambda text: json.dumps({"content": text}).encode(), st.text()))
def test_whatever_is_sent(payload: bytes) -> None:
    """Nothing but the two errors leaves, whatever the bytes are; and what is ours passes the quick look."""
    try:
        found = asked(payload)
    except (EnvelopeError, UnreadablePayloadError):
        found = None
    assert found is None or may_name_memory_tool(payload)
