"""A long session played on a running service, for the benchmarks, and what each request of it came to."""

import json
import os
import uuid
from bisect import bisect_left
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from pymongo import MongoClient
from pymongo.database import Database

from nexus.embedded import embedded_servers
from tests.nexus.e2e.harness import serving
from tests.nexus.e2e.long_judge import Account, account, tokens_of, tokens_of_one
from tests.nexus.e2e.long_player import Heard, Player, on_bus
from tests.nexus.support.long_session import Run
from tests.nexus.support.waiting import until

Document = dict[str, Any]

SESSION: Final = "long"


@dataclass(frozen=True, slots=True)
class Place:
    """A running service, with names on its servers that nobody else uses."""

    redis_url: str
    prefix: str
    database: Database[Document]

    @property
    def compactions(self) -> int:
        """How many there are."""
        return self.database["compactions"].count_documents({})

    async def at_rest(self) -> None:
        """Wait until the last turn is closed. That takes some 30 ms, for less than which nobody reads an answer."""

        async def is_closed() -> bool:
            return not self.database["turns"].count_documents({"work": "close"})

        await until(is_closed)


@asynccontextmanager
async def a_place(**settings: str) -> AsyncIterator[Place]:
    """A service on the servers that NEXUS_TEST_REDIS_URL and NEXUS_TEST_MONGO_URI name, else on the packaged ones."""
    async with AsyncExitStack() as stack:
        named = os.environ.get("NEXUS_TEST_REDIS_URL"), os.environ.get("NEXUS_TEST_MONGO_URI")
        if all(named):
            redis_url, mongo_uri = map(str, named)
        else:
            servers = await stack.enter_async_context(embedded_servers(None))
            redis_url, mongo_uri = servers.redis_url, servers.mongo_uri
        client = stack.enter_context(MongoClient[Document](mongo_uri))
        prefix, name = f"b{uuid.uuid4().hex}:", f"bench_{uuid.uuid4().hex}"
        stack.callback(client.drop_database, name)
        environment = {
            "NEXUS_BUS__URL": redis_url,
            "NEXUS_BUS__CHANNEL_PREFIX": prefix,
            "NEXUS_DATABASE__URI": mongo_uri,
            "NEXUS_DATABASE__NAME": name,
            "NEXUS_DATABASE__TIMEOUT_MS": "10000",
            "NEXUS_SYSTEM__LOG_FORMAT": "json",
            **settings,
        }
        await stack.enter_async_context(serving(environment))
        yield Place(redis_url, prefix, client[name])


@dataclass(frozen=True, slots=True)
class Request:
    """One request of the session.

    Attributes:
        tokens: of its context.
        raw: of what would be sent without Nexus; 0 for a request that would not have been made then.
        size: bytes of its messages, as compact JSON.
        shared: those of them with which the messages of the request before began.
        compacted: since the request before.
        updated: the working memory that it shows is another than that of the request before.
        seconds: until it was answered.
    """

    tokens: int
    raw: int
    size: int
    shared: int
    compacted: bool
    updated: bool
    seconds: float


@dataclass(slots=True)
class Ledger:
    """Takes down what each request comes to.

    The raw history is the identity and everything that was said before, but for what the model did for its memory: the
    calls, their results, and the requests that these made necessary.
    """

    place: Place
    requests: list[Request] = field(default_factory=list)
    _raw: int = 0
    _begun: int = 0
    _identity: int = 0
    _last: bytes = b""
    _compactions: int = 0
    _memory: str = ""

    def __call__(self, heard: Heard) -> None:
        """Take down a request."""
        content = heard.content
        messages = content["messages"]
        if not self._identity:
            self._identity = tokens_of(messages[:1])
        if heard.step == 0:
            self._begun += tokens_of_one({"role": "user", "content": heard.run.input})
        said = json.dumps(messages, ensure_ascii=False, separators=(",", ":")).encode()
        compactions, memory = self.place.compactions, _memory_in(messages)
        remembers = any(call.is_of_nexus for call in heard.run.steps[heard.step].calls)
        self.requests.append(
            Request(
                tokens_of(messages, content["tools"]),
                0 if remembers else self._identity + self._begun,
                len(said),
                _common(self._last, said),
                compactions != self._compactions,
                memory != self._memory,
                heard.seconds,
            )
        )
        self._last, self._compactions, self._memory = said, compactions, memory
        if not remembers:
            self._begun += sum(map(tokens_of_one, _said(heard)))


def _memory_in(messages: list[Document]) -> str:
    """`[WORKING_MEMORY]`."""
    texts = (str(message["content"]) for message in messages)
    return next(text for text in texts if text.startswith("[WORKING_MEMORY"))


def _common(one: bytes, other: bytes) -> int:
    """How many bytes they both begin with."""
    shorter = min(len(one), len(other))
    return bisect_left(range(1, shorter + 1), True, key=lambda length: one[:length] != other[:length])


def _said(heard: Heard) -> list[Mapping[str, Any]]:
    """What the model says to this context, and what its tools answer."""
    step = heard.run.steps[heard.step]
    functions = [{"name": call.name, "arguments": _compact(call.arguments)} for call in step.calls]
    calls = {"tool_calls": [{"function": function} for function in functions]} if functions else {}
    results = [call.result if isinstance(call.result, str) else _compact(call.result) for call in step.calls]
    answer = {"role": "assistant", "content": step.text, **calls}
    return [answer, *({"role": "tool", "content": result} for result in results)]


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


async def play(place: Place, runs: list[Run], window: int) -> tuple[list[Request], Account]:
    """Play all of the runs but the last, each when the one before is at rest, and ask for the last one's context."""
    ledger = Ledger(place)
    async with on_bus(place.redis_url, place.prefix, "pubsub") as ends:
        player = Player(*ends, session=SESSION, metadata={"context_window": window}, watch=ledger)
        for run in runs[:-1]:
            await player.play(run)
            await place.at_rest()
        content = await player.begin(runs[-1])
    return ledger.requests, account(place.database, SESSION, content)
