"""Dead letters from the service that keeps them to the operator who sends them again (contract §1.6)."""

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.nexus.e2e.harness import REQUEST, Document, Environment, Requester, Service, a_request, requesting, serving
from tests.nexus.support.desk import Desk
from tests.nexus.support.waiting import until

CORRUPT = b'{"id": "msg_1", \xff'


@dataclass(frozen=True)
class Scene:
    """A running service, its bus, and the command line beside it."""

    service: Service
    requester: Requester
    desk: Desk

    @property
    def stream(self) -> str:
        """Where the letters are."""
        return f"{self.requester.prefix}nexus:dead-letters"

    async def letters(self, *, but: str = "") -> list[Document]:
        """The letters that there are, once there are any but that one."""

        async def there() -> bool:
            entries: Any = await self.requester.redis.xrange(self.stream)
            return any(entry.decode() != but for entry, _ in entries)

        await until(there)
        found: list[Document] = json.loads(await self.desk.said("list", "--json"))["letters"]
        return found

    async def answered(self, request_id: str, times: int) -> None:
        """Wait until the service has answered the request anew that often."""

        async def has() -> bool:
            return len(self.events("answered", request_id)) == times

        await until(has)

    def events(self, event: str, request_id: str) -> list[Document]:
        """The log lines of that event about a request."""
        return [line for line in self.service.log if (line["event"], line.get("request_id")) == (event, request_id)]


@asynccontextmanager
async def scene(environment: Environment) -> AsyncIterator[Scene]:
    """Start a service that keeps bodies."""
    environment |= {"NEXUS_BUS__DEAD_LETTER_BODIES": "true"}
    async with serving(environment) as service, requesting(environment) as requester:
        yield Scene(service, requester, Desk("dead-letters", environment))


@pytest.mark.usefixtures("mode")
async def test_a_corrupt_message(environment: Environment) -> None:
    """It is listed and shown; sent again it fails again, within the minute, and is a letter again; it is dropped."""
    async with scene(environment) as there:
        await there.requester.publish("llm.results", CORRUPT)
        (letter,) = await there.letters()
        assert (letter["topic"], letter["size"], letter["body_kept"]) == ("llm.results", len(CORRUPT), True)
        assert letter["sha256"] == hashlib.sha256(CORRUPT).hexdigest()
        assert '{"id": "msg_1", \\xff' in await there.desk.said("show", letter["id"], "--body")
        assert "sent again and dropped" in await there.desk.said("replay", letter["id"])
        (again,) = await there.letters(but=letter["id"])
        assert again["id"] != letter["id"]
        assert {**again, "id": "", "at_ms": 0} == {**letter, "id": "", "at_ms": 0}
        assert await there.desk.said("drop", "--all", "--yes") == f"{again['id']}: dropped\n"
        assert await there.desk.said("list") == "There are no dead letters.\n"


@pytest.mark.usefixtures("mode")
async def test_a_request_is_answered_anew(environment: Environment) -> None:
    """A request that has an answer, as one has whose build failed to the end, is built again when it is sent again."""
    request = a_request("What now?")
    async with scene(environment) as there:
        await there.requester.publish(REQUEST, request)
        await there.answered(request["id"], 1)
        letter: dict[Any, Any] = {"topic": REQUEST, "reason": "5 deliveries", "message_id": request["id"]}
        await there.requester.redis.xadd(there.stream, {**letter, "body": json.dumps(request)})
        assert (await there.desk.said("replay", "--all", "--yes")).endswith(": sent again and dropped\n")
        await there.answered(request["id"], 2)
        assert there.events("answered_again", request["id"]) == []
        assert await there.desk.said("list") == "There are no dead letters.\n"
