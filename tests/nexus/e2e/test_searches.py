"""What was said is found in every session of its owner, over the bus and by the memory tool (contract §14)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import pytest

from nexus.client import AnswerError, ContextClient, new_run
from nexus.core.errors import ErrorCode
from tests.nexus.e2e.harness import (
    PATIENCE_S,
    Collector,
    Document,
    Environment,
    a_message,
    behind,
    is_on_streams,
    port_of,
    requesting,
    serving,
)
from tests.nexus.e2e.test_client import client_of
from tests.nexus.support.proxy import proxied
from tests.nexus.support.redis_server import HOST
from tests.nexus.support.waiting import until

DOG: Final = "Our dog is called Biscuit and eats grain-free food."
ANSWER: Final = "I see."
TEA: Final = "小王喜欢喝乌龙茶。"


async def say(client: ContextClient, owner: str, text: str, **metadata: Any) -> None:
    """A run in which a person says it, and is answered."""
    run = new_run(owner, text, **metadata)
    await client.build(run, timeout=PATIENCE_S)
    await client.record_answer(run, ANSWER, timeout=PATIENCE_S)


async def found(client: ContextClient, owner: str, query: str, count: int = 1, **about: Any) -> list[str]:
    """What is found of what persons said, once it is so many messages; what stands beside these is found, too."""
    texts: list[str] = []

    async def is_found() -> bool:
        hits = (await client.search_memory(owner, query, timeout=PATIENCE_S, **about))["hits"]
        texts[:] = [hit["text"] for hit in hits if hit["text"] != ANSWER]
        return len(texts) == count

    await until(is_found)
    return texts


@asynccontextmanager
async def collecting(environment: Environment) -> AsyncIterator[Any]:
    """A requester, and the answers to searches that it hears."""
    async with requesting(environment) as requester, anyio.create_task_group() as tasks:
        topic = f"{requester.prefix}memory.search.result"
        name = lambda answer: str(answer["metadata"]["request_id"])  # noqa: E731  # as the other collectors have it
        results = Collector(requester.redis, topic, name, "memory-search-result")
        await tasks.start(results.read if is_on_streams(environment) else results.subscribe)
        yield requester, results
        tasks.cancel_scope.cancel()
    assert results.faults == []


def a_search(content: Any, owner: str = "ada", **changes: Any) -> Document:
    """A search as an orchestrator publishes it."""
    return a_message(content, "run_s", "HUMAN", owner_key=owner, **changes)


@pytest.mark.once
@pytest.mark.usefixtures("mode")
async def test_of_two_replicas_one_answers(environment: Environment) -> None:
    """Whichever they are: each search has one answer, errors too, and the same bytes again have the same."""
    async with (
        serving(environment),
        serving(environment),
        client_of(environment) as client,
        collecting(environment) as (requester, results),
    ):
        await say(client, "ada", DOG, session_id="home")
        await found(client, "ada", "dog")
        searches = [a_search({"query": "what does Biscuit eat?"}) for _ in range(20)]
        wrong = [
            a_search(content)
            for content in ({"query": ""}, {"query": "x" * 100_000}, {"query": "a", "limit": "10"}, "biscuit")
        ]
        for search in (*searches, *wrong):
            await requester.publish("memory.search", search)
        with anyio.fail_after(PATIENCE_S):
            answers = await results.all_of(*(search["id"] for search in searches))
            refusals = await results.all_of(*(search["id"] for search in wrong))
            # What comes late would come before the answer to this.
            last = a_search({"query": "dog"})
            await requester.publish("memory.search", last)
            await results.all_of(last["id"])
        counts = {len(results.found[search["id"]]) for search in (*searches, *wrong)}
    assert counts == {1}
    assert {answer["content"]["hits"][0]["text"] for answer in answers} == {DOG}
    assert [answer["content"]["error"]["code"] for answer in refusals] == ["INVALID_REQUEST"] * 4


@pytest.mark.once
@pytest.mark.usefixtures("mode")
async def test_an_owner_finds_what_is_its_own(environment: Environment) -> None:
    """Of owners whose keys look like parts of each other's, in any language; and in one session what is of it."""
    owners = ["ada", "ada|", "|ada", "ada|s|1", "ada%7C", "ada%", "阿达|"]
    async with serving(environment), client_of(environment) as client:
        for owner in owners:
            await say(client, owner, f"{TEA} {owner}", session_id="a|b")
            await say(client, owner, "好的,乌龙茶。", session_id="a")
        for owner in owners:
            texts = await found(client, owner, "乌龙茶", 2)
            assert {*texts} == {f"{TEA} {owner}", "好的,乌龙茶。"}
            assert await found(client, owner, "小王喝什么?", session_id="a|b") == [f"{TEA} {owner}"]
        assert (await client.search_memory("ad", "乌龙茶"))["hits"] == []
        with pytest.raises(AnswerError) as refused:
            await client.search_memory("ada", "茶", session_id="a", scope="owner")
    assert refused.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("mode", ["streams"], indirect=True)
