"""A connection that carries several commands at once: who gets which reply, and what its end means to whom."""

import asyncio
from collections.abc import Callable, Coroutine
from struct import pack, unpack_from
from typing import Any

import bson
import pytest
from pymongo.errors import AutoReconnect, NetworkTimeout

from nexus.adapters.mongo_pipelined import PipelinedConnection
from nexus.adapters.mongo_wire import WireError
from tests.nexus.support.virtual_time import VirtualLoop


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the test in time of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(test())


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.aborted = False

    def writelines(self, data: Any) -> None:
        """Keep it as one write."""
        self.writes.append(b"".join(data))

    def abort(self) -> None:
        """Note it."""
        self.aborted = True

    @property
    def asked(self) -> list[int]:
        """The ids of the commands that were written."""
        found, data = [], b"".join(self.writes)
        while data:
            length, number = unpack_from("<ii", data)
            found.append(number)
            data = data[length:]
        return found


def opened(reply_s: float = 5.0) -> tuple[PipelinedConnection, Wire]:
    """A connection, and what it is written to."""
    connection, wire = PipelinedConnection(reply_s), Wire()
    connection.connection_made(wire)
    return connection, wire


def say(connection: PipelinedConnection, *to: int) -> None:
    """Have the server reply to these commands, each with its id."""
    documents = [(number, bson.encode({"number": number})) for number in to]
    connection.data_received(
        b"".join(pack("<iiiiIB", 21 + len(each), 0, number, 2013, 0, 0) + each for number, each in documents)
    )


def test_each_gets_its_own_reply() -> None:
    """Whatever their order, and although some do not wait for theirs any more."""

    async def test() -> None:
        connection, wire = opened()
        replies = [connection.call({"ping": 1}) for _ in range(4)]
        await asyncio.sleep(0)
        assert wire.asked == [1, 2, 3, 4]
        replies[2].cancel()
        say(connection, 3, 1)
        say(connection, 2)
        assert [bson.decode(await reply)["number"] for reply in replies[:2]] == [1, 2]
        assert (connection.calls, replies[3].done(), connection.lost.done()) == (1, False, False)

    run(test)


def test_what_is_called_in_one_pass_is_written_together() -> None:
    """The first at once, since nobody may come after it; nothing while the server does not keep up."""

    async def test() -> None:
        connection, wire = opened()
        for _ in range(5):
            connection.call({"ping": 1})
        await asyncio.sleep(0)
        assert len(wire.writes) == 2
        connection.pause_writing()
        connection.call({"ping": 1})
        await asyncio.sleep(0)
        assert len(wire.writes) == 2
        connection.resume_writing()
        assert (len(wire.writes), wire.asked) == (3, [1, 2, 3, 4, 5, 6])

    run(test)


def test_who_waits_for_too_long_hears_so() -> None:
    """While others are served, only he does. When the server is silent, whoever has still time may ask elsewhere."""

    async def test() -> None:
        connection, wire = opened(reply_s=5)
        watching = asyncio.create_task(connection.watch())
        await asyncio.sleep(3)
        early = connection.call({"find": "a"})
        await asyncio.sleep(4)
        say(connection, 1)
        await early
        slow = connection.call({"find": "b"})
        await asyncio.sleep(4)
        served = connection.call({"find": "c"})
        say(connection, 3)
        await served
        with pytest.raises(NetworkTimeout):
            await slow
        assert not wire.aborted
        late = connection.call({"find": "d"})
        await asyncio.sleep(2.9)
        later = connection.call({"find": "e"})
        with pytest.raises(NetworkTimeout):
            await late
        with pytest.raises(AutoReconnect) as lost:
            await later
        assert not isinstance(lost.value, NetworkTimeout)
        with pytest.raises(NetworkTimeout):
            await watching
        assert wire.aborted

    run(test)


@pytest.mark.parametrize("way", ["closed", "reset", "nonsense", "a reply to nobody"])
@pytest.mark.parametrize("busy", [True, False])
def test_the_end_of_a_connection(way: str, *, busy: bool) -> None:
    """Whoever waits is told, and whoever watches, unless nobody used it: then nothing is wrong with the server."""

    async def test() -> None:
        connection, _ = opened()
        watching = asyncio.create_task(connection.watch())
        waiting = [connection.call({"find": "a"}), connection.call({"find": "b"})] if busy else []
        await asyncio.sleep(0)
        if way == "nonsense":
            connection.data_received(b"\xff" * 64)
        elif way == "a reply to nobody":
            say(connection, 77)
        else:
            connection.connection_lost(None if way == "closed" else ConnectionResetError())
        for reply in waiting:
            with pytest.raises(AutoReconnect):
                await reply
        wrong = WireError if way in {"nonsense", "a reply to nobody"} else AutoReconnect
        if busy:
            with pytest.raises(wrong):
                await watching
        else:
            await watching
        connection.connection_lost(None)
        with pytest.raises(AutoReconnect):
            connection.call({"find": "c"})

    run(test)


def test_nobody_keeps_a_connection_that_is_not_used() -> None:
    """After three minutes it goes back; a call in between keeps it for as long again."""

    async def test() -> None:
        connection, wire = opened()
        watching = asyncio.create_task(connection.watch())
        await asyncio.sleep(120)
        reply = connection.call({"ping": 1})
        say(connection, 1)
        await reply
        await asyncio.sleep(120)
        assert not wire.aborted
        await watching
        assert wire.aborted

    run(test)
