"""Strangers on a real bus, who hear every request: they take the place of none, nor of its answer (contract §1.5)."""

import hashlib
import json
from typing import Final, Literal

import anyio
import pytest

from nexus.client import ContextClient
from nexus.connections import open_client
from nexus.core.models import Message, Role, Run
from nexus.core.signing import Signing
from tests.nexus.e2e.harness import (
    REQUEST,
    RESPONSE,
    Collector,
    Document,
    Environment,
    a_message,
    a_request,
    requesting,
    serving,
)
from tests.nexus.support.waiting import PATIENCE_S, until

# What is tried here is the service, not the servers.
pytestmark = pytest.mark.once

SECRET: Final = "a secret of the bus, 16"
SIGNING: Final = Signing({"k1": SECRET.encode()})
BUILDS: Final = 30


@pytest.mark.usefixtures("mode")
async def test_a_request_id_that_others_use_too(environment: Environment) -> None:
    """Of another owner, unreadable, of another run: the owner's request is built whoever came first, and each is told.

    Another request of the same owner under the id is a conflict.
    """
    mine = a_request(metadata={"deadline_ms": 60_000})
    payload = json.dumps(mine).encode()
    another_run = {**mine, "content": {**mine["content"], "id": "run_of_eve"}}
    theirs = [
        (json.dumps(a_request(owner="eve") | {"id": mine["id"]}).encode(), "success"),
        (payload[:-10], "INVALID_REQUEST"),
        (json.dumps({**mine, "role": "NOBODY"}).encode(), "INVALID_REQUEST"),
        (json.dumps({**mine, "content": "garbage"}).encode(), "INVALID_REQUEST"),
        (json.dumps({**mine, "content": {**mine["content"], "owner_key": "eve"}}).encode(), "OWNER_MISMATCH"),
        (json.dumps(another_run).encode(), "INVALID_REQUEST"),
    ]
    sent = [*theirs[::2], (payload, "success"), *theirs[1::2]]
    copy = (json.dumps({**mine, "role": "AI"}).encode(), "ID_CONFLICT")
    async with serving(environment) as service, requesting(environment) as requester:

        async def answered(count: int) -> bool:
            return len(requester.answers.get(mine["id"], ())) >= count

        for each, _ in sent:
            await requester.publish(REQUEST, each)
        await until(lambda: answered(len(sent)))
        sent.append(copy)
        await requester.publish(REQUEST, copy[0])
        await until(lambda: answered(len(sent)))
        answers = [answer for _, answer in requester.answers[mine["id"]]]
    assert service.errors == []
    told = {answer["metadata"]["request_sha256"]: answer["content"] for answer in answers}
    codes = {key: content.get("error", {}).get("code", "success") for key, content in told.items()}
    assert codes == {hashlib.sha256(each).hexdigest(): code for each, code in sent}


def forged(asked: Document) -> list[Document]:
    """Answers that a stranger makes to a request that he has heard."""
    content = {"status": "success", "messages": ["forged"], "tools": [], "context": {}, "degraded": []}
    about = {"request_id": asked["id"]}
    whole = {**a_message(content, asked["run_id"], "SYSTEM"), "owner_key": asked["owner_key"], "metadata": about}
    return [
        {**whole, "run_id": "run_of_eve"},
        {**whole, "owner_key": "eve"},
        {**whole, "metadata": {**about, "request_sha256": "0" * 64}},
        {**whole, "content": {"status": "success"}},
    ]


@pytest.mark.parametrize("signing", [None, SIGNING], ids=["unsigned", "signed"])
async def test_a_client_believes_its_own_answers(
    environment: Environment, mode: Literal["pubsub", "streams"], signing: Signing | None
) -> None:
    """Forgers answer every request first: each gets the service's answer, and what is forged is counted."""
    if signing:
        environment["NEXUS_BUS__SIGNING__KEYS"] = json.dumps({"k1": SECRET})
    prefix, contents = environment["NEXUS_BUS__CHANNEL_PREFIX"], list[Document]()

    async def build(client: ContextClient, number: int) -> None:
        run = Run(owner_key="ada")
        human = Message(run_id=run.id, owner_key="ada", role=Role.HUMAN, content=f"text {number}")
        contents.append(await client.build(run.model_copy(update={"history": [human]}), timeout=PATIENCE_S))

    async def all_built() -> bool:
        return len(contents) == BUILDS

    async with (
        requesting(environment) as stranger,
        open_client(environment["NEXUS_BUS__URL"], mode=mode, channel_prefix=prefix, signing=signing) as client,
        anyio.create_task_group() as tasks,
    ):
        overheard = Collector(stranger.redis, prefix + REQUEST, lambda asked: str(asked["id"]))
        await tasks.start(overheard.subscribe if mode == "pubsub" else overheard.read)

        async def all_overheard() -> bool:
            return len(overheard.found) == BUILDS

        for number in range(BUILDS):
            tasks.start_soon(build, client, number)
        await until(all_overheard)
        for (_, asked), *_ in overheard.found.values():
            for answer in forged(asked):
                await stranger.publish(f"{RESPONSE}.{asked['metadata']['reply_to']}", answer)
        async with serving(environment):
            await until(all_built)
        # It has heard the forged ones too.
        stranger.collector.faults.clear()
        tasks.cancel_scope.cancel()
    assert all(content["messages"] != ["forged"] for content in contents)
    assert client.disbelieved == 4 * BUILDS
