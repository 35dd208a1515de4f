"""The reference requester: asks until it is answered, and takes the first answer that is one (contract §1.5)."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest

from nexus.adapters.in_memory import MemoryBus
from nexus.client import ContextClient
from nexus.core.errors import BusUnavailableError, ErrorCode, RequestError
from nexus.core.models import Message, Role, Run, Topics
from nexus.core.wire import decode, encode
from nexus.services.requests.envelope import answer, error_answer
from tests.nexus.support.waiting import PATIENCE_S, take, until

Responder = Callable[[MemoryBus, Message, int], Awaitable[None]]
SUCCESS: dict[str, Any] = {"status": "success", "layout": "dialogue", "messages": [{"role": "system", "content": "x"}]}


def run(text: str = "hello") -> Run:
    """A run with this input."""
    fresh = Run(owner_key="ada")
    human = Message(run_id=fresh.id, owner_key="ada", role=Role.HUMAN, content=text)
    return fresh.model_copy(update={"history": [human]})


def topic(asked: Message) -> str:
    """Where the answer belongs."""
    return f"{Topics.CONTEXT_BUILD_RESPONSE}.{asked.metadata['reply_to']}"


def reply(asked: Message, content: Any) -> bytes:
    """An answer with this content."""
    return encode(answer(asked.id, asked.run_id, asked.owner_key, content))


async def echo(bus: MemoryBus, asked: Message, _count: int) -> None:
    """Answer with the input as the only message."""
    text = asked.content["history"][0]["content"]
    await bus.publish(topic(asked), reply(asked, {"status": "success", "messages": [text]}))


@asynccontextmanager
async def answered_by(respond: Responder, bus: MemoryBus | None = None) -> AsyncIterator[MemoryBus]:
    """A bus on which `respond` is called with every request, and how often its id was asked before."""
    bus = bus or MemoryBus()
    counts: dict[str, int] = {}
    async with bus.subscribe(Topics.CONTEXT_BUILD_REQUEST) as requests, anyio.create_task_group() as tasks:

        async def serve() -> None:
            async for delivery in requests:
                asked = decode(delivery.payload)
                counts[asked.id] = counts.get(asked.id, -1) + 1
                await respond(bus, asked, counts[asked.id])

        tasks.start_soon(serve)
        yield bus
        tasks.cancel_scope.cancel()


async def test_the_content_of_the_answer() -> None:
    """As Nexus gave it."""
    asked: list[Message] = []

    async def respond(bus: MemoryBus, message: Message, _count: int) -> None:
        asked.append(message)
        await bus.publish(topic(message), reply(message, SUCCESS))

    given = run()
    async with answered_by(respond) as bus, ContextClient(bus).listening() as client:
        assert await client.build(given, timeout=20) == SUCCESS
    (message,) = asked
    assert (message.run_id, message.owner_key, message.role) == (given.id, "ada", Role.HUMAN)
    assert Run.model_validate(message.content) == given
    assert message.metadata["deadline_ms"] == 20_000


async def test_the_same_bytes_until_it_is_answered() -> None:
    """A request that was lost is sent again, and is the same request."""
    sent: set[bytes] = set()

    async def respond(bus: MemoryBus, asked: Message, count: int) -> None:
        sent.add(encode(asked))
        if count == 3:
            await echo(bus, asked, count)

    async with answered_by(respond) as bus, ContextClient(bus, resend_s=0.01).listening() as client:
        content = await client.build(run("again"), timeout=PATIENCE_S)
    assert content["messages"] == ["again"]
    assert len(sent) == 1


async def test_the_first_answer_counts() -> None:
    """Whatever is said to the same id afterwards."""

    async def respond(bus: MemoryBus, asked: Message, count: int) -> None:
        await echo(bus, asked, count)
        await bus.publish(topic(asked), reply(asked, {"status": "success", "messages": ["second"]}))

    async with answered_by(respond) as bus, ContextClient(bus).listening() as client:
        contents = [await client.build(run(text), timeout=PATIENCE_S) for text in ("a", "b")]
    assert [content["messages"] for content in contents] == [["a"], ["b"]]


async def test_many_at_once() -> None:
    """Every build gets the answer to its own request."""
    answers: dict[str, Any] = {}
    async with answered_by(echo) as bus, ContextClient(bus).listening() as client, anyio.create_task_group() as tasks:

        async def ask(text: str) -> None:
            answers[text] = (await client.build(run(text), timeout=PATIENCE_S))["messages"]

        for number in range(100):
            tasks.start_soon(ask, f"text {number}")
    assert answers == {f"text {number}": [f"text {number}"] for number in range(100)}


async def test_nobody_answers() -> None:
    """A TimeoutError, and the client can be used again."""

    async def respond(bus: MemoryBus, asked: Message, count: int) -> None:
        if asked.content["history"][0]["content"] == "loud":
            await echo(bus, asked, count)

    async with answered_by(respond) as bus, ContextClient(bus, resend_s=0.01).listening() as client:
        with pytest.raises(TimeoutError):
            await client.build(run("quiet"), timeout=0.1)
        assert (await client.build(run("loud"), timeout=PATIENCE_S))["messages"] == ["loud"]


@pytest.mark.parametrize("code", list(ErrorCode))
async def test_an_error_answer_is_raised(code: ErrorCode) -> None:
    """With code and message."""

    async def respond(bus: MemoryBus, asked: Message, _count: int) -> None:
        error = RequestError(code, "what is wrong")
        await bus.publish(topic(asked), encode(error_answer(asked.id, asked.run_id, asked.owner_key, error)))

    async with answered_by(respond) as bus, ContextClient(bus).listening() as client:
        with pytest.raises(RequestError) as caught:
            await client.build(run(), timeout=PATIENCE_S)
    assert (caught.value.code, caught.value.message) == (code, "what is wrong")


@pytest.mark.parametrize("unknown", ["NEW_CODE", None, 5, [], {}])
async def test_a_code_of_a_newer_nexus_is_internal(unknown: Any) -> None:
    """An error is an error, whatever it is called."""

    async def respond(bus: MemoryBus, asked: Message, _count: int) -> None:
        await bus.publish(topic(asked), reply(asked, {"status": "error", "error": {"code": unknown, "message": "new"}}))

    async with answered_by(respond) as bus, ContextClient(bus).listening() as client:
        with pytest.raises(RequestError, match="INTERNAL: new"):
            await client.build(run(), timeout=PATIENCE_S)


@pytest.mark.parametrize(
    "content",
    [
        None,
        "text",
        5,
        [],
        {},
        {"status": "success"},
        {"status": "success", "messages": "x"},
        {"status": "error"},
        {"status": "error", "error": "text"},
        {"status": "error", "error": [1]},
        {"status": ["error"]},
    ],
)
async def test_what_is_no_answer_is_ignored(content: Any) -> None:
    """Noise on the topic, wrong ids and strange contents; the answer after them counts."""

    async def respond(bus: MemoryBus, asked: Message, count: int) -> None:
        stranger = asked.model_copy(update={"id": "msg_stranger"})
        nameless = json.loads(reply(asked, SUCCESS)) | {"metadata": {"request_id": [asked.id]}}
        for noise in (
            b"",
            b"\xff{[",
            b'{"id":"x","run_id":"y"}',
            reply(stranger, SUCCESS),
            json.dumps(nameless).encode(),
            reply(asked, content),
        ):
            await bus.publish(topic(asked), noise)
        await echo(bus, asked, count)

    async with answered_by(respond) as bus, ContextClient(bus).listening() as client:
        assert (await client.build(run("this"), timeout=PATIENCE_S))["messages"] == ["this"]


class AwayBus(MemoryBus):
    """A bus that cannot be reached for some publications.

    Attributes:
        names: under which names requests were to be taken once only.
    """

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures
        self.names: list[str] = []

    async def publish(self, topic: str, payload: bytes, *, once: str = "") -> int:
        """Fail for as long as there are failures left, then publish."""
        if topic == Topics.CONTEXT_BUILD_REQUEST:
            self.names.append(once)
        if self.failures:
            self.failures -= 1
            raise BusUnavailableError("away")
        return await super().publish(topic, payload, once=once)


class KeepingBus(AwayBus):
    """A bus that takes a request once only, as one that keeps messages does."""

    async def publish(self, topic: str, payload: bytes, *, once: str = "") -> int:
        """Publish what has no name, or a name for the first time."""
        if once in self.names:
            self.names.append(once)
            return 1
        return await super().publish(topic, payload, once=once)


async def test_a_bus_that_comes_back() -> None:
    """The request is sent until it went through."""
    async with answered_by(echo, AwayBus(3)) as bus, ContextClient(bus, resend_s=0.01).listening() as client:
        assert (await client.build(run("back"), timeout=PATIENCE_S))["messages"] == ["back"]


async def test_a_request_is_sent_under_its_id() -> None:
    """However often it is sent: a bus that keeps messages takes it once, and it is answered."""
    asked: list[Message] = []
    bus = KeepingBus(0)

    async def respond(bus: MemoryBus, message: Message, count: int) -> None:
        asked.append(message)
        await until(sent_again)
        await echo(bus, message, count)

    async def sent_again() -> bool:
        return len(bus.names) >= 3

    async with answered_by(respond, bus), ContextClient(bus, resend_s=0.01).listening() as client:
        assert (await client.build(run("once"), timeout=PATIENCE_S))["messages"] == ["once"]
    assert {*bus.names} == {message.id for message in asked}
    assert len(asked) == 1


async def test_nobody_hears() -> None:
    """Who comes late is asked all the same; how often nobody was there is counted."""
    bus, contents = MemoryBus(), []
    async with ContextClient(bus, resend_s=0.01).listening() as client, anyio.create_task_group() as tasks:

        async def ask() -> None:
            contents.append((await client.build(run("late"), timeout=PATIENCE_S))["messages"])

        tasks.start_soon(ask)

        async def unheard() -> bool:
            return client.unheard >= 2

        await until(unheard)
        async with answered_by(echo, bus):

            async def answered() -> bool:
                return bool(contents)

            await until(answered)
    assert contents == [["late"]]


@pytest.mark.parametrize(("given", "expected"), [(1_500, 1_500), (0, 0), (None, None), ("soon", None), (1.5, None)])
async def test_when_to_try_again(given: Any, expected: int | None) -> None:
    """What an overloaded service says about it, if it is a number of milliseconds."""

    async def respond(bus: MemoryBus, asked: Message, _count: int) -> None:
        error = {"code": "OVERLOADED", "message": "too many", "retryable": True, "retry_after_ms": given}
        await bus.publish(topic(asked), reply(asked, {"status": "error", "error": error}))

    async with answered_by(respond) as bus, ContextClient(bus).listening() as client:
        with pytest.raises(RequestError) as caught:
            await client.build(run(), timeout=PATIENCE_S)
    assert (caught.value.code, caught.value.retry_after_ms) == (ErrorCode.OVERLOADED, expected)


async def test_what_the_user_raises_comes_out_as_it_is() -> None:
    """Not in a group, although there is a task group inside."""
    failure = KeyError("mine")
    with pytest.raises(KeyError) as caught:
        async with ContextClient(MemoryBus()).listening():
            raise failure
    assert caught.value is failure


@pytest.mark.parametrize(("timeout", "deadline_ms"), [(0.05, 100), (1.5, 1_500), (600, 60_000)])
async def test_the_deadline_is_told(timeout: float, deadline_ms: int) -> None:  # noqa: ASYNC109  # the argument's name
    """In milliseconds, within what Nexus allows."""
    bus = MemoryBus()
    async with (
        bus.subscribe(Topics.CONTEXT_BUILD_REQUEST) as requests,
        ContextClient(bus).listening() as client,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(_build_in_vain, client, timeout)
        (delivery,) = await take(requests, 1)
        tasks.cancel_scope.cancel()
    assert decode(delivery.payload).metadata["deadline_ms"] == deadline_ms


async def _build_in_vain(client: ContextClient, timeout: float) -> None:  # noqa: ASYNC109  # the argument's name
    with suppress(TimeoutError):
        await client.build(run(), timeout=timeout)


async def test_a_state_is_sent() -> None:
    """It is a message about the session that is named, each time another one."""
    bus = MemoryBus()
    content = {"op": "set", "state": {"role": "r"}}
    async with bus.subscribe(Topics.SESSION_STATE) as heard:
        client = ContextClient(bus)
        assert await client.send_state("ada", content, session_id="s") == 1
        assert await client.send_state("ada", content) == 1
        first, second = [decode(delivery.payload) for delivery in await take(heard, 2)]
    assert (first.owner_key, first.role, first.content) == ("ada", Role.COMMAND, content)
    assert [message.metadata for message in (first, second)] == [{"session_id": "s"}, {"session_id": "default"}]
    assert first.id != second.id
    assert await client.send_state("ada", content) == 0
