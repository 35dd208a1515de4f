"""Calls to MongoDB: how many run at once, who ends them, and what a failure means to those that come after it."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from bson.errors import InvalidBSON, InvalidDocument
from pymongo.errors import (
    AutoReconnect,
    NetworkTimeout,
    NotPrimaryError,
    OperationFailure,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
)

from nexus.adapters.mongo.client import Calls, Operations, driver_call, insert_call
from nexus.core.errors import NexusError, StoreRejectedError, StoreUnavailableError
from tests.nexus.support.virtual_time import VirtualLoop


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the test in time of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(test())


class Server:
    """Says what it was told to say, and counts how often it was asked."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.asked = 0
        self.answered = 0
        self.fault = fault
        self.open = asyncio.Event()
        self.open.set()

    async def ask(self) -> int:
        """Which call this is."""
        self.asked += 1
        number = self.asked
        await self.open.wait()
        self.answered += 1
        if self.fault:
            raise self.fault
        return number


@pytest.mark.parametrize("fault", [AutoReconnect("gone"), ServerSelectionTimeoutError("none")], ids=repr)
@pytest.mark.parametrize("waited_for", [True, False], ids=["waited for", "left"])
def test_without_a_server_calls_fail_at_once_for_a_moment(fault: Exception, *, waited_for: bool) -> None:
    """Nobody waits for the time limit twice, also where the one who called first has left by then."""

    async def test() -> None:
        calls, server = Calls(2), Server(fault)
        server.open.clear()
        first = asyncio.create_task(calls.run(server.ask))
        await asyncio.sleep(0.1)
        if not waited_for:
            first.cancel()
        server.open.set()
        with pytest.raises(StoreUnavailableError) if waited_for else suppress(asyncio.CancelledError):
            await first
        await calls.finish(1)
        for _ in range(3):
            with pytest.raises(StoreUnavailableError, match="a moment ago"):
                await calls.run(server.ask)
        assert server.asked == 1
        server.fault = None
        await asyncio.sleep(0.6)
        assert await calls.run(server.ask) == 2

    run(test)


def test_without_a_server_few_calls_wait_for_it() -> None:
    """Of many that go on coming, two a second wait for their time limit, until one is answered."""

    async def test() -> None:
        calls, server = Calls(100), Server(ServerSelectionTimeoutError("none"))
        failed = [0]

        async def call() -> None:
            try:
                await calls.run(server.ask)
            except StoreUnavailableError:
                failed[0] += 1

        with suppress(StoreUnavailableError):
            await calls.run(server.ask)
        # From now on the driver looks for a server until the call's time limit ends.
        server.open.clear()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(300):
                await asyncio.sleep(0.01)
                tasks.create_task(call())
            await asyncio.sleep(0)
            assert server.asked == 1 + 5
            assert failed == [300 - 5]
            server.fault = None
            server.open.set()
        tried = server.asked
        await asyncio.gather(*(calls.run(server.ask) for _ in range(9)))
        assert server.asked == tried + 9

    run(test)


@pytest.mark.parametrize(
    "fault",
    [NetworkTimeout("slow"), WaitQueueTimeoutError("full"), NotPrimaryError("moved"), OperationFailure("no", 50)],
    ids=repr,
)
def test_a_fault_of_one_call_is_no_other_call_s(fault: Exception) -> None:
    """What says nothing about the server has the next call made."""

    async def test() -> None:
        calls, server = Calls(1), Server(fault)
        for _ in range(3):
            with pytest.raises(StoreUnavailableError):
                await calls.run(server.ask)
        assert server.asked == 3

    run(test)


def test_calls_that_nobody_waits_for_hold_their_places() -> None:
    """They run to their ends, and no more than the limit run; who waits for a place is served in turn, or may leave."""

    async def test() -> None:
        calls, server = Calls(2), Server()
        server.open.clear()
        tasks = [asyncio.create_task(calls.run(server.ask)) for _ in range(6)]
        await asyncio.sleep(0.1)
        for task in tasks[:3]:
            task.cancel()
        await asyncio.sleep(0.1)
        assert server.asked == 2
        server.open.set()
        await asyncio.wait(tasks)
        assert [task.cancelled() for task in tasks] == [True] * 3 + [False] * 3
        assert [task.result() for task in tasks[3:]] == [3, 4, 5]
        assert server.answered == 5

    run(test)


class Collection(Operations):
    """A collection whose indexes are being made, at a client that makes one call at a time."""

    def __init__(self) -> None:
        self.made = asyncio.Event()

        async def indexed() -> None:
            await self.made.wait()

        super().__init__(Calls(1), indexed)

    @driver_call
    async def read(self) -> str:
        """Read."""
        return "read"

    @insert_call
    async def insert(self) -> str:
        """Insert."""
        return "inserted"


def test_inserts_that_wait_for_indexes_keep_no_read_waiting() -> None:
    """They take a place only once the indexes are made."""

    async def test() -> None:
        collection = Collection()
        inserts = [asyncio.create_task(collection.insert()) for _ in range(3)]
        await asyncio.sleep(0.1)
        assert await asyncio.wait_for(collection.read(), 1) == "read"
        collection.made.set()
        assert await asyncio.gather(*inserts) == ["inserted"] * 3

    run(test)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (InvalidBSON("a bit was flipped"), StoreUnavailableError),
        (KeyError("cursor"), StoreUnavailableError),
        (TypeError("no list"), StoreUnavailableError),
        (InvalidDocument("no BSON"), StoreRejectedError),
        (OverflowError("more than 64 bits"), StoreRejectedError),
        (StoreRejectedError("too long"), StoreRejectedError),
    ],
    ids=repr,
)
def test_what_a_reply_may_lead_to(fault: Exception, kind: type[NexusError]) -> None:
    """A reply that cannot be read counts as none; only what cannot be encoded is refused for good."""

    async def test() -> None:
        with pytest.raises(NexusError) as raised:
            await Calls(1).run(Server(fault).ask)
        assert type(raised.value) is kind

    run(test)
