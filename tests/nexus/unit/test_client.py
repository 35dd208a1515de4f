"""The reference client: it asks until an answer comes that can be believed, and is heard when it says something."""

import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from typing import Any, Final

import anyio
import pytest

from nexus.adapters.in_memory import MemoryBus
from nexus.client import AnswerError, ContextClient, new_run
from nexus.core.concurrency import ungrouped
from nexus.core.errors import BusUnavailableError, ErrorCode, NobodyListeningError, RequestError
from nexus.core.models import ANSWER_TOPICS, Message, Role, Run, Topics
from nexus.core.signing import Signing
from nexus.core.wire import decode, encode
from nexus.services.history.progress import progress_id
from tests.nexus.support.waiting import PATIENCE_S, take, until

Responder = Callable[[MemoryBus, Message, int], Awaitable[None]]
REQUIRED: Final = Signing({"k1": b"the first secret"}, required=True)
LENIENT: Final = Signing({"k1": b"the first secret"})
UNKNOWN_CODES: Final[tuple[Any, ...]] = ("NEW_CODE", None, 5, [], {})
STRANGER: Final = Signing({"k1": b"another secret, 16"})


def run(text: str = "hello") -> Run:
    """A run with this input."""
    fresh = Run(owner_key="ada")
    human = Message(run_id=fresh.id, owner_key="ada", role=Role.HUMAN, content=text)
    return fresh.model_copy(update={"history": [human]})


def success(*messages: Any) -> dict[str, Any]:
    """The content of a successful answer."""
    return {"status": "success", "messages": [*messages]}


def refusal(code: Any, **more: Any) -> dict[str, Any]:
    """The content of an error answer."""
    return {"status": "error", "error": {"code": code, "message": "no", **more}}


def answer(asked: Message, content: Any, **more: Any) -> Message:
    """The answer to a request, with `more` in its metadata."""
    metadata = {"request_id": asked.id, **more}
    return Message(run_id=asked.run_id, owner_key=asked.owner_key, role=Role.SYSTEM, content=content, metadata=metadata)


async def reply(bus: MemoryBus, asked: Message, content: Any, signing: Signing | None = None, **more: Any) -> None:
    """Answer a request with this content."""
    topic = f"{Topics.CONTEXT_BUILD_RESPONSE}.{asked.metadata['reply_to']}"
    await bus.publish(topic, encode(answer(asked, content, **more), topic=topic, signing=signing))


async def echo(bus: MemoryBus, asked: Message, _count: int) -> None:
    """Answer with the input as the only message."""
    await reply(bus, asked, success(asked.content["history"][0]["content"]))


def replies(*contents: Any) -> Responder:
    """Answer every request with these contents, in order; a pair is a content and what it is signed with."""

    async def respond(bus: MemoryBus, asked: Message, _count: int) -> None:
        for content in contents:
            await reply(bus, asked, *(content if isinstance(content, tuple) else (content,)))

    return respond


@asynccontextmanager
async def answered_by(respond: Responder, bus: MemoryBus | None = None) -> AsyncIterator[MemoryBus]:
    """A bus on which `respond` is called with every request, and how often its id was asked before."""
    bus = bus or MemoryBus()
    counts: dict[str, int] = {}
    async with bus.subscribe(Topics.CONTEXT_BUILD_REQUEST) as requests, anyio.create_task_group() as tasks:

        async def serve() -> None:
            async for delivery in requests:
                asked = decode(delivery.payload, topic=delivery.topic, signing=LENIENT)
                counts[asked.id] = counts.get(asked.id, -1) + 1
                await respond(bus, asked, counts[asked.id])

        tasks.start_soon(serve)
        yield bus
        tasks.cancel_scope.cancel()


async def first_message(
    respond: Responder, signing: Signing | None = None, seconds: float = PATIENCE_S, text: str = "hello"
) -> Any:
    """The first message of the answer that a client with these keys takes."""
    with ungrouped():
        async with (
            answered_by(respond) as bus,
            ContextClient(bus, signing=signing, resend_s=0.01).listening() as client,
        ):
            return (await client.build(run(text), timeout=seconds))["messages"][0]


