"""A requester with keys signs what it asks, and takes no answer that is not to be believed (CONTRACT §1.7)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from nexus.adapters.memory_bus import MemoryBus
from nexus.client import AnswerError, ContextClient
from nexus.core.errors import RequestError
from nexus.core.models import Message, Role, Run
from nexus.core.signing import Signing
from nexus.core.topics import Topics
from nexus.core.wire import decode, encode
from nexus.services.context.answers import answer
from tests.nexus.support.waiting import PATIENCE_S, take

REQUIRED = Signing({"k1": b"the first secret"}, required=True)
LENIENT = Signing({"k1": b"the first secret"})
STRANGER = Signing({"k1": b"another secret, 16"})


@asynccontextmanager
async def answering(*signings: Signing | None) -> AsyncIterator[tuple[MemoryBus, list[Message]]]:
    """A bus on which every request is answered once for each of `signings`, signed with it, and what was asked."""
    bus = MemoryBus()
    asked: list[Message] = []
    async with bus.subscribe(Topics.CONTEXT_BUILD_REQUEST) as requests, anyio.create_task_group() as tasks:

        async def serve() -> None:
            async for delivery in requests:
                request = decode(delivery.payload, topic=delivery.topic, signing=LENIENT)
                asked.append(request)
                topic = f"{Topics.CONTEXT_BUILD_RESPONSE}.{request.metadata['reply_to']}"
                for number, signing in enumerate(signings):
                    content = {"status": "success", "messages": [number]}
                    said = answer(request.id, request.run_id, request.owner_key, content)
                    await bus.publish(topic, encode(said, topic=topic, signing=signing))

        tasks.start_soon(serve)
        yield bus, asked
        tasks.cancel_scope.cancel()


async def build(bus: MemoryBus, signing: Signing | None, timeout: float = PATIENCE_S) -> Any:  # noqa: ASYNC109  # passed on
    """Which of the answers was taken."""
    run = Run(owner_key="ada")
    human = Message(run_id=run.id, owner_key="ada", role=Role.HUMAN, content="hello")
    async with ContextClient(bus, signing=signing).listening() as client:
        content = await client.build(run.model_copy(update={"history": [human]}), timeout=timeout)
    return content["messages"][0]


async def test_a_request_is_signed() -> None:
    """For the topic of requests."""
    async with answering(REQUIRED) as (bus, asked):
        assert await build(bus, REQUIRED) == 0
    assert asked[0].metadata["signature"].startswith("v1,k1,")


async def test_only_an_answer_to_be_believed_is_taken() -> None:
    """Not an unsigned one, nor one of another key."""
    async with answering(None, STRANGER, REQUIRED) as (bus, _):
        assert await build(bus, REQUIRED) == 2


async def test_where_signatures_are_not_required() -> None:
    """An unsigned answer is taken, a wrongly signed one is not."""
    async with answering(STRANGER, None) as (bus, _):
        assert await build(bus, LENIENT) == 1


async def test_without_keys_nothing_is_signed_or_looked_at() -> None:
    """Whoever signed the answer."""
    async with answering(STRANGER) as (bus, asked):
        assert await build(bus, None) == 0
    assert "signature" not in asked[0].metadata


async def test_nobody_to_be_believed() -> None:
    """As if nobody had answered."""
    async with answering(None, STRANGER) as (bus, _):
        with pytest.raises(TimeoutError):
            await build(bus, REQUIRED, timeout=0.1)


@asynccontextmanager
async def contested(*contents: dict[str, Any]) -> AsyncIterator[MemoryBus]:
    """A bus on which every request gets these answers, all of them signed."""
    bus = MemoryBus()
    async with bus.subscribe(Topics.CONTEXT_BUILD_REQUEST) as requests, anyio.create_task_group() as tasks:

        async def serve() -> None:
            async for delivery in requests:
                request = decode(delivery.payload, topic=delivery.topic, signing=LENIENT)
                topic = f"{Topics.CONTEXT_BUILD_RESPONSE}.{request.metadata['reply_to']}"
                for content in contents:
                    said = answer(request.id, request.run_id, request.owner_key, content)
                    await bus.publish(topic, encode(said, topic=topic, signing=REQUIRED))

        tasks.start_soon(serve)
        yield bus
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("code", "signing"),
    [
        ("UNAUTHENTICATED", REQUIRED),
        ("ID_CONFLICT", REQUIRED),
        ("INVALID_REQUEST", LENIENT),
        ("PAYLOAD_TOO_LARGE", LENIENT),
    ],
)
async def test_a_copy_that_a_stranger_sent_does_not_end_the_wait(code: str, signing: Signing) -> None:
    """A copy under the same id is refused in public; the answer to the request itself still counts."""
    refusal = {"status": "error", "error": {"code": code, "message": "no"}}
    async with contested(refusal, {"status": "success", "messages": ["mine"]}) as bus:
        assert await build(bus, signing) == "mine"


async def test_a_refusal_that_no_copy_can_get_counts_at_once() -> None:
    """Where signatures are required, only who has a key is told what is wrong with a request."""
    refusal = {"status": "error", "error": {"code": "INVALID_REQUEST", "message": "no"}}
    async with contested(refusal, {"status": "success", "messages": ["mine"]}) as bus:
        with pytest.raises(RequestError, match="INVALID_REQUEST: no"):
            await build(bus, REQUIRED)


async def test_a_refusal_counts_when_nothing_better_comes() -> None:
    """Who really has the wrong key is told so rather than that nobody answered."""
    async with contested({"status": "error", "error": {"code": "UNAUTHENTICATED", "message": "no"}}) as bus:
        with pytest.raises(RequestError, match="UNAUTHENTICATED: no"):
            await build(bus, REQUIRED, timeout=0.3)


async def test_answers_that_cannot_be_believed_are_counted() -> None:
    """So that who waits in vain learns why."""
    run = Run(owner_key="ada")
    async with answering(STRANGER, None) as (bus, _), ContextClient(bus, signing=REQUIRED).listening() as client:
        with pytest.raises(TimeoutError):
            await client.build(run, timeout=0.1)
        assert client.disbelieved >= 2


async def test_an_error_comes_with_all_that_was_said() -> None:
    """Also with what this client knows nothing of."""
    bus = MemoryBus()
    content = {"status": "error", "error": {"code": "INTERNAL", "message": "m", "extra": 1}, "more": [2]}
    async with bus.subscribe(Topics.CONTEXT_BUILD_REQUEST) as requests, anyio.create_task_group() as tasks:

        async def serve() -> None:
            async for delivery in requests:
                asked = decode(delivery.payload)
                said = answer(asked.id, asked.run_id, asked.owner_key, content)
                await bus.publish(f"{Topics.CONTEXT_BUILD_RESPONSE}.{asked.metadata['reply_to']}", encode(said))

        tasks.start_soon(serve)
        with pytest.raises(AnswerError) as caught:
            await build(bus, None)
        tasks.cancel_scope.cancel()
    assert caught.value.content == content


async def test_a_state_is_signed() -> None:
    """For its own topic, so that it is believed there and nowhere else."""
    bus = MemoryBus()
    async with bus.subscribe(Topics.SESSION_STATE) as heard:
        await ContextClient(bus, signing=REQUIRED).send_state("ada", {"op": "clear"})
        (delivery,) = await take(heard, 1)
    assert decode(delivery.payload, topic=Topics.SESSION_STATE, signing=REQUIRED).content == {"op": "clear"}
    with pytest.raises(RequestError, match="UNAUTHENTICATED"):
        decode(delivery.payload, topic=Topics.LLM_RESULTS, signing=REQUIRED)
