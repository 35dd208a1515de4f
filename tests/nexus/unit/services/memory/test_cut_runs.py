"""Runs of which only the end is under no compaction yet (CONTRACT §7)."""

from datetime import timedelta

import pytest
from hypothesis import given

from nexus.core.ports import Row
from nexus.services.memory.planning import NOTHING, cut_runs, plan
from tests.nexus.unit.services.memory.compacting import Home
from tests.nexus.unit.services.memory.sessions import START, rows
from tests.nexus.unit.services.memory.test_planning import exchange, row

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
    """No rows are read again of runs that are seen from their beginning, or that have been silent for long."""
    home = Home(idle_s=50)
    home.plant([row(0, "AI", "old", calls=["a"]), row(0, "TOOL", "old", answers="a")], ago=200)
    home.plant(exchange(0, "one"), ago=20)
    await home.compact()
    assert "run_messages" not in home.store.calls


@given(rows())
def test_only_runs_without_input_are_cut(given_rows: list[Row]) -> None:
    """And a run that is known to be over is compacted, whatever is left of it."""
    now = START + timedelta(seconds=10_000)
    cut = cut_runs(given_rows, now=now, idle=timedelta(days=1))
    asked = {each["run_id"] for each in given_rows if each["role"] == "HUMAN"}
    assert not asked & {*cut}
    made = plan(given_rows, NOTHING, now=now, idle=timedelta(days=1), over=cut)
    assert not {each["run_id"] for each in made.kept} & {*cut}
