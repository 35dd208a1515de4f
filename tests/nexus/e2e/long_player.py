"""An orchestrator with its model and its tools, which plays a long session on a bus: redis-py and JSON alone."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from redis.asyncio import Redis

from tests.nexus.e2e.harness import (
    PATIENCE_S,
    REQUEST,
    Collector,
    Document,
    Environment,
    Requester,
    StreamRequester,
    a_message,
    a_request,
    is_on_streams,
    requesting,
)
from tests.nexus.support.long_session import Call, Run, Step

RESULTS: Final = "tools.results"
CALLS: Final = "tools.requests"
# On a bus that keeps nothing, an unanswered message is sent again after so long.
_AGAIN_S: Final = 2.0
_DEADLINE_MS: Final = 30_000


@dataclass(frozen=True, slots=True)
class Heard:
    """A context that was answered.

    Attributes:
        step: which of the run's messages the model is to say next.
        later: the messages of the run after its input that the request brought.
    """

    run: Run
    step: int
    later: Sequence[Document]
    content: Document


@dataclass(slots=True)
class Said:
    """Messages that were published and are to be recorded.

    Attributes:
        messages: ids, in order.
        blocks: of each answer that makes calls its id, and those of the results.
    """

    messages: list[str] = field(default_factory=list)
    blocks: list[frozenset[str]] = field(default_factory=list)


class Player:
    """Plays runs, one after the other.

    Args:
        requester, results: on the bus; results of tools by the calls that they answer.
        session: its id.
        metadata: of each run, besides its session and layout.
        said: where it is written down what was said.
        watch: is given every answer.
        meanwhile: is called when a request (a step's, by its number) or a call to Nexus (by its name) is on its way.
    """

    def __init__(
        self,
        requester: Requester,
        results: Collector,
        *,
        session: str = "long",
        metadata: Mapping[str, Any] | None = None,
        said: Said | None = None,
        watch: Callable[[Heard], None] = lambda _: None,
        meanwhile: Callable[[Run, int | str], Awaitable[None]] | None = None,
    ) -> None:
        self.requester = requester
        self.results = results
        self.session = session
        self.said = said or Said()
        self._metadata = {"layout": "agent", "session_id": session, **(metadata or {})}
        self._watch = watch
        self._meanwhile = meanwhile

    async def play(self, run: Run) -> None:
        """The run: a context for each message of the model, and the results of the calls that it makes."""
        opened = self._open(run)
        later: list[Document] = []
        for number, step in enumerate(run.steps):
            await self._ask(run, opened, later, number)
            said = await self.act(run, step)
            for call, result in zip(step.calls, said[1:], strict=True):
                assert result["content"]["status"] == "success", result
                assert call.expected in json.dumps(result["content"]["result"], ensure_ascii=False), (call, result)
            later += said
        # Streams are read side by side: only so is the next request later than all this.
        await self.requester.finished("llm.results", RESULTS)
        # What is said within one millisecond has no order where two replicas record it.
        await anyio.sleep(0.002)

    async def begin(self, run: Run) -> Document:
        """The first context of a run that is not played."""
        return await self._ask(run, self._open(run), [], 0)

    def _open(self, run: Run) -> Document:
        opened: Document = a_request(run.input, run_id=run.id)["content"]["history"][0]
        self.said.messages.append(opened["id"])
        return opened

    async def _ask(self, run: Run, opened: Document, later: Sequence[Document], number: int) -> Document:
        metadata = {"deadline_ms": _DEADLINE_MS}
        request = a_request(run.input, run_id=run.id, run_metadata=self._metadata, metadata=metadata)
        request["content"]["history"] = [opened, *later]
        await self._until_answered(REQUEST, request, lambda: self.requester.answered(request["id"]), run, number)
        _, answer = self.requester.answers.pop(request["id"])[0]
        self._watch(Heard(run, number, [*later], answer["content"]))
        return dict(answer["content"])

    async def call(self, run: Run, call: Call) -> Document:
        """The result of a call of one of Nexus's tools, which is made again while it has none."""
        asked = self.message(run, "SYSTEM", {"name": call.name, "args": call.arguments, "call_id": call.id})
        await self._until_answered(CALLS, asked, lambda: self.results.all_of(call.id), run, call.name)
        (result,) = await self.results.all_of(call.id)
        return result

    async def _until_answered(
        self, topic: str, message: Document, answered: Callable[[], Awaitable[Any]], run: Run, what: int | str
    ) -> None:
        await self.requester.publish(topic, message)
        if self._meanwhile:
            await self._meanwhile(run, what)
        keeps = isinstance(self.requester, StreamRequester)
        with anyio.fail_after(PATIENCE_S):
            while True:
                with anyio.move_on_after(PATIENCE_S if keeps else _AGAIN_S):
                    await answered()
                    return
                await self.requester.publish(topic, message)

    async def act(self, run: Run, step: Step) -> list[Document]:
        """Publish the model's message and have its calls answered. Returns it and the results in the order of calls."""
        calls = [_declared(call, flat=run.number % 3 == 0) for call in step.calls]
        said = self.message(run, "AI", {"content": step.text, "tool_calls": calls or None})
        await self.requester.publish("llm.results", said)
        self.said.messages.append(said["id"])
        results: dict[str, Document] = {}

        async def answer(call: Call) -> None:
            results[call.id] = await self._answer(run, call)
            self.said.messages.append(results[call.id]["id"])

        async with anyio.create_task_group() as tasks:
            # Tools that work at once are not done in the order in which they were called.
            for call in reversed(step.calls):
                tasks.start_soon(answer, call)
        messages = [said, *(results[call.id] for call in step.calls)]
        if calls:
            self.said.blocks.append(frozenset(message["id"] for message in messages))
        return messages

    async def _answer(self, run: Run, call: Call) -> Document:
        if call.is_of_nexus:
            return await self.call(run, call)
        content = {"result": call.result, "tool_name": call.name, "call_id": call.id, "status": "success"}
        result = self.message(run, "TOOL", content)
        await self.requester.publish(RESULTS, result)
        return result

    def message(self, run: Run, role: str, content: Any) -> Document:
        """A message of the run as an orchestrator publishes it."""
        return a_message(content, run.id, role, metadata={"session_id": self.session})


def _declared(call: Call, *, flat: bool) -> Document:
    if flat:
        return {"id": call.id, "name": call.name, "arguments": dict(call.arguments)}
    function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
    return {"id": call.id, "type": "function", "function": function}


@asynccontextmanager
async def on_bus(environment: Environment) -> AsyncIterator[tuple[Requester, Collector]]:
    """A requester, and a collector of tool results, which are held to their schema at the end."""
    url, prefix = environment["NEXUS_BUS__URL"], environment["NEXUS_BUS__CHANNEL_PREFIX"]
    async with requesting(environment) as requester, Redis.from_url(url) as redis, anyio.create_task_group() as tasks:
        results = Collector(
            redis, f"{prefix}{RESULTS}", lambda message: str(message["content"]["call_id"]), "tool-result"
        )
        await tasks.start(results.read if is_on_streams(environment) else results.subscribe)
        yield requester, results
        tasks.cancel_scope.cancel()
    assert results.faults == []
