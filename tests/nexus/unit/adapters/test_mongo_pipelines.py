"""Which connection a command goes on, when there is another, and when the driver is to be asked instead."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import bson
import pytest
from bson.codec_options import CodecOptions
from pymongo import ReadPreference
from pymongo.errors import AutoReconnect, ConnectionFailure, ExecutionTimeout, NetworkTimeout, OperationFailure
from structlog.testing import capture_logs

from nexus.adapters.mongo_connections import NotTakenError, Taken
from nexus.adapters.mongo_pipelined import PipelinedConnection
from nexus.adapters.mongo_pipelines import NotPipelinedError, Pipelines
from nexus.adapters.mongo_wire import WireError
from tests.nexus.support.virtual_time import VirtualLoop

HERE = ("here", 27017)
CODEC: CodecOptions[dict[str, Any]] = CodecOptions()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the test in time of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(test())


class Wire(asyncio.Transport):
    """Replies to every command with `reply`, in the next pass of the loop; with None never."""

    def __init__(self, connection: PipelinedConnection, driver: "Driver") -> None:
        super().__init__()
        self._connection, self._driver = connection, driver

    def writelines(self, data: Any) -> None:
        """Reply."""
        for command in data:
            self._driver.asked += 1
            number = int.from_bytes(command[4:8], "little")
            if self._driver.reply is not None:
                document = bson.encode(self._driver.reply)
                header = b"".join(part.to_bytes(4, "little") for part in (21 + len(document), 0, number, 2013, 0))
                asyncio.get_running_loop().call_soon(self._connection.data_received, header + b"\0" + document)

    def abort(self) -> None:
        """Nothing is to be done."""


class Driver:
    """Gives connections to a server, and says what it knows of that.

    Attributes:
        reply: to every command.
        fault: raised instead of giving a connection.
        opening: set while connections are given.
        begun: how often one was asked for.
        taken: connections that were given.
        told: what left their contexts.
        asked: commands so far.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, most: int = 100) -> None:
        self.reply: Mapping[str, Any] | None = {"ok": 1.0}
        self.fault: Exception | None = None
        self.opening = asyncio.Event()
        self.opening.set()
        self.begun = 0
        self.taken: list[PipelinedConnection] = []
        self.told: list[Exception] = []
        self.asked = 0
        self.is_writable = True
        self.options = SimpleNamespace(
            pool_options=SimpleNamespace(max_pool_size=most), read_preference=ReadPreference.PRIMARY
        )
        self.delegate = self
        self.knows("RSPrimary", writable=True)
        monkeypatch.setattr("nexus.adapters.mongo_pipelines.taken_over", self._taken_over)

    def knows(self, kind: str, *, writable: bool) -> None:
        """What the driver knows of the server from now on."""
        servers = {HERE: SimpleNamespace(server_type_name=kind, is_writable=writable)}
        self.topology_description = SimpleNamespace(server_descriptions=lambda: servers)

    @asynccontextmanager
    async def _taken_over(self, _: object, protocol: PipelinedConnection, opening_s: float) -> AsyncIterator[Taken]:
        self.begun += 1
        async with asyncio.timeout(opening_s):
            await self.opening.wait()
        if self.fault:
            raise self.fault
        protocol.connection_made(Wire(protocol, self))
        self.taken.append(protocol)
        try:
            yield Taken(HERE, self.is_writable)
        except Exception as error:
            self.told.append(error)
            raise
        finally:
            protocol.end()


async def opened(driver: Driver) -> Pipelines:
    """With one connection, if there is any to be had."""
    pipelines = Pipelines(driver, reply_s=1.0)
    pipelines.open_one()
    await asyncio.sleep(0.01)
    return pipelines


def ask(pipelines: Pipelines) -> Coroutine[Any, Any, dict[str, Any]]:
    """The reply to some command."""
    return pipelines.run("nexus", {"find": "messages"}, CODEC)


def insert(pipelines: Pipelines) -> Coroutine[Any, Any, dict[str, Any]]:
    """The reply to a command that inserts."""
    return pipelines.run("nexus", {"insert": "messages"}, CODEC, [bson.encode({})])


