"""Runs of which only the end is under no compaction yet (CONTRACT §7)."""

from datetime import timedelta

import pytest
from hypothesis import given

from nexus.core.ports import Row
from nexus.services.memory.plan import KEEP_NOTHING, plan
from nexus.services.memory.units import KnownRuns, headless_runs
from tests.nexus.unit.services.memory.compacting import Home
from tests.nexus.unit.services.memory.sessions import START, blocks, rows
from tests.nexus.unit.services.memory.test_plan import exchange, row

IDLE = timedelta(seconds=300)


@pytest.mark.parametrize(("first", "second"), [("conversation", "all"), ("conversation", "tools")])
async def test_what_is_left_of_a_run_that_is_over_is_compacted(first: str, second: str) -> None:
    """Its calls, while its question and its answer are under a compaction already, and long before it is idle."""
    home = Home(idle_s=3_600)
    home.plant([*exchange(0, "one", calls=2), *exchange(0, "two")], ago=100)
    assert await home.compact(target=first)
    assert [left["run_id"] for left in await home.tail()] == ["one"] * 4 + ["two"] * 2
    made = await home.compact(target=second)
    assert made
    assert made.count == 6
    assert await home.tail() == []


async def test_a_run_in_progress_stays() -> None:
    """Also one of which an earlier part was compacted, when it was silent for long, and which goes on after all."""
    home = Home(idle_s=50)
    home.plant([row(0, run="late"), row(0, "AI", "late", calls=["a"]), row(0, "TOOL", "late", answers="a")], ago=200)
    assert await home.compact()
    home.plant([row(0, "AI", "late", calls=["b"]), row(0, "TOOL", "late", answers="b")], ago=5)
    assert await home.compact() is None
    home.plant([row(0, "AI", "late")], ago=1)
    made = await home.compact()
    assert made
    assert made.count == 3


async def test_nobody_is_asked_without_need() -> None:
    """No rows are read again of runs that are seen from their beginning, or that have been silent for a day."""
    home = Home(idle_s=50)
    home.plant([row(0, "AI", "old", calls=["a"]), row(0, "TOOL", "old", answers="a")], ago=90_000)
    home.plant(exchange(0, "one"), ago=20)
    await home.compact()
    assert "run_messages" not in home.store.calls


async def test_a_sub_agent_at_work_is_a_sign_of_life() -> None:
    """The run of the agent that waits for it stays whole; in silence, only what waits does."""
    for internal, left in ((True, 3), (False, 1)):
        home = Home(idle_s=300)
        home.plant([row(0, run="main"), row(0, "AI", "main"), row(0, "AI", "main", calls=["c"])], ago=400)
        work = {"sub_agent_internal": True, "agent_id": "a"}
        home.plant([row(0, "AI", "main" if internal else "other", metadata=work) for _ in range(390)], ago=390)
        made = await home.compact(keep_recent=0, run_id="asks")
        assert (made.count if made else 0) == 3 - left
        home.plant([row(0, "TOOL", "main", answers="c", content="the report"), row(0, "AI", "main")], ago=0)
        ((_, result),) = blocks(await home.tail()).values()
        assert result == "m394: the report"


@given(rows())
def test_only_runs_without_input_are_cut(given_rows: list[Row]) -> None:
    """And a run that is known to be over is compacted, whatever is left of it."""
    now = START + timedelta(seconds=10_000)
    cut = headless_runs(given_rows, now=now, idle=timedelta(days=1))
    asked = {each["run_id"] for each in given_rows if each["role"] == "HUMAN"}
    assert not asked & {*cut}
    made = plan(given_rows, KEEP_NOTHING, now=now, idle=timedelta(days=1), known=KnownRuns(over=cut))
    assert not {each["run_id"] for each in made.kept} & {*cut}
