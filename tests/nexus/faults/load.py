"""An orchestrator under test conditions: it sends requests, sends them again, and writes down all that it sees."""

import hashlib
import itertools
import json
import os
import random
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import anyio
from anyio.abc import TaskStatus
from redis.exceptions import RedisError

from tests.nexus.e2e.harness import RESPONSE, a_request
from tests.nexus.faults.judge import History
from tests.nexus.faults.wire import WIRES, Wire, connect

CANARY: Final = "CANARY"
_MARK: Final = re.compile(rf"{CANARY}_([a-z0-9]+)_[0-9a-f]+")
MARK_BYTES: Final = re.compile(_MARK.pattern.encode())
_PAUSE_S: Final = 0.05
# Less on a machine that is busy with other things: there requests are late or given up, which shows nothing.
_PACE: Final = float(os.environ.get("NEXUS_FAULTS_PACE", "1"))
_BARRIER: Final = "barrier"


Seal = Callable[[dict[str, Any]], dict[str, Any]]


def a_mark(owner: str) -> str:
    """A text that occurs nowhere else and names whose it is."""
    return f"{CANARY}_{owner}_{uuid.uuid4().hex[:12]}"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. `patience_s`: how long its requester sends it again and waits."""

    id: str
    run: str
    owner: str
    mark: str
    payload: bytes
    deadline_ms: int
    patience_s: float


def an_ask(
    owner: str, *, deadline_ms: int, patience_s: float, say: str = "What now?", seal: Seal | None = None, **changes: Any
) -> Asked:
    """A request of `owner` with a mark in its input, and what else to `say`; `seal` signs it."""
    mark = a_mark(owner)
    request = a_request(f"{mark} {say}", owner=owner, metadata={"deadline_ms": deadline_ms}, **changes)
    payload = json.dumps(seal(request) if seal else request).encode()
    return Asked(request["id"], request["run_id"], owner, mark, payload, deadline_ms, patience_s)


class Load:
    """Requests on their way, and every answer that was heard.

    Attributes:
        resends: how often a request was sent again.
        whole_at: when the last context came in which nothing was missing.
        resend_s: after how long a request is sent again.
    """

    def __init__(self, wire: Wire, history: History, *, resend_s: float = 1.0) -> None:
        self.wire = wire
        self.history = history
        self.resends = 0
        self.whole_at = 0.0
        self.resend_s = resend_s
        self._asked = 0
        self._went_on = anyio.Event()
        self._waiting: dict[str, anyio.Event] = {}

    async def listen(self, *, task_status: TaskStatus[None]) -> None:
        """Write down every answer. Run in a task of its own."""
        begun = False
        async for payload in self.wire.answers():
            if payload is not None:
                self._heard(payload)
            elif not begun:
                begun = True
                task_status.started()

    async def reached(self, count: int) -> None:
        """Return when `count` requests have been sent."""
        while self._asked < count:
            await self._went_on.wait()

    async def ask(self, asked: Asked) -> bool:
        """Send a request until it is answered or its requester's patience ends. Returns whether it was answered."""
        answered = self._waiting[asked.id] = anyio.Event()
        self._asked += 1
        self._went_on.set()
        self._went_on = anyio.Event()
        names = {"id": asked.id, "owner": asked.owner, "run": asked.run, "mark": asked.mark}
        self.history.note("invoke", **names, deadline_ms=asked.deadline_ms)
        with anyio.move_on_after(asked.patience_s):
            await self._send(asked)
            while not answered.is_set():
                with anyio.move_on_after(self.resend_s):
                    await answered.wait()
                    break
                self.resends += 1
                await self._send(asked)
        return answered.is_set()

    async def abandon(self, asked: Asked, after_s: float) -> None:
        """Ask, and go away after a while, whether there is an answer or not."""
        with anyio.move_on_after(after_s):
            if await self.ask(asked):
                return
        self.history.happened("abandoned", id=asked.id)

    async def offer(
        self,
        count: int,
        rate: float,
        make: Callable[[int], Asked],
        *,
        going_on: anyio.Event | None = None,
        abandoned: float = 0.0,
        most: int = 100,
    ) -> None:
        """Ask `count` times at `rate` a second (times `NEXUS_FAULTS_PACE`), and more often until `going_on` is set.

        A share of `abandoned` of the requests is given up within a tenth of a second. At `most` so many wait at once:
        where the machine is what limits, asking faster than it can answer would show nothing. Returns when each has
        been answered or given up.
        """
        begin = time.monotonic()
        room = anyio.Semaphore(most)

        async def ask(asked: Asked) -> None:
            try:
                if random.random() < abandoned:  # noqa: S311  # which ones does not matter
                    await self.abandon(asked, random.uniform(0, 0.1))  # noqa: S311
                else:
                    await self.ask(asked)
            finally:
                room.release()

        async with anyio.create_task_group() as tasks:
            for number in itertools.count():
                await anyio.sleep(max(0.0, begin + number / (rate * _PACE) - time.monotonic()))
                await room.acquire()
                if number >= count and (going_on is None or going_on.is_set()):
                    return
                tasks.start_soon(ask, make(number))

    @asynccontextmanager
    async def offered(
        self, rate: float, make: Callable[[int], Asked], *, least: int = 0, abandoned: float = 0.0, most: int = 100
    ) -> AsyncIterator[None]:
        """Ask all the time, as `offer` does, until the context ends; at least so often."""
        over = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: self.offer(least, rate, make, going_on=over, abandoned=abandoned, most=most))
            yield
            over.set()

    async def settled(self) -> None:
        """Return when everything that was announced before has been heard."""
        name = uuid.uuid4().hex
        heard = self._waiting[name] = anyio.Event()
        payload = json.dumps({_BARRIER: name}).encode()
        with anyio.fail_after(20):
            while not heard.is_set():
                # A connection that Redis has left behind is found out by using it.
                with suppress(RedisError, OSError):
                    await self.wire.say(RESPONSE, payload)
                with anyio.move_on_after(1):
                    await heard.wait()

    async def _send(self, asked: Asked) -> None:
        while True:
            try:
                await self.wire.send(asked.id, asked.payload)
            except (RedisError, OSError):
                await anyio.sleep(_PAUSE_S)
            else:
                return

    def _heard(self, payload: bytes) -> None:
        answer = json.loads(payload)
        if _BARRIER in answer:
            self._done(answer[_BARRIER])
            return
        content = answer["content"]
        request_id = answer["metadata"]["request_id"]
        found = MARK_BYTES.findall(payload)
        heard_at = self.history.note(
            "ok" if content["status"] == "success" else "fail",
            request_id=request_id,
            answer_id=answer["id"],
            sha256=hashlib.sha256(payload).hexdigest(),
            owner=answer["owner_key"],
            run=answer["run_id"],
            outcome="success" if content["status"] == "success" else content["error"]["code"],
            error=content.get("error"),
            degraded=content.get("degraded", []),
            marks=_marks_of_this_moment(content["messages"]),
            owners=sorted({owner.decode() for owner in found}),
            seen=len(found),
        )
        if content["status"] == "success" and not content["degraded"]:
            self.whole_at = heard_at
        self._done(request_id)

    def _done(self, name: str) -> None:
        if name in self._waiting:
            self._waiting[name].set()


def _marks_of_this_moment(messages: list[dict[str, Any]]) -> list[str]:
    texts = [str(message["content"]) for message in messages]
    now = [text for text in texts if text.startswith("[THIS_MOMENT]")]
    # In other layouts than `dialogue` the input is in the last message that has a mark.
    now = now or [text for text in texts if _MARK.search(text)][-1:]
    return sorted({found.group() for text in now for found in _MARK.finditer(text)})


@asynccontextmanager
async def loading(url: str, prefix: str, mode: str, history: History) -> AsyncIterator[Load]:
    """An orchestrator that listens."""
    async with connect(url) as redis, anyio.create_task_group() as tasks:
        load = Load(WIRES[mode](redis, prefix), history)
        await tasks.start(load.listen)
        try:
            yield load
        finally:
            tasks.cancel_scope.cancel()
