"""A requester with keys signs what it asks, and takes no answer that is not to be believed (contract §1.7)."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from nexus.adapters.in_memory import MemoryBus
from nexus.client import AnswerError, ContextClient
from nexus.core.errors import RequestError
from nexus.core.models import Message, Role, Run, Topics
from nexus.core.signing import Signing
from nexus.core.wire import decode, encode
from nexus.services.requests.envelope import answer
from tests.nexus.support.waiting import PATIENCE_S, take

REQUIRED = Signing({"k1": b"the first secret"}, required=True)
LENIENT = Signing({"k1": b"the first secret"})
STRANGER = Signing({"k1": b"another secret, 16"})


@asynccontextmanager
async def answering(
    *signings: Signing | None, contents: Sequence[dict[str, Any]] = ()
) -> AsyncIterator[tuple[MemoryBus, list[Message]]]:
    """A bus on which every request gets an answer for each of `signings`, with `contents` or the number of the answer.

    Also gives the requests.
    """
    bus = MemoryBus()
    asked: list[Message] = []
    async with bus.subscribe(Topics.CONTEXT_BUILD_REQUEST) as requests, anyio.create_task_group() as tasks:

        async def serve() -> None:
            async for delivery in requests:
                request = decode(delivery.payload, topic=delivery.topic, signing=LENIENT)
                asked.append(request)
                topic = f"{Topics.CONTEXT_BUILD_RESPONSE}.{request.metadata['reply_to']}"
                for number, signing in enumerate(signings):
                    content = contents[number] if contents else {"status": "success", "messages": [number]}
                    reply = answer(request.id, request.run_id, request.owner_key, content)
                    await bus.publish(topic, encode(reply, topic=topic, signing=signing))

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


@pytest.mark.parametrize(
    ("signings", "mine", "taken"),
    [((None, STRANGER, REQUIRED), REQUIRED, 2), ((STRANGER, None), LENIENT, 1), ((STRANGER,), None, 0)],
    ids=["required", "not required", "without keys"],
)
async def test_which_answer_is_taken(signings: Sequence[Signing | None], mine: Signing | None, taken: int) -> None:
    """The first whose signature holds; unsigned ones too where none is required, any where there are no keys."""
    async with answering(*signings) as (bus, asked):
        assert await build(bus, mine) == taken
    assert ("signature" in asked[0].metadata) == (mine is not None)


async def test_nobody_to_be_believed() -> None:
    """As if nobody had answered."""
    async with answering(None, STRANGER) as (bus, _):
        with pytest.raises(TimeoutError):
            await build(bus, REQUIRED, timeout=0.1)


def refusal(code: str) -> dict[str, Any]:
    """The content of an error answer."""
    return {"status": "error", "error": {"code": code, "message": "no"}}


MINE = {"status": "success", "messages": ["mine"]}


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
    async with answering(REQUIRED, REQUIRED, contents=[refusal(code), MINE]) as (bus, _):
        assert await build(bus, signing) == "mine"


async def test_a_refusal_that_no_copy_can_get_counts_at_once() -> None:
    """Where signatures are required, only who has a key is told what is wrong with a request."""
    async with answering(REQUIRED, REQUIRED, contents=[refusal("INVALID_REQUEST"), MINE]) as (bus, _):
        with pytest.raises(RequestError, match="INVALID_REQUEST: no"):
            await build(bus, REQUIRED)


async def test_a_refusal_counts_when_nothing_better_comes() -> None:
    """Who really has the wrong key is told so rather than that nobody answered."""
    async with answering(REQUIRED, contents=[refusal("UNAUTHENTICATED")]) as (bus, _):
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
    content = {**refusal("INTERNAL"), "more": [2]}
    async with answering(None, contents=[content]) as (bus, _):
        with pytest.raises(AnswerError) as caught:
            await build(bus, None)
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