async def test_a_request_and_the_content_of_its_answer() -> None:
    """The run as it is, asked for by a person's message; the content as Nexus gave it."""
    asked: list[Message] = []
    content = {**success({"role": "system", "content": "x"}), "layout": "dialogue"}

    async def respond(bus: MemoryBus, message: Message, _count: int) -> None:
        asked.append(message)
        await reply(bus, message, content)

    given = run()
    async with answered_by(respond) as bus, ContextClient(bus).listening() as client:
        assert await client.build(given, timeout=20) == content
    (message,) = asked
    assert (message.run_id, message.owner_key, message.role) == (given.id, "ada", Role.HUMAN)
    assert Run.model_validate(message.content) == given


async def test_the_same_bytes_until_it_is_answered() -> None:
    """A request that was lost is sent again, and is the same request."""
    sent: set[bytes] = set()

    async def respond(bus: MemoryBus, asked: Message, count: int) -> None:
        sent.add(encode(asked))
        if count == 3:
            await echo(bus, asked, count)

    assert await first_message(respond, text="again") == "again"
    assert len(sent) == 1


async def test_many_at_once() -> None:
    """Every build gets the first answer to its own request, also when more answers follow."""
    answers: dict[str, Any] = {}

    async def respond(bus: MemoryBus, asked: Message, count: int) -> None:
        await echo(bus, asked, count)
        await reply(bus, asked, success("second"))

    async with (
        answered_by(respond) as bus,
        ContextClient(bus).listening() as client,
        anyio.create_task_group() as tasks,
    ):

        async def ask(text: str) -> None:
            answers[text] = (await client.build(run(text), timeout=PATIENCE_S))["messages"]

        for number in range(100):
            tasks.start_soon(ask, f"text {number}")
    assert answers == {f"text {number}": [f"text {number}"] for number in range(100)}


async def test_no_answer() -> None:
    """A TimeoutError, and the client can be used again."""

    async def respond(bus: MemoryBus, asked: Message, count: int) -> None:
        if asked.content["history"][0]["content"] == "loud":
            await echo(bus, asked, count)

    async with answered_by(respond) as bus, ContextClient(bus, resend_s=0.01).listening() as client:
        with pytest.raises(
            TimeoutError, match=r"no answer within 0\.1 s to context\.build\.request at this bus: it was"
        ):
            await client.build(run("quiet"), timeout=0.1)
        assert (await client.build(run("loud"), timeout=PATIENCE_S))["messages"] == ["loud"]


@pytest.mark.parametrize(
    ("content", "code", "retry_after_ms"),
    [
        *((refusal(code), code, None) for code in ErrorCode),
        *((refusal(unknown), ErrorCode.INTERNAL, None) for unknown in UNKNOWN_CODES),
        *(
            ({**refusal("OVERLOADED", retry_after_ms=given), "more": [2]}, ErrorCode.OVERLOADED, wait)
            for given, wait in ((1_500, 1_500), (0, 0), (None, None), ("soon", None), (1.5, None))
        ),
    ],
    ids=str,
)
async def test_an_error_answer_is_raised(content: Any, code: ErrorCode, retry_after_ms: int | None) -> None:
    """With its message and all of its content; a code of a newer Nexus is INTERNAL; a wait is a number."""
    with pytest.raises(AnswerError) as caught:
        await first_message(replies(content))
    error = caught.value
    assert (error.code, error.message, error.retry_after_ms, error.content) == (code, "no", retry_after_ms, content)


@pytest.mark.parametrize(
    "content",
    [
        *(None, "text", 5, [], {}, {"status": "success"}, {"status": "success", "messages": "x"}, {"status": "error"}),
        *({"status": "error", "error": "text"}, {"status": "error", "error": [1]}, {"status": ["error"]}),
    ],
)
async def test_messages_that_are_no_answer(content: Any) -> None:
    """Noise on the topic, wrong ids and strange contents are ignored; the answer after them counts."""

    async def respond(bus: MemoryBus, asked: Message, count: int) -> None:
        topic = f"{Topics.CONTEXT_BUILD_RESPONSE}.{asked.metadata['reply_to']}"
        nameless = json.loads(encode(answer(asked, success("noise")))) | {"metadata": {"request_id": [asked.id]}}
        for noise in (b"", b"\xff{[", b'{"id":"x","run_id":"y"}', json.dumps(nameless).encode()):
            await bus.publish(topic, noise)
        await reply(bus, asked.model_copy(update={"id": "msg_stranger"}), success("noise"))
        await reply(bus, asked, content)
        await echo(bus, asked, count)

    assert await first_message(respond, text="this") == "this"


