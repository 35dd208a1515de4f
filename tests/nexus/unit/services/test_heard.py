"""Waiting for what was heard before it is read back."""

import anyio

from nexus.services.heard import Heard

LONG = 60.0


async def test_nothing_to_wait_for() -> None:
    """Nothing was heard, or of somebody else, or of the run that asks."""
    heard = Heard()
    heard.begin("bob", "run_1")
    heard.begin("ada", "run_now")
    assert await heard.written("ada", LONG, besides="run_now")


async def test_it_waits_for_what_was_heard_before() -> None:
    """Not for what comes while it waits."""
    heard = Heard()
    ends = [heard.begin("ada", "run_1"), heard.begin("ada", "run_2")]
    found = []

    async def wait() -> None:
        found.append(await heard.written("ada", LONG))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        heard.begin("ada", "run_3")
        ends[0]()
        await anyio.wait_all_tasks_blocked()
        assert not found
        ends[1]()
    assert found == [True]


async def test_it_does_not_wait_for_ever() -> None:
    """It says that something is missing."""
    heard = Heard()
    end = heard.begin("ada", "run_1")
    assert not await heard.written("ada", 0)
    end()
    assert await heard.written("ada", 0)


async def test_nothing_is_left_of_what_is_written() -> None:
    """An owner who says nothing more takes no room."""
    heard = Heard()
    for end in [heard.begin("ada", f"run_{number}") for number in range(3)]:
        end()
    assert heard._of_owner == {}
