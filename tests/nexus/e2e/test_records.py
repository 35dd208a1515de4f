"""What was answered on the bus is what its record replays, byte for byte (contract §13)."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import pytest
from pydantic import SecretStr
from redis.asyncio import Redis

from nexus.config import DatabaseSettings
from nexus.connections import open_store
from nexus.core.records import BuildRecord
from nexus.core.signing import FIELD, Signing
from nexus.services.records.reader import RecordReader, Replayed
from tests.nexus.e2e.harness import (
    REQUEST,
    RESPONSE,
    Environment,
    a_message,
    a_request,
    behind,
    is_on_streams,
    port_of,
    requesting,
    serving,
)
from tests.nexus.support.proxy import proxied
from tests.nexus.support.redis_server import HOST

pytestmark = pytest.mark.heavy

SECRET: Final = "a secret of the bus, 16"
SIGNING: Final = Signing({"k1": SECRET.encode()})
LONG: Final = 'Wie geht\'s? 早上好 😀\u2028\\n"},{"' * 1_000


class Heard:
    """The bytes of every answer, by its request, as a subscriber hears them."""

    def __init__(self, redis: Redis, key: str) -> None:
        self.answers: dict[str, set[bytes]] = {}
        self._redis, self._key = redis, key

    async def subscribe(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Listen to the channel. Run in a task of its own."""
        async with self._redis.pubsub() as pubsub:
            await pubsub.subscribe(self._key)
            while True:
                message = await pubsub.get_message(timeout=None)
                if message and message["type"] == "subscribe":
                    task_status.started()
                elif message:
                    self._keep(message["data"])

    async def read(self) -> None:
        """Read what the stream has."""
        entries: Any = await self._redis.xrange(self._key)
        for _, fields in entries:
            self._keep(fields[b"message"])

    def _keep(self, data: bytes) -> None:
        self.answers.setdefault(json.loads(data)["metadata"]["request_id"], set()).add(data)


@asynccontextmanager
async def hearing(environment: Environment) -> AsyncIterator[Heard]:
    """All answers of services in this environment; on streams once `read`."""
    key = environment["NEXUS_BUS__CHANNEL_PREFIX"] + RESPONSE
    async with Redis.from_url(environment["NEXUS_BUS__URL"]) as redis, anyio.create_task_group() as tasks:
        heard = Heard(redis, key)
        if not is_on_streams(environment):
            await tasks.start(heard.subscribe)
        yield heard
        tasks.cancel_scope.cancel()


async def replays(environment: Environment, owner: str = "ada") -> dict[str, Replayed]:
    """By request, all records of the owner, replayed."""
    database = DatabaseSettings(
        uri=SecretStr(environment["NEXUS_DATABASE__URI"]), name=environment["NEXUS_DATABASE__NAME"]
    )
    async with open_store(database) as store:
        reader = RecordReader(store)
        records: list[BuildRecord] = await reader.newest(owner, limit=100)
        return {each.request_id: await reader.replay(each) for each in records}


def long_run() -> dict[str, Any]:
    """A request whose answer has a megabyte."""
    run_id = "run_long"
    later = [a_message(f"{number}{LONG}", run_id) for number in range(60)]
    return a_request(run_id=run_id, later=later, run_metadata={"layout": "agent", "context_window": 4_000_000})


def questions() -> list[dict[str, Any]]:
    """Requests of every layout and format, of hard texts, and such as are refused."""
    asked = [
        a_request(text, run_metadata={"layout": layout, "format": form})
        for layout in ("dialogue", "agent", "thinking")
        for form in ("openai", "anthropic", "gemini")
        for text in ("早上好 😀 \u202eright to left",)
    ]
    return [
        *asked,
        a_request(""),
        long_run(),
        a_request(run_metadata={"layout": "nope"}),
        a_request(role="NOBODY"),
    ]