class AwayBus(MemoryBus):
    """A bus that cannot be reached for some publications, and takes each name once, as one that keeps messages does.

    Attributes:
        names: under which names requests were to be taken once only.
    """

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures
        self.names: list[str] = []

    async def publish(self, topic: str, payload: bytes, *, once: str = "") -> int:
        """Fail for as long as there are failures left, then publish what has no name, or a name for the first time."""
        if self.failures:
            self.failures -= 1
            raise BusUnavailableError("away")
        is_taken = once in self.names
        if topic == Topics.CONTEXT_BUILD_REQUEST:
            self.names.append(once)
        return 1 if is_taken else await super().publish(topic, payload, once=once)


async def test_a_request_is_sent_under_the_name_of_its_bytes() -> None:
    """Until it went through and is answered; a bus that keeps messages takes it once, however often it is sent.

    Under its id, the message of another owner with the same one would be taken in its place.
    """
    asked: list[Message] = []
    bus = AwayBus(3)

    async def respond(bus: MemoryBus, message: Message, count: int) -> None:
        asked.append(message)
        await until(sent_again)
        await echo(bus, message, count)

    async def sent_again() -> bool:
        return len(bus.names) >= 3

    async with answered_by(respond, bus), ContextClient(bus, resend_s=0.01).listening() as client:
        assert (await client.build(run("once"), timeout=PATIENCE_S))["messages"] == ["once"]
    (message,) = asked
    assert {*bus.names} == {hashlib.sha256(encode(message)).hexdigest()}


async def test_a_service_that_comes_late() -> None:
    """It is asked all the same; how often no subscriber was there is counted."""
    bus, contents = MemoryBus(), []
    async with ContextClient(bus, resend_s=0.01).listening() as client, anyio.create_task_group() as tasks:

        async def ask() -> None:
            contents.append((await client.build(run("late"), timeout=PATIENCE_S))["messages"])

        async def unheard() -> bool:
            return client.unheard >= 2

        async def answered() -> bool:
            return bool(contents)

        tasks.start_soon(ask)
        await until(unheard)
        async with answered_by(echo, bus):
            await until(answered)
    assert contents == [["late"]]


async def test_errors_of_the_user_come_out_as_they_are() -> None:
    """Not in a group, although there is a task group inside."""
    failure = KeyError("mine")
    with pytest.raises(KeyError) as caught:
        async with ContextClient(MemoryBus()).listening():
            raise failure
    assert caught.value is failure