def test_as_many_as_there_is_work_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One while there is little, eight where much waits, none more; what is beyond that is the driver's."""

    async def test() -> None:
        driver = Driver(monkeypatch)
        pipelines = await opened(driver)
        for _ in range(50):
            assert (await ask(pipelines))["ok"] == 1
        assert pipelines.connections == 1
        driver.reply = None
        waiting = []
        for _ in range(20):
            waiting += [asyncio.create_task(ask(pipelines)) for _ in range(20)]
            await asyncio.sleep(0.001)
        assert (pipelines.connections, driver.asked) == (8, 50 + 8 * 32)
        assert sum(task.done() for task in waiting) == 400 - 8 * 32
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(each) for each in found} == {NotPipelinedError, NetworkTimeout}
        await pipelines.close(1)
        assert pipelines.connections == 0
        with pytest.raises(NotPipelinedError):
            await ask(pipelines)

    run(test)


def test_nothing_goes_behind_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as there is another connection."""

    async def test() -> None:
        driver = Driver(monkeypatch)
        pipelines = await opened(driver)
        driver.reply = None
        slow = asyncio.create_task(ask(pipelines))
        await asyncio.sleep(0.1)
        driver.reply = {"ok": 1.0}
        behind = asyncio.create_task(ask(pipelines))
        await asyncio.sleep(0.01)
        assert (await ask(pipelines), pipelines.connections) == ({"ok": 1.0}, 2)
        assert [connection.calls for connection in driver.taken] == [1, 0]
        await behind
        slow.cancel()
        await pipelines.close(1)

    run(test)


def test_what_is_inserted_goes_behind_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the same connection, so that the server does one after the other, unless an insert or much else is there."""

    async def test() -> None:
        driver = Driver(monkeypatch)
        pipelines = await opened(driver)
        await asyncio.gather(*(ask(pipelines) for _ in range(5)))
        await asyncio.sleep(0.01)
        assert pipelines.connections == 2
        driver.reply = None
        waiting: list[asyncio.Task[dict[str, Any]]] = []

        async def calls(sent: Coroutine[Any, Any, dict[str, Any]]) -> list[int]:
            waiting.append(asyncio.create_task(sent))
            await asyncio.sleep(0.001)
            return [connection.calls for connection in driver.taken]

        assert await calls(ask(pipelines)) == [1, 0]
        assert await calls(insert(pipelines)) == [2, 0]
        # Nobody who can go elsewhere waits behind an insert, and nothing behind two of them.
        assert await calls(ask(pipelines)) == [2, 1]
        assert await calls(insert(pipelines)) == [2, 2]
        assert await calls(ask(pipelines)) == [3, 2, 0]
        assert await calls(insert(pipelines)) == [3, 2, 1]
        # What has ended carries nothing.
        driver.taken[0].end()
        assert await calls(insert(pipelines)) == [0, 2, 2, 0]
        await pipelines.close(1)
        assert {type(each) for each in await asyncio.gather(*waiting, return_exceptions=True)} == {NotPipelinedError}

    run(test)


