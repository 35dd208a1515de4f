"""What passes on the bus is indexed a moment later, once, whatever happens meanwhile (contract §14)."""

import signal

import pytest
from pymongo import MongoClient

from nexus.adapters.mongo import open_mongo
from nexus.services.recall.service import Recall
from tests.nexus.e2e.harness import (
    Document,
    Environment,
    a_message,
    a_request,
    behind,
    port_of,
    requesting,
    serving,
)
from tests.nexus.support.indexed import faults_of_index, waiting_in
from tests.nexus.support.proxy import proxied
from tests.nexus.support.waiting import until

_INPUT, _ANSWER = "My cat is called Miso", "好的，我记住了味噌"


async def _found(environment: Environment, question: str, *, owner: str = "ada") -> str:
    """The text of the best message for a question, as soon as there is one."""
    async with open_mongo(environment["NEXUS_DATABASE__URI"], environment["NEXUS_DATABASE__NAME"]) as store:
        recall = Recall(store.recall)

        async def search() -> str | None:
            found = await recall.search(owner, question, limit=1)
            return found.hits[0].row["content"] if found.hits else None

        return await until(search)


async def _all_indexed(database: MongoClient[Document], name: str, rows: int) -> None:
    """Wait until so many messages are recorded, and none waits to be indexed."""

    async def done() -> bool:
        return database[name]["messages"].count_documents({}) == rows and not waiting_in(database[name])

    await until(done)


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("mode", ["pubsub"], indirect=True)
async def test_what_was_said_is_found(
    environment: Environment, mongo_janitor: MongoClient[Document], database_name: str
) -> None:
    """An input and an answer, in any language; nobody else's."""
    async with serving(environment), requesting(environment) as requester:
        await requester.ask(a_request(_INPUT, run_id="run_1"))
        await requester.publish("llm.results", a_message({"content": _ANSWER, "tool_calls": None}))
        assert await _found(environment, "Which cats are there?") == _INPUT
        assert await _found(environment, "味噌是谁") == _ANSWER
        await requester.ask(a_request("cats", owner="eve"))
        assert await _found(environment, "cat", owner="eve") == "cats"
        assert await _found(environment, "cat") == _INPUT
        await _all_indexed(mongo_janitor, database_name, 3)
    assert faults_of_index(mongo_janitor[database_name]) == []


async def test_what_was_said_while_mongodb_was_away(
    environment: Environment, mongo_uri: str, mongo_janitor: MongoClient[Document], database_name: str
) -> None:
    """It is indexed when MongoDB is back, without a restart."""
    async with proxied("127.0.0.1", port_of(mongo_uri)) as proxy:
        away = environment | behind(proxy) | {"NEXUS_DATABASE__TIMEOUT_MS": "1500"}
        async with serving(away) as service, requesting(away) as requester:
            await requester.ask(a_request("good morning"))
            await _all_indexed(mongo_janitor, database_name, 1)
            proxy.refuse()
            await requester.ask(a_request(_INPUT, metadata={"deadline_ms": 3_000}))
            await service.logged("recall_delayed")
            proxy.behave()
            # While a message is written, the one beside it may be found in its place.
            await _all_indexed(mongo_janitor, database_name, 2)
            assert await _found(environment, "cat") == _INPUT
    assert faults_of_index(mongo_janitor[database_name]) == []


async def test_two_services_of_which_one_is_killed(
    streams: Environment, mongo_janitor: MongoClient[Document], database_name: str
) -> None:
    """Every message is indexed once by those that go on."""
    rows = 400
    async with serving(streams) as first, serving(streams), requesting(streams) as requester:
        for number in range(rows):
            said = {"content": f"cat{number} sleeps", "tool_calls": None}
            await requester.publish("llm.results", a_message(said, f"run_{number % 7}", owner_key=f"o{number % 3}"))
            if number == rows // 2:
                await first.stop(signal.SIGKILL)
        await _all_indexed(mongo_janitor, database_name, rows)
    assert faults_of_index(mongo_janitor[database_name]) == []


async def test_long_term_memory_that_is_off(
    environment: Environment, mongo_janitor: MongoClient[Document], database_name: str
) -> None:
    """Nothing is indexed, and nothing waits to be."""
    database = mongo_janitor[database_name]
    async with serving(environment | {"NEXUS_RECALL__ENABLED": "false"}), requesting(environment) as requester:
        await requester.ask(a_request(_INPUT))
    assert "recall" not in (database["messages"].find_one() or {"recall": None})
    assert database["recall_postings"].count_documents({}) == 0