@pytest.mark.parametrize(("seconds", "deadline_ms"), [(0.05, 100), (1.5, 1_500), (600, 60_000)])
async def test_a_request_carries_its_deadline(seconds: float, deadline_ms: int) -> None:
    """In milliseconds, within the bounds of Nexus."""
    bus = MemoryBus()

    async def build_in_vain(client: ContextClient) -> None:
        with suppress(TimeoutError):
            await client.build(run(), timeout=seconds)

    async with (
        bus.subscribe(Topics.CONTEXT_BUILD_REQUEST) as requests,
        ContextClient(bus).listening() as client,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(build_in_vain, client)
        (delivery,) = await take(requests, 1)
        tasks.cancel_scope.cancel()
    assert decode(delivery.payload).metadata["deadline_ms"] == deadline_ms


async def test_a_state_is_sent() -> None:
    """A message about the named session, each time another one, signed for its own topic and no other."""
    bus = MemoryBus()
    content = {"op": "set", "state": {"role": "r"}}
    async with bus.subscribe(Topics.SESSION_STATE) as states:
        client = ContextClient(bus, signing=REQUIRED)
        assert await client.send_state("ada", content, session_id="s") == 1
        assert await client.send_state("ada", content) == 1
        deliveries = await take(states, 2)
    first, second = [decode(one.payload, topic=Topics.SESSION_STATE, signing=REQUIRED) for one in deliveries]
    assert (first.owner_key, first.role, first.content) == ("ada", Role.COMMAND, content)
    assert [message.metadata["session_id"] for message in (first, second)] == ["s", "default"]
    assert first.id != second.id
    with pytest.raises(NobodyListeningError, match=r"session\.state"):
        await client.send_state("ada", content, timeout=0.05)
    with pytest.raises(RequestError, match="UNAUTHENTICATED"):
        decode(deliveries[0].payload, topic=Topics.LLM_RESULTS, signing=REQUIRED)


async def test_constraints_are_sent() -> None:
    """As of the named session and run, signed for their own topic."""
    bus = MemoryBus()
    content = {"op": "add", "constraints": ["Be brief.", {"text": "Answer in French.", "scope": "run"}]}
    other = {"op": "retire", "ids": ["session-5f2b6c0e9d8a7143"]}
    async with bus.subscribe(Topics.SESSION_CONSTRAINTS) as said:
        client = ContextClient(bus, signing=REQUIRED)
        assert await client.send_constraints("ada", content, session_id="s", run_id="run_1") == 1
        assert await client.send_constraints("ada", other) == 1
        deliveries = await take(said, 2)
    first, second = [decode(one.payload, topic=Topics.SESSION_CONSTRAINTS, signing=REQUIRED) for one in deliveries]
    assert (first.owner_key, first.run_id, first.role, first.content) == ("ada", "run_1", Role.COMMAND, content)
    assert [message.metadata["session_id"] for message in (first, second)] == ["s", "default"]
    assert second.run_id not in {"run_1", ""}
    with pytest.raises(NobodyListeningError, match=r"session\.constraints"):
        await client.send_constraints("ada", other, timeout=0.05)


@pytest.mark.parametrize(
    "content",
    [
        {"op": "add", "constraints": ["Be brief.", {"text": "Answer in French.", "scope": "run"}]},
        {"op": "retire", "ids": ["owner-5f2b6c0e9d8a7143", "run-5f2b6c0e9d8a7143"]},
    ],
)
async def test_constraints_of_a_run_need_its_id(content: dict[str, Any]) -> None:
    """They would hold for a run that nobody has."""
    with pytest.raises(ValueError, match="run_id: is needed for constraints of scope run"):
        await ContextClient(MemoryBus()).send_constraints("ada", content, timeout=0.05)


async def test_facts_are_sent() -> None:
    """As said in the named session, signed for their own topic."""
    bus = MemoryBus()
    content = {"op": "add", "facts": [{"topic": "home", "value": "Porto"}]}
    async with bus.subscribe(Topics.MEMORY_FACTS) as facts:
        assert await ContextClient(bus, signing=REQUIRED).send_facts("ada", content, session_id="s") == 1
        (delivery,) = await take(facts, 1)
    sent = decode(delivery.payload, topic=Topics.MEMORY_FACTS, signing=REQUIRED)
    assert (sent.owner_key, sent.role, sent.content) == ("ada", Role.COMMAND, content)
    assert sent.metadata["session_id"] == "s"


@pytest.mark.parametrize(
    ("signings", "mine", "taken"),
    [((None, STRANGER, REQUIRED), REQUIRED, 2), ((None, STRANGER, LENIENT), LENIENT, 2), ((STRANGER,), None, 0)],
    ids=["required", "not required", "without keys"],
)
async def test_which_answer_is_taken(signings: Sequence[Signing | None], mine: Signing | None, taken: int) -> None:
    """With keys the first whose signature holds: a service with keys signs every answer. Any where there are none."""
    asked: list[Message] = []
    respond = replies(*((success(number), signing) for number, signing in enumerate(signings)))

    async def noting(bus: MemoryBus, message: Message, count: int) -> None:
        asked.append(message)
        await respond(bus, message, count)

    assert await first_message(noting, mine) == taken
    assert asked[0].metadata.get("signature", "").startswith("v1,k1,") == (mine is not None)


SPOOFS: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "another run": ({"run_id": "run_of_eve"}, {}),
    "another owner": ({"owner_key": "eve"}, {}),
    "another spelling of the owner": ({"owner_key": "Ada"}, {}),
    "a copy of the request": ({}, {"request_sha256": "0" * 64}),
    "a list for the hash": ({}, {"request_sha256": []}),
    "another request": ({"id": "msg_of_eve"}, {}),
}