@pytest.mark.parametrize("code", [91, 189, 391, 10058, 10107, 11600, 11602, 13435, 13436])
def test_a_server_that_is_not_to_be_asked(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver is, at once, and for a moment nothing else; that also holds for who waits on the same connection."""

    async def test() -> None:
        driver = Driver(monkeypatch)
        pipelines = await opened(driver)
        driver.reply = {"ok": 0.0, "code": code, "errmsg": "not here"}
        found = await asyncio.gather(*(ask(pipelines) for _ in range(3)), return_exceptions=True)
        assert {type(each) for each in found} == {NotPipelinedError}
        driver.reply = {"ok": 1.0}
        with pytest.raises(NotPipelinedError):
            await ask(pipelines)
        await asyncio.sleep(2)
        with pytest.raises(NotPipelinedError):
            await ask(pipelines)
        await asyncio.sleep(0.01)
        assert (await ask(pipelines), len(driver.taken), driver.told) == ({"ok": 1.0}, 2, [])
        await pipelines.close(1)

    run(test)


@pytest.mark.parametrize(
    ("code", "expected"), [(50, ExecutionTimeout), (2, OperationFailure), (None, OperationFailure)]
)
def test_what_the_server_refuses(code: int | None, expected: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """It would refuse it by the driver as well: that is not asked, and the connection stays."""

    async def test() -> None:
        driver = Driver(monkeypatch)
        pipelines = await opened(driver)
        driver.reply = {"ok": 0.0, "code": code, "errmsg": "no"}
        with pytest.raises(expected) as refused:
            await ask(pipelines)
        assert (type(refused.value), pipelines.connections, driver.asked) == (expected, 1, 1)
        await pipelines.close(1)

    run(test)


@pytest.mark.parametrize(
    ("kind", "writable", "stays"), [("RSSecondary", False, False), ("Unknown", False, True), ("RSPrimary", True, True)]
)
def test_when_the_driver_learns_of_another_primary(
    kind: str,
    writable: bool,
    stays: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is asked of the old one, and who waits there is told; while it looks for one, nothing is given up."""

    async def test() -> None:
        driver = Driver(monkeypatch)
        pipelines = await opened(driver)
        driver.reply = None
        waiting = asyncio.create_task(ask(pipelines))
        await asyncio.sleep(0)
        driver.knows(kind, writable=writable)
        driver.reply = {"ok": 1.0}
        if stays:
            assert await ask(pipelines) == {"ok": 1.0}
            waiting.cancel()
        else:
            with pytest.raises(NotPipelinedError):
                await ask(pipelines)
            with pytest.raises(NotPipelinedError):
                await waiting
        assert driver.told == []
        await pipelines.close(1)

    run(test)


def test_a_connection_that_ends_in_the_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is given one that has ended, whoever has not heard of it yet; the driver hears what is wrong, once."""

    async def test() -> None:
        driver = Driver(monkeypatch)
        pipelines = await opened(driver)
        driver.reply = None
        waiting = asyncio.create_task(ask(pipelines))
        await asyncio.sleep(0)
        driver.taken[0].connection_lost(ConnectionResetError())
        for _ in range(3):
            with pytest.raises(NotPipelinedError):
                await ask(pipelines)
        with pytest.raises(NotPipelinedError):
            await waiting
        assert [type(error) for error in driver.told] == [AutoReconnect]
        await pipelines.close(1)

    run(test)


def test_a_server_that_does_not_let_anybody_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is opened at a time, which ends in time, and is tried again; nobody waits for it, and closing does not."""

    async def test() -> None:
        driver = Driver(monkeypatch)
        driver.opening.clear()
        pipelines = await opened(driver)
        for number in range(5):
            for _ in range(10):
                with pytest.raises(NotPipelinedError):
                    await ask(pipelines)
                await asyncio.sleep(0.01)
            assert driver.begun == number + 1
            # As long as it may take, and a pause.
            await asyncio.sleep(2)
        driver.opening.set()
        await asyncio.sleep(2)
        with pytest.raises(NotPipelinedError):
            await ask(pipelines)
        await asyncio.sleep(0.01)
        assert await ask(pipelines) == {"ok": 1.0}
        driver.opening.clear()
        driver.reply = None
        late = [asyncio.create_task(ask(pipelines)) for _ in range(10)]
        await asyncio.sleep(0.01)
        await pipelines.close(0.2)
        assert {type(each) for each in await asyncio.gather(*late, return_exceptions=True)} == {NotPipelinedError}

    run(test)


@pytest.mark.parametrize(
    ("fault", "said", "again"),
    [
        (NotTakenError("TLS"), ["mongo_not_pipelined"], False),
        (WireError("?"), ["mongo_not_pipelined"], False),
        (AttributeError("sock"), ["mongo_not_pipelined"], False),
        (RuntimeError("no thread"), ["mongo_not_pipelined"], True),
        (ConnectionFailure("away"), ["mongo_pipeline_lost"], True),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_cannot_be_had(
    fault: Exception,
    said: list[str],
    again: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is said, and the driver is asked; what may be otherwise later is tried again later."""

    async def test() -> None:
        driver = Driver(monkeypatch)
        driver.fault = fault
        with capture_logs() as logs:
            pipelines = await opened(driver)
            for _ in range(5):
                with pytest.raises(NotPipelinedError):
                    await ask(pipelines)
        assert [line["event"] for line in logs] == said
        driver.fault = None
        await asyncio.sleep(61)
        with pytest.raises(NotPipelinedError):
            await ask(pipelines)
        await asyncio.sleep(0.01)
        assert pipelines.connections == again
        await pipelines.close(1)

    run(test)


def test_a_server_that_is_no_primary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a driver is told of it alone, it asks that, and nothing is asked past it."""

    async def test() -> None:
        driver = Driver(monkeypatch)
        driver.is_writable = False
        pipelines = await opened(driver)
        for _ in range(100):
            with pytest.raises(NotPipelinedError):
                await ask(pipelines)
            await asyncio.sleep(0.1)
        assert (len(driver.taken), driver.asked) == (1, 0)
        await pipelines.close(1)

    run(test)
