"""Dead letters from the service that keeps them to the operator who sends them again (contract §1.6)."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from tests.nexus.e2e.harness import REQUEST, Service, a_request, serving
from tests.nexus.support.waiting import until

Environment = dict[str, str]

CORRUPT = b'{"id": "msg_1", \xff'


@dataclass(frozen=True)
class Scene:
    """A running service, its bus, and the command line beside it."""

    service: Service
    redis: Redis
    environment: Environment

    async def send(self, topic: str, payload: bytes) -> None:
        """Send as another program would."""
        name = self.environment["NEXUS_BUS__CHANNEL_PREFIX"] + topic
        if self.environment["NEXUS_BUS__MODE"] == "streams":
            await self.redis.xadd(name, {"message": payload})
        else:
            await self.redis.publish(name, payload)

    async def nexus(self, *words: str) -> str:
        """What `nexus dead-letters` prints; it must exit 0."""
        done = await anyio.run_process(
            [sys.executable, "-m", "nexus", "dead-letters", *words],
            check=False,
            stderr=subprocess.PIPE,
            env={**os.environ, **self.environment},
        )
        assert done.returncode == 0, (done.stdout, done.stderr)
        return done.stdout.decode()

    async def letters(self, *, but: str = "") -> list[dict[str, Any]]:
        """The letters that there are, once there are any but that one."""
        stream = self.environment["NEXUS_BUS__CHANNEL_PREFIX"] + "nexus:dead-letters"

        async def there() -> bool:
            entries: Any = await self.redis.xrange(stream)
            return any(entry.decode() != but for entry, _ in entries)

        await until(there)
        found: list[dict[str, Any]] = json.loads(await self.nexus("list", "--json"))["letters"]
        return found

    async def answered(self, request_id: str, times: int) -> None:
        """Wait until the service has answered the request anew that often."""

        async def has() -> bool:
            return sum(_is(line, "answered", request_id) for line in self.service.log) == times

        await until(has)


def _is(line: dict[str, Any], event: str, request_id: str) -> bool:
    return line.get("event") == event and line.get("request_id") == request_id


@pytest.fixture(params=["pubsub", "streams"])
def mode(request: pytest.FixtureRequest) -> str:
    """On both kinds of bus."""
    return str(request.param)


@asynccontextmanager
async def scene(environment: Environment, mode: str) -> AsyncIterator[Scene]:
    """Start a service that keeps bodies."""
    environment = {**environment, "NEXUS_BUS__MODE": mode, "NEXUS_BUS__DEAD_LETTER_BODIES": "true"}
    async with serving(environment) as service, Redis.from_url(environment["NEXUS_BUS__URL"]) as redis:
        yield Scene(service, redis, environment)


async def test_a_corrupt_message(environment: Environment, mode: str) -> None:
    """It is listed and shown; sent again it fails again, within the minute, and is a letter again; it is dropped."""
    async with scene(environment, mode) as there:
        await there.send("llm.results", CORRUPT)
        (letter,) = await there.letters()
        assert (letter["topic"], letter["size"], letter["body_kept"]) == ("llm.results", len(CORRUPT), True)
        assert letter["sha256"] == hashlib.sha256(CORRUPT).hexdigest()
        assert '{"id": "msg_1", \\xff' in await there.nexus("show", letter["id"], "--body")
        assert "sent again and dropped" in await there.nexus("replay", letter["id"])
        (again,) = await there.letters(but=letter["id"])
        assert again["id"] != letter["id"]
        assert {**again, "id": "", "at_ms": 0} == {**letter, "id": "", "at_ms": 0}
        assert await there.nexus("drop", "--all", "--yes") == f"{again['id']}: dropped\n"
        assert await there.nexus("list") == "There are no dead letters.\n"


async def test_a_request_is_answered_anew(environment: Environment, mode: str) -> None:
    """A request that has an answer, as one has whose build failed to the end, is built again when it is sent again."""
    request = a_request("What now?")
    payload = json.dumps(request).encode()
    async with scene(environment, mode) as there:
        await there.send(REQUEST, payload)
        await there.answered(request["id"], 1)
        letter: dict[Any, Any] = {
            "topic": REQUEST,
            "reason": "5 deliveries",
            "message_id": request["id"],
            "body": payload,
        }
        await there.redis.xadd(environment["NEXUS_BUS__CHANNEL_PREFIX"] + "nexus:dead-letters", letter)
        assert (await there.nexus("replay", "--all", "--yes")).endswith(": sent again and dropped\n")
        await there.answered(request["id"], 2)
        assert not any(_is(line, "answered_again", request["id"]) for line in there.service.log)
        assert await there.nexus("list") == "There are no dead letters.\n"