@pytest.mark.parametrize("content", [success("theirs"), refusal("INTERNAL")], ids=["success", "error"])
@pytest.mark.parametrize("signing", [None, REQUIRED], ids=["unsigned", "signed"])
@pytest.mark.parametrize("spoof", SPOOFS)
async def test_only_its_own_answer_is_believed(spoof: str, signing: Signing | None, content: dict[str, Any]) -> None:
    """One that names another run, owner, request or payload is passed over, however well it is signed, and counted."""
    changes, metadata = SPOOFS[spoof]

    async def respond(bus: MemoryBus, asked: Message, _count: int) -> None:
        await reply(bus, asked.model_copy(update=changes), content, signing, **metadata)
        await reply(bus, asked, success("mine"), signing)

    async with answered_by(respond) as bus, ContextClient(bus, signing=signing).listening() as client:
        assert (await client.build(run(), timeout=PATIENCE_S))["messages"] == ["mine"]
        assert client.disbelieved == ("id" not in changes)


@pytest.mark.parametrize("mine", [None, LENIENT, REQUIRED])
async def test_an_answer_to_its_own_bytes(mine: Signing | None) -> None:
    """Whatever the answer is, an ID_CONFLICT too: it is about this request and no copy of it."""
    bus = AwayBus(0)

    async def respond(_bus: MemoryBus, asked: Message, _count: int) -> None:
        await reply(bus, asked, refusal("UNAUTHENTICATED"), mine, request_sha256="f" * 64)
        # The request is sent under the name of its bytes.
        await reply(bus, asked, refusal("ID_CONFLICT"), mine, request_sha256=bus.names[0])

    async with answered_by(respond, bus), ContextClient(bus, signing=mine).listening() as client:
        with pytest.raises(AnswerError, match="ID_CONFLICT: no"):
            await client.build(run(), timeout=PATIENCE_S)
        assert client.disbelieved == 1


async def test_answers_that_cannot_be_believed() -> None:
    """They are counted, and the request ends as if there had been none."""
    respond = replies((success(0), STRANGER), success(1), success(2), success(3))
    async with answered_by(respond) as bus, ContextClient(bus, signing=LENIENT).listening() as client:
        with pytest.raises(TimeoutError, match="none that can be believed: compare bus"):
            await client.build(run(), timeout=0.1)
        assert client.disbelieved >= 4


COMPLETION: Final = {"role": "assistant", "content": "🌧 北京", "tool_calls": None}
CALL: Final = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
OF_OPENAI: Final = {
    "id": "c1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "tool_calls": [CALL]}}],
}
OF_ANTHROPIC: Final = {
    "id": "m1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "x"}, {"type": "tool_use", "id": "t1", "name": "weather", "input": {"a": 1}}],
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 1, "output_tokens": 1},
}
OF_GEMINI: Final = {
    "candidates": [
        {
            "content": {
                "role": "model",
                "parts": [{"functionCall": {"name": "weather", "args": {"a": 1}}, "thoughtSignature": "aGk="}],
            }
        }
    ]
}


def typed(kind: str, content: Any) -> Any:
    """The content as an object of an SDK."""
    module, _, name = kind.rpartition(".")
    return getattr(import_module(module), name).model_validate(content)


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("a text", "a text"),
        ("", ""),
        (COMPLETION, COMPLETION),
        ({"choices": [COMPLETION]}, {"choices": [COMPLETION]}),
        (("openai.types.chat.ChatCompletion", OF_OPENAI), OF_OPENAI),
        (("anthropic.types.Message", OF_ANTHROPIC), OF_ANTHROPIC),
        (("google.genai.types.GenerateContentResponse", OF_GEMINI), OF_GEMINI),
        (
            {"content": [("anthropic.types.TextBlock", {"type": "text", "text": "x"})]},
            {"content": [{"type": "text", "text": "x"}]},
        ),
    ],
    ids=["text", "empty", "message", "completion", "openai", "anthropic", "gemini", "blocks"],
)
async def test_an_answer_is_sent_as_it_is(given: Any, sent: Any) -> None:
    """Under the names of the provider's API, in the run's session; what it means the service says."""
    if isinstance(given, tuple):
        given = typed(*given)
    elif isinstance(given, dict) and isinstance(given.get("content"), list):
        given = {"content": [typed(*block) for block in given["content"]]}
    bus = MemoryBus()
    asked = new_run("ada", "how is the weather?", session_id="s")
    async with bus.subscribe(Topics.LLM_RESULTS) as results:
        message = await ContextClient(bus).record_answer(asked, given)
        (delivery,) = await take(results, 1)
    assert decode(delivery.payload) == message
    assert (message.run_id, message.owner_key, message.role) == (asked.id, "ada", Role.AI)
    assert (message.content, message.metadata) == (sent, {"session_id": "s"})