@pytest.mark.usefixtures("mode")
async def test_every_answer_is_replayed(environment: Environment) -> None:
    """Of all layouts and formats, of 1 MiB, and errors with their reasons; asked again, there is one record of each.

    They are there once the service has ended, however soon after its last answer.
    """
    asked = questions()
    environment = environment | {"NEXUS_BUS__MAX_PAYLOAD_BYTES": str(16 << 20)}
    async with hearing(environment) as heard, requesting(environment) as requester:
        async with serving(environment) as service:
            for request in [*asked, asked[0]]:
                await requester.publish(REQUEST, request)
            await requester.answered(*(each["id"] for each in asked))
            assert await service.stop() == 0
        if is_on_streams(environment):
            await heard.read()
        records = await replays(environment)
        assert records.keys() == {each["id"] for each in asked}
        for request in asked:
            replayed = records[request["id"]]
            assert (replayed.fault, {replayed.answer}) == ("", heard.answers[request["id"]])
        assert max(replayed.record.size for replayed in records.values()) > 1 << 20
        *_, refused, unread = (records[each["id"]].record for each in asked)
        assert (refused.outcome, unread.outcome) == ("UNKNOWN_LAYOUT", "INVALID_REQUEST")
        assert "layout" in refused.reason
        assert (unread.layout, unread.form, unread.session_id) == ("", "", "")
        assert unread.reason.startswith("role: ")


async def test_a_signed_answer_is_replayed_and_a_stranger_leaves_nothing(environment: Environment) -> None:
    """The bytes have their signature; what nobody has signed has an answer and no record, readable or not."""
    environment["NEXUS_BUS__SIGNING__KEYS"] = json.dumps({"k1": SECRET})
    environment["NEXUS_BUS__SIGNING__REQUIRED"] = "true"
    mine, refused, theirs, unread = a_request(), a_request(run_metadata={"layout": "nope"}), a_request(), a_request()
    async with hearing(environment) as heard, requesting(environment) as requester:
        async with serving(environment) as service:
            for each in (mine, refused):
                await requester.publish(REQUEST, SIGNING.signed(REQUEST, each))
            await requester.publish(REQUEST, theirs)
            await requester.publish(REQUEST, json.dumps(unread).encode()[:-9])
            await requester.answered(*(each["id"] for each in (mine, refused, theirs, unread)))
            await service.stop()
        records = await replays(environment)
        assert records.keys() == {mine["id"], refused["id"]}
        for request_id, replayed in records.items():
            assert (replayed.fault, {replayed.answer}) == ("", heard.answers[request_id])
        assert FIELD.encode() in (records[mine["id"]].answer or b"")


@pytest.mark.once
@pytest.mark.parametrize("record", ["manifest", "off"])
async def test_less_is_kept_where_less_is_asked_for(environment: Environment, record: str) -> None:
    """The manifest without a text; or nothing."""
    request = a_request("a canary")
    async with (
        serving(environment | {"NEXUS_CONTEXT__RECORD": record}) as service,
        requesting(environment) as requester,
    ):
        content = await requester.ask(request)
        await service.stop()
    records = await replays(environment)
    if record == "off":
        assert records == {}
        return
    (replayed,) = records.values()
    assert (replayed.answer, replayed.record.pieces) == (None, ())
    assert json.loads(replayed.record.manifest) == content["context"]


@pytest.mark.once
async def test_of_two_replicas_one_records_a_request(environment: Environment) -> None:
    """That which answered it; what is shared is kept once, whichever wrote it."""
    asked = [a_request(f"Question {number}?") for number in range(40)]
    async with hearing(environment) as heard, requesting(environment) as requester:
        async with serving(environment) as one, serving(environment) as other:
            for request in asked:
                await requester.publish(REQUEST, request)
            await requester.answered(*(each["id"] for each in asked))
            await one.stop()
            await other.stop()
        records = await replays(environment)
        assert {name: {each.answer} for name, each in records.items()} == heard.answers
        assert not any(each.fault for each in records.values())


@pytest.mark.once
async def test_without_mongodb_an_answer_has_no_record(environment: Environment, mongo_uri: str) -> None:
    """It comes all the same, and the service says so and goes on; the next one is recorded."""
    async with proxied(HOST, port_of(mongo_uri)) as proxy, requesting(environment) as requester:
        away = environment | behind(proxy) | {"NEXUS_DATABASE__TIMEOUT_MS": "500"}
        async with serving(away) as service:
            proxy.refuse()
            lost = a_request()
            assert (await requester.ask(lost))["status"] == "success"
            assert (await service.logged("record_lost"))["request_id"] == lost["id"]
            proxy.behave()
            kept = await requester.ask_until(a_request, lambda content: content["degraded"] == [])
            assert await service.stop() == 0
        records = await replays(environment)
        assert lost["id"] not in records
        assert kept in [json.loads(each.answer or b"{}").get("content") for each in records.values()]
