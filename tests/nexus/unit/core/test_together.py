"""Reads that many ask for at once, done together."""

import asyncio
from collections.abc import Sequence

import anyio
import pytest

from nexus.core.together import Together

LONG_S = 60.0


class Reading:
    """A read that ends when the test says so.

    Attributes:
        asked: the keys of each read.
    """

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self._ends: list[asyncio.Future[None]] = []

    async def read(self, keys: Sequence[str]) -> list[str]:
        """Each key in capitals, once the read is ended."""
        self.asked.append([*keys])
        end = asyncio.get_running_loop().create_future()
        self._ends.append(end)
        await end
        return [key.upper() for key in keys]

    async def end(self, number: int = 0, error: Exception | None = None) -> None:
        """End one of the reads that are under way."""
        end = self._ends.pop(number)
        if error:
            end.set_exception(error)
        else:
            end.set_result(None)
        await anyio.wait_all_tasks_blocked()


@pytest.fixture
def reading() -> Reading:
    """A read."""
    return Reading()


async def asked(together: Together[str, str], keys: str) -> list[asyncio.Task[str]]:
    """Tasks that ask for one of these each."""
    tasks = [asyncio.create_task(together.get(key)) for key in keys]
    await anyio.wait_all_tasks_blocked()
    return tasks


async def test_groups_follow_from_how_many_ask(reading: Reading) -> None:
    """The first go by themselves; what is asked for meanwhile goes together, and each gets what it asked for."""
    together = Together(reading.read, most=10, at_once=2, long_s=LONG_S)
    tasks = await asked(together, "abcde")
    assert reading.asked == [["a"], ["b"]]
    await reading.end(1)
    assert reading.asked == [["a"], ["b"], ["c", "d", "e"]]
    tasks += await asked(together, "f")
    await reading.end(1)
    assert reading.asked[3:] == [["f"]]
    await reading.end()
    await reading.end()
    assert await asyncio.gather(*tasks) == [*"ABCDEF"]
    tasks = await asked(together, "g")
    assert reading.asked[4:] == [["g"]]
    await reading.end()
    assert await tasks[0] == "G"


async def test_a_full_group_does_not_wait(reading: Reading) -> None:
    """Where reads take long, more of them are under way; no group is larger than it may be."""
    together = Together(reading.read, most=2, at_once=1, long_s=LONG_S)
    tasks = await asked(together, "abcdef")
    assert reading.asked == [["a"], ["b", "c"], ["d", "e"]]
    await reading.end()
    assert reading.asked[3:] == []
    await reading.end()
    await reading.end()
    assert reading.asked[3:] == [["f"]]
    await reading.end()
    assert await asyncio.gather(*tasks) == [*"ABCDEF"]


async def test_an_error_is_told_to_all_who_wait(reading: Reading) -> None:
    """To each as an error of its own, and the next read is not kept from anything."""
    together = Together(reading.read, most=10, at_once=1, long_s=LONG_S)
    tasks = await asked(together, "abc")
    await reading.end(error=ValueError("first"))
    await reading.end(error=ValueError("together"))
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(error) for error in errors] == ["first", "together", "together"]
    assert errors[1] is not errors[2]
    tasks = await asked(together, "d")
    await reading.end()
    assert await tasks[0] == "D"


async def test_who_stops_waiting_stops_nobody_else(reading: Reading) -> None:
    """Neither before its group is read nor meanwhile; what nobody waits for is not read."""
    together = Together(reading.read, most=10, at_once=1, long_s=LONG_S)
    tasks = await asked(together, "abcd")
    tasks[1].cancel()
    await reading.end()
    assert reading.asked[1:] == [["c", "d"]]
    tasks[2].cancel()
    await reading.end()
    assert await tasks[3] == "D"
    tasks = await asked(together, "efg")
    tasks[1].cancel()
    tasks[2].cancel()
    await anyio.wait_all_tasks_blocked()
    await reading.end()
    assert reading.asked[2:] == [["e"]]
    tasks = await asked(together, "h")
    await reading.end()
    assert await tasks[0] == "H"


async def test_the_first_is_cancelled(reading: Reading) -> None:
    """Who reads for itself and is cancelled leaves its place to those who wait."""
    together = Together(reading.read, most=10, at_once=1, long_s=LONG_S)
    tasks = await asked(together, "ab")
    tasks[0].cancel()
    await anyio.wait_all_tasks_blocked()
    assert reading.asked == [["a"], ["b"]]
    await reading.end(1)
    assert await tasks[1] == "B"


async def test_the_end_of_everything(reading: Reading) -> None:
    """A read that is cancelled itself, as when a client is closed, leaves nobody waiting for ever."""
    together = Together(reading.read, most=10, at_once=1, long_s=LONG_S)
    tasks = await asked(together, "abc")
    await reading.end()
    reading._ends[0].cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert done[0] == "A"
    assert [type(each) for each in done[1:]] == [asyncio.CancelledError] * 2


async def test_a_read_that_takes_long_holds_up_nobody(reading: Reading) -> None:
    """After a while it does not count: what waited begins, and what comes then does not wait. It still has its end."""
    together = Together(reading.read, most=10, at_once=1, long_s=0.01)
    tasks = await asked(together, "abc")
    assert reading.asked == [["a"]]
    await anyio.sleep(0.03)
    assert reading.asked == [["a"], ["b", "c"]]
    await anyio.sleep(0.03)
    tasks += await asked(together, "de")
    assert reading.asked[2:] == [["d"]]
    for _ in range(3):
        await reading.end()
    await reading.end()
    assert await asyncio.gather(*tasks) == [*"ABCDE"]
    tasks = await asked(together, "fg")
    assert reading.asked[4:] == [["f"]]
    await reading.end()
    await reading.end()
    assert await asyncio.gather(*tasks) == [*"FG"]