@pytest.mark.parametrize(("failed", "status"), [(False, "success"), (True, "error")])
async def test_the_result_of_a_tool(failed: bool, status: str) -> None:
    """With the call that it answers, the name of the tool and whether it failed."""
    bus = MemoryBus()
    async with bus.subscribe(Topics.TOOLS_RESULTS) as results:
        client = ContextClient(bus)
        message = await client.record_tool_result(run(), "call_1", {"°C": [7]}, name="weather", failed=failed)
        (delivery,) = await take(results, 1)
    assert decode(delivery.payload) == message
    assert (message.role, message.metadata) == (Role.TOOL, {})
    assert message.content == {
        "result": {"°C": [7]},
        "tool_name": "weather",
        "status": status,
        "execution_success": not failed,
        "call_id": "call_1",
    }


async def test_what_a_person_says_meanwhile() -> None:
    """Is a message of the run, of a human."""
    bus, asked = MemoryBus(), new_run("ada", "hi")
    async with bus.subscribe(Topics.RUNS_INPUT) as words:
        message = await ContextClient(bus).say(asked, "no, Bergen")
        (delivery,) = await take(words, 1)
    assert decode(delivery.payload) == message
    assert (message.run_id, message.role, message.content) == (asked.id, Role.HUMAN, "no, Bergen")


async def test_tools_are_registered() -> None:
    """Each by a message of its own, as it is given."""
    bus, tools = MemoryBus(), [{"type": "function", "function": {"name": name}} for name in ("a", "b")]
    async with bus.subscribe(Topics.TOOLS_REGISTER) as registered:
        await ContextClient(bus).register_tools(tools)
        deliveries = await take(registered, 2)
    assert [decode(delivery.payload).content for delivery in deliveries] == tools


def called(asked: Message, text: str, **changes: Any) -> Message:
    """The result of a call, as Nexus gives it."""
    content = {"result": text, "call_id": asked.content["call_id"]}
    common: dict[str, Any] = {"run_id": asked.run_id, "owner_key": asked.owner_key, "role": Role.TOOL}
    return Message(**common | changes, content=content, metadata={"request_id": changes.get("request_id", asked.id)})


async def test_a_call_of_a_memory_tool() -> None:
    """Its own result comes back, not that of another call, run or owner; then the call is over."""
    bus, calls = MemoryBus(), list[Message]()

    async def serve() -> None:
        async for delivery in requests:
            asked = decode(delivery.payload)
            calls.append(asked)
            others: list[dict[str, Any]] = [
                {"run_id": "x"},
                {"owner_key": "eve"},
                {"role": Role.AI},
                {"request_id": "x"},
            ]
            for change in others:
                await bus.publish(Topics.TOOLS_RESULTS, encode(called(asked, "theirs", **change)))
            await bus.publish(Topics.TOOLS_RESULTS, b"no JSON")
            await bus.publish(Topics.TOOLS_RESULTS, encode(called(asked, "mine")))

    async with bus.subscribe(Topics.TOOLS_REQUESTS) as requests, anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        async with ContextClient(bus).listening() as client:
            found = await client.call_tool(new_run("ada", "hi"), "search_memory", {"query": "beans"}, call_id="c1")
        tasks.cancel_scope.cancel()
    assert found.content == {"result": "mine", "call_id": "c1"}
    assert [call.content for call in calls] == [{"name": "search_memory", "args": {"query": "beans"}, "call_id": "c1"}]
    assert client.disbelieved == 3