async def test_a_model_finds_it_in_another_session(environment: Environment) -> None:
    """With `scope: owner`; the question itself, and earlier searches for it, are not found."""
    question = "What does Biscuit eat?"
    async with serving(environment), client_of(environment) as client:
        await say(client, "ada", DOG, session_id="home")
        await found(client, "ada", "grain")
        run = new_run("ada", question, session_id="work")
        await client.build(run, timeout=PATIENCE_S)
        results = [
            (await client.call_tool(run, "search_memory", {"query": question, **scope}, timeout=PATIENCE_S)).content
            for scope in ({}, {"scope": "owner"}, {"scope": "owner"})
        ]
    here, *everywhere = [result["result"] for result in results]
    assert DOG not in here
    for text in everywhere:
        assert "Message of the user, session home, " in text
        assert text.count(f"> {DOG}") == 1
        assert text.count(f"> {question}") == 1
        assert ", in this exchange\n> " in text


@pytest.mark.heavy
async def test_what_was_indexed_outlives_the_service(environment: Environment, mode: str) -> None:
    """Another finds it; on streams it answers what was asked meanwhile."""
    async with client_of(environment) as client:
        async with serving(environment) as service:
            await say(client, "ada", DOG)
            assert await found(client, "ada", "grain-free") == [DOG]
            assert await service.stop() == 0
        answers: list[Any] = []
        answered = anyio.Event()

        async def ask() -> None:
            answers.append(await client.search_memory("ada", "grain-free", timeout=PATIENCE_S))
            answered.set()

        async def unheard() -> bool:
            return client.unheard > 0

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            if mode == "pubsub":
                await until(unheard)
            async with serving(environment):
                await answered.wait()
    assert answers[0]["hits"][0]["text"] == DOG


@pytest.mark.usefixtures("mode")
async def test_without_mongodb(environment: Environment, mongo_uri: str) -> None:
    """An error says that it may pass, and it passes."""
    async with proxied(HOST, port_of(mongo_uri)) as proxy:
        environment |= {**behind(proxy), "NEXUS_DATABASE__TIMEOUT_MS": "1500"}
        async with serving(environment), client_of(environment) as client:
            await say(client, "ada", DOG)
            assert await found(client, "ada", "biscuit") == [DOG]
            proxy.refuse()
            with pytest.raises(AnswerError) as caught:
                await client.search_memory("ada", "biscuit", timeout=PATIENCE_S)
            proxy.behave()

            async def is_back() -> bool:
                try:
                    return bool((await client.search_memory("ada", "biscuit", timeout=5))["hits"])
                except (AnswerError, TimeoutError):
                    return False

            await until(is_back)
    assert (caught.value.code, caught.value.code.retryable) == (ErrorCode.HISTORY_UNAVAILABLE, True)


@pytest.mark.once
async def test_by_meaning(streams: Environment) -> None:
    """With the packaged embedder a question finds what has no word of it, and is in another language."""
    settings = streams | {"NEXUS_RECALL__EMBEDDER": "packaged"}
    async with serving(settings), client_of(settings) as client:
        for text in (TEA, DOG, "The train to the coast leaves at nine."):
            await say(client, "ada", text)
        assert (await found(client, "ada", "Welches Haustier haben wir?", 3))[0] == DOG
        assert (await found(client, "ada", "What does Wang drink?", 3))[0] == TEA
