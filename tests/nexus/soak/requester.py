"""The orchestrator of a soak: plays scripts, sends again what is not answered, and judges each answer as it comes."""

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import anyio
from redis.asyncio import Redis
from redis.exceptions import RedisError

from tests.nexus.e2e.harness import RESPONSE, Document
from tests.nexus.faults.wire import StreamsWire
from tests.nexus.soak.judge import MOST_ATTEMPTS, Faults, Heard, judge_answer
from tests.nexus.soak.plan import RESULTS, SEARCH, Script, request_id

DEADLINE_MS: Final = 20_000
# Far beyond a deadline and a lease: what is not answered by then is lost.
_PATIENCE_S: Final = 90.0
_RESEND_S: Final = 2.0
_PAUSE_S: Final = 0.05
_ASKED: Final = re.compile(r"ask-\d+-\d+-\d+")


class Requester:
    """Plays scripts, several at once.

    Attributes:
        answered: requests of this process that have their answer.
        seen: of all answers, what they were.
    """

    def __init__(self, redis: Redis, prefix: str, heard: Heard, faults: Faults) -> None:
        self.answered = 0
        self.seen = Counter[str]()
        self._wire = StreamsWire(redis, prefix, (RESPONSE, RESULTS, f"{SEARCH}.result"))
        self._heard = heard
        self._faults = faults
        self._waiting: dict[str, tuple[Document, str, asyncio.Future[bool]]] = {}

    async def listen(self) -> None:
        """Judge every answer. Run in a task of its own."""
        async for payload in self._wire.answers():
            if payload is not None:
                self._take(payload)

    async def play(self, script: Script) -> None:
        """Send all of a script, one step after another, but for requests that were answered before."""
        for number, step in enumerate(script.steps):
            if not step.is_asked:
                await self._insist(lambda step=step: self._wire.say(step.topic, json.dumps(step.message).encode()))  # type: ignore[misc]
            elif not self._heard.is_answered(script.number, number):
                await self._ask(script, number)
                self.answered += 1

    async def _ask(self, script: Script, number: int) -> None:
        step = script.steps[number]
        for attempt in range(len(self._heard.outcomes(script.number, number)), MOST_ATTEMPTS):
            name = request_id(script.number, number, attempt)
            metadata = {**step.message["metadata"], "deadline_ms": DEADLINE_MS}
            message = {**step.message, "id": name, "metadata": metadata}
            answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self._waiting[name] = (message, step.mark, answered)
            try:
                if await self._until_answered(name, json.dumps(message).encode(), step.topic, answered):
                    return
            finally:
                del self._waiting[name]
            await anyio.sleep(2**attempt)
        self._faults.note("refused", f"{request_id(script.number, number, 0)}: after {MOST_ATTEMPTS} attempts")

    async def _until_answered(self, name: str, payload: bytes, topic: str, answered: asyncio.Future[bool]) -> bool:
        """Whether the answer is final; False where a retry may help. What has no answer in the end is lost."""
        ends = time.monotonic() + _PATIENCE_S
        while time.monotonic() < ends:
            await self._insist(lambda: self._wire.send(name, payload, topic))
            with anyio.move_on_after(_RESEND_S):
                return await asyncio.shield(answered)
            self.seen["sent again"] += 1
        # It is counted at the end, by its empty slot.
        return True

    async def _insist(self, send: Callable[[], Any]) -> None:
        while True:
            try:
                await send()
            except (RedisError, OSError):
                await anyio.sleep(_PAUSE_S)
            else:
                return

    def _take(self, payload: bytes) -> None:
        answer = json.loads(payload)
        name = str(answer["metadata"].get("request_id"))
        if not _ASKED.fullmatch(name):
            # A result that was sent from here.
            return
        content = answer["content"]
        # What a tool says in words is an answer, whatever has become of the call.
        error = content["error"] if answer["role"] == "SYSTEM" and content["status"] == "error" else None
        retryable = bool((error or content).get("retryable"))
        if not self._heard.answer(name, payload, retryable=retryable):
            self._faults.note("twice", f"{name} was answered a second time, differently")
        waiting = self._waiting.get(name)
        if waiting is None:
            self.seen["heard again"] += 1
            return
        asked, mark, answered = waiting
        if answered.done():
            self.seen["heard again"] += 1
            return
        self._count(content, error)
        judge_answer(payload, answer, asked, "" if error else mark, self._faults)
        if error and (not retryable or error["code"] == "INTERNAL"):
            self._faults.note("refused", f"{name}: {error['code']}: {error['message']}")
        answered.set_result(not retryable)

    def _count(self, content: Document, error: Document | None) -> None:
        if error:
            self.seen[error["code"]] += 1
        elif content.get("degraded"):
            self.seen["contexts with a part missing"] += 1
        else:
            self.seen["contexts" if "messages" in content else "searches and calls"] += 1