async def test_a_search() -> None:
    """Its own answer comes back, of what it was asked for; an error is raised with its code."""
    bus, searches = MemoryBus(), list[Message]()
    content = {"status": "success", "hits": [], "considered": 3}

    async def serve() -> None:
        async for delivery in requests:
            asked = decode(delivery.payload)
            searches.append(asked)
            topic = f"{Topics.MEMORY_SEARCH_RESULT}.{asked.metadata['reply_to']}"
            said = refusal("HISTORY_UNAVAILABLE") if asked.content["query"] == "fail" else content
            for message in (
                answer(asked, content).model_copy(update={"owner_key": "eve"}),
                answer(asked, {"status": "success"}),
                answer(asked, said),
            ):
                await bus.publish(topic, encode(message))

    async with bus.subscribe(Topics.MEMORY_SEARCH) as requests, anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        async with ContextClient(bus).listening() as client:
            assert await client.search_memory("ada", "狗") == content
            assert (
                await client.search_memory("ada", "x", session_id="s", scope="session", limit=3, timeout=9) == content
            )
            with pytest.raises(AnswerError) as caught:
                await client.search_memory("ada", "fail")
        tasks.cancel_scope.cancel()
    assert (caught.value.code, caught.value.code.retryable) == (ErrorCode.HISTORY_UNAVAILABLE, True)
    assert [search.content for search in searches[:2]] == [
        {"query": "狗", "limit": 10},
        {"query": "x", "session_id": "s", "scope": "session", "limit": 3},
    ]
    assert [search.metadata["deadline_ms"] for search in searches[:2]] == [5_000, 9_000]
    assert client.disbelieved == 6


async def test_a_context_comes_after_what_was_said() -> None:
    """A request names what was sent since the last context of its owner, but nothing of its own run, which has it.

    Nor does it name what is not recorded, such as an answer that is nothing but thinking.
    """
    afters = list[Any]()

    async def respond(bus: MemoryBus, asked: Message, count: int) -> None:
        afters.append(asked.metadata.get("after"))
        if len(afters) == 2:
            await reply(bus, asked, refusal("OVERLOADED"))
        else:
            await echo(bus, asked, count)

    bus = MemoryBus()
    recorded = (Topics.LLM_RESULTS, Topics.TOOLS_RESULTS, Topics.TOOLS_PROGRESS, Topics.RUNS_INPUT)
    async with answered_by(respond, bus), bus.subscribe(*recorded), ContextClient(bus).listening() as client:
        first, second, others = (new_run(owner, "hi") for owner in ("ada", "ada", "bob"))
        sent = [
            await client.record_answer(first, COMPLETION),
            await client.record_tool_result(first, "c", "7", name="weather"),
            await client.say(first, "and?"),
        ]
        await client.report_progress(first, "d", "working", progress=0.4)
        await client.report_progress(first, "d", "cancelled")
        unsaid: list[Any] = ["", {"content": [{"type": "thinking", "thinking": "hm"}]}, {"choices": []}]
        for nothing in unsaid:
            await client.record_answer(first, nothing)
        await client.build(first)
        with pytest.raises(AnswerError):
            await client.build(second)
        await client.build(others)
        await client.build(second)
        await client.build(new_run("ada", "hi"))
    # What is said of a call has one row.
    ids = [*(message.id for message in sent), progress_id(first.id, "d")]
    assert afters == [None, ids, None, ids, None]


async def test_a_context_comes_after_a_hundred_messages_at_most() -> None:
    """The last of them: those before were on their way while these were sent."""
    afters = list[Any]()

    async def respond(bus: MemoryBus, asked: Message, count: int) -> None:
        afters.append(asked.metadata.get("after"))
        await echo(bus, asked, count)

    bus = MemoryBus()
    async with answered_by(respond, bus), bus.subscribe(Topics.LLM_RESULTS), ContextClient(bus).listening() as client:
        first = new_run("ada", "hi")
        sent = [await client.record_answer(first, str(number)) for number in range(105)]
        await client.build(new_run("ada", "hi"))
    assert afters == [[message.id for message in sent[5:]]]


SENDERS: Final[dict[str, Callable[[ContextClient, float], Awaitable[Any]]]] = {
    Topics.LLM_RESULTS: lambda client, seconds: client.record_answer(run(), "x", timeout=seconds),
    Topics.TOOLS_RESULTS: lambda client, seconds: client.record_tool_result(run(), "c", 1, name="f", timeout=seconds),
    Topics.TOOLS_PROGRESS: lambda client, seconds: client.report_progress(run(), "c", "working", timeout=seconds),
    Topics.RUNS_INPUT: lambda client, seconds: client.say(run(), "x", timeout=seconds),
    Topics.TOOLS_REGISTER: lambda client, seconds: client.register_tools([{}], timeout=seconds),
    Topics.SESSION_STATE: lambda client, seconds: client.send_state("ada", {"op": "clear"}, timeout=seconds),
    Topics.MEMORY_FACTS: lambda client, seconds: client.send_facts("ada", {"op": "add"}, timeout=seconds),
    Topics.SESSION_CONSTRAINTS: lambda client, seconds: client.send_constraints("ada", {"op": "add"}, timeout=seconds),
    Topics.CONTEXT_BUILD_REQUEST: lambda client, seconds: client.build(run(), timeout=seconds),
    Topics.MEMORY_SEARCH: lambda client, seconds: client.search_memory("ada", "x", timeout=seconds),
    Topics.TOOLS_REQUESTS: lambda client, seconds: client.call_tool(run(), "search_memory", {}, timeout=seconds),
}


@pytest.mark.parametrize("topic", SENDERS)
async def test_nobody_listens(topic: str) -> None:
    """The error says what was tried, where, and what to check; it is a time-out besides."""
    async with ContextClient(MemoryBus(), where="here:1/0").listening() as client:
        with pytest.raises(NobodyListeningError) as caught:
            await SENDERS[topic](client, 0.1)
    assert isinstance(caught.value, TimeoutError)
    reason = "is a service running on this bus, with this bus.mode and bus.channel_prefix? (nexus doctor)"
    assert str(caught.value) == f"nobody listens to {topic} at here:1/0, tried for 0.1 s: {reason}"


class DeafBus(MemoryBus):
    """A bus that keeps messages, of which none is read."""

    async def publish(self, topic: str, payload: bytes, *, once: str = "") -> int:
        """Take it, and give it to nobody."""
        return 1 + await super().publish(topic, payload, once=once)

    async def is_read(self, topic: str) -> bool | None:
        """By nobody."""
        return topic == ""


async def test_nobody_reads_what_is_kept() -> None:
    """A bus that keeps messages takes an answer for later; a request is asked in vain."""
    async with ContextClient(DeafBus()).listening() as client:
        assert (await client.record_answer(run(), "x")).content == "x"
        with pytest.raises(NobodyListeningError):
            await client.build(run(), timeout=0.1)


@pytest.mark.parametrize("topic", SENDERS)
async def test_a_bus_that_is_away(topic: str) -> None:
    """It is tried again until the time is over, and what failed is said."""
    expected = TimeoutError if topic in {*ANSWER_TOPICS, Topics.TOOLS_REQUESTS} else BusUnavailableError
    async with ContextClient(AwayBus(1_000), resend_s=0.01).listening() as client:
        with pytest.raises(expected, match="away"):
            await SENDERS[topic](client, 0.1)


async def test_it_is_said_until_it_is_heard() -> None:
    """Over a bus that fails and to a service that comes late; it is one message, however often it is sent."""
    bus, said = AwayBus(3), list[Message]()

    async def say() -> None:
        said.append(await client.record_answer(run(), "late", timeout=PATIENCE_S))

    async def unheard() -> bool:
        return client.unheard >= 2

    async with ContextClient(bus, resend_s=0.01).listening() as client, anyio.create_task_group() as tasks:
        tasks.start_soon(say)
        await until(unheard)
        async with bus.subscribe(Topics.LLM_RESULTS) as results:
            (delivery,) = await take(results, 1)
    assert [decode(delivery.payload)] == said


@pytest.mark.parametrize(
    ("content", "reason"),
    [("x" * (1 << 20), "at most 1048576 are allowed"), (object(), "is no JSON"), ({"a": {1, object()}}, "is no JSON")],
    ids=["too large", "an object", "a set"],
)
async def test_what_cannot_be_sent(content: Any, reason: str) -> None:
    """Is refused at once, with the topic and what is allowed, and nothing is sent."""
    bus = MemoryBus()
    async with bus.subscribe(Topics.LLM_RESULTS) as results:
        with pytest.raises(ValueError, match=rf"llm\.results: .*{reason}"):
            await ContextClient(bus).record_answer(run(), content)
        await results.stop()
        assert await take(results, 1) == []


async def test_what_is_said_is_signed() -> None:
    """For its own topic and no other."""
    bus = MemoryBus()
    async with bus.subscribe(Topics.LLM_RESULTS) as results:
        await ContextClient(bus, signing=REQUIRED).record_answer(run(), "x")
        (delivery,) = await take(results, 1)
    assert decode(delivery.payload, topic=Topics.LLM_RESULTS, signing=REQUIRED).content == "x"
