"""What `nexus bench` stores, asks and makes of the times, without a server."""

import asyncio
import json
import math
from dataclasses import replace
from itertools import islice
from typing import Any, cast

import pytest

from nexus.bench.groups import COLD, FLOOR, GROUPS, USUAL, WARM, Extent
from nexus.bench.load import Asker, Sample
from nexus.bench.pure import assembly_cost, escape_cost
from nexus.bench.responders import Started
from nexus.bench.results import Cell, Findings, Measure, Played, Ratio
from nexus.bench.rounds import Desk
from nexus.bench.shapes import Request, Shape, request
from nexus.bench.shown import cells, measures
from nexus.core.wire import decode
from nexus.services.context.request import read_request
from tests.nexus.support.virtual_time import VirtualLoop

COLD_CELL = Cell(COLD, Shape(1_000, owners=100))
FLOOR_CELL = replace(COLD_CELL, responder=FLOOR)


def played(*milliseconds: float, errors: int = 0) -> Played:
    """A round with these latencies, in a second."""
    return Played(Sample([value / 1e3 for value in milliseconds], 1.0, errors))


def test_a_shape() -> None:
    """So many rows of so many owners, of the length that was asked for, in runs of both kinds."""
    rows = [*Shape(40, 300, owners=3).all_rows()]
    assert len(rows) == 120
    assert len({row["owner_key"] for row in rows}) == 3
    assert {len(row["content"]) for row in rows} == {0, 300}
    assert [row["role"] for row in islice(rows, 6)] == ["HUMAN", "AI", "HUMAN", "AI", "TOOL", "AI"]
    assert rows[40]["timestamp"] == rows[0]["timestamp"] < rows[1]["timestamp"]


def test_a_request() -> None:
    """It is one that Nexus takes, and names the run and the input under which it is recorded."""
    asked = request("ada", "agent", "me", 1_000)
    message = decode(asked.payload)
    read = read_request(message)
    assert (message.id, message.metadata["reply_to"]) == (asked.id, "me")
    assert (read.human.id, read.run_id, read.owner_key, read.layout) == (asked.input_id, asked.run_id, "ada", "agent")


async def test_a_closed_loop() -> None:
    """No more wait at once than were to, each is timed, and errors and contexts with something missing are counted."""
    waiting: list[str] = []
    most = 0

    async def send(payload: bytes) -> None:
        nonlocal most
        waiting.append(payload.decode())
        most = max(most, len(waiting))
        asyncio.get_running_loop().call_soon(answer)

    def answer() -> None:
        asked = waiting.pop(0)
        content = {"status": "error" if asked == "3" else "success", "degraded": ["turns"] if asked == "4" else []}
        envelope = {"content": content, "metadata": {"request_id": asked}}
        asker.heard(json.dumps(envelope, separators=(",", ":")).encode())
        asker.heard(b"{}")

    asker = Asker(send)
    sample = await asker.ask([Request(str(number), "ada", "", "", str(number).encode()) for number in range(20)], 5)
    assert (len(sample.latencies), sample.errors, sample.degraded) == (20, 1, 1)
    assert most == 5
    assert all(latency > 0 for latency in sample.latencies)


def test_a_responder_is_at_rest_when_it_has_been_idle_for_longer_than_anything_waits() -> None:
    """Work that begins 0.1 s after the last, as turns that are begun together do, is waited for."""
    busy_at, began_at = (0.02, 0.12, 0.22), 0.0

    class Process:
        """Takes 10 ms of a processor at each of these moments."""

        @property
        def cpu_seconds(self) -> float:
            now = asyncio.get_running_loop().time() - began_at
            return 0.01 * sum([now >= moment for moment in busy_at])

    async def rest() -> float:
        nonlocal began_at
        began_at = asyncio.get_running_loop().time()
        desk = Desk(COLD, cast("Any", None), [cast("Started", Process())], Asker(cast("Any", None)))
        await desk.at_rest()
        return asyncio.get_running_loop().time() - began_at

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert 0.22 + 0.25 <= runner.run(rest()) < 1


async def test_only_who_keeps_something_in_memory_reads_it_anew() -> None:
    """Nobody else is asked, nor are his servers."""
    desk = Desk(COLD, cast("Any", None), [], Asker(cast("Any", None)))
    await desk.renew([request("ada", "dialogue", "me", 0)], COLD_CELL)
    assert [responder.keeps_tails for responder in (COLD, WARM, FLOOR, replace(COLD, tail_cache_mb=None))] == [
        False,
        True,
        False,
        True,
    ]


def test_a_ratio_is_made_round_by_round() -> None:
    """Its median counts, and a throughput that is twice as high is half the ratio."""
    found = {COLD_CELL: [played(2, 3, 4), played(9, 9, 9)], FLOOR_CELL: [played(1, 2, 3), played(3, 3)]}
    ratio = Ratio("build ÷ floor", COLD_CELL, FLOOR_CELL, at_most=2)
    assert ratio.measured(found).values == [1.5, pytest.approx(3.0)]
    assert ratio.measured(found).value == pytest.approx(2.25)
    assert ratio.measured(found).is_over
    assert replace(ratio, figure="rate").measured(found).values == [1.0, pytest.approx(2 / 3)]


def test_what_could_not_be_measured_is_over() -> None:
    """No answers are no good answers."""
    found = {COLD_CELL: [played()], FLOOR_CELL: [played(1)]}
    measure = Ratio("build ÷ floor", COLD_CELL, FLOOR_CELL, at_most=2).measured(found)
    assert math.isnan(measure.value)
    assert measure.is_over


def test_findings() -> None:
    """They come as tables and as JSON, and say what should not have happened."""
    findings = Findings({COLD_CELL: [played(1, errors=2)]}, [Measure("start", "s", [1.0, 3.0, 2.0], 1.5)])
    assert findings.is_over
    assert findings.faults == [f"{COLD_CELL.name}: 2 errors"]
    told = json.loads(json.dumps(findings.as_json()))
    assert told["measures"][0] | {"value": 2.0, "over": True} == told["measures"][0]
    assert told["cells"][0]["rounds"][0]["answers"] == 1
    assert measures(findings).row_count == cells(findings).row_count == 1


def test_a_smaller_extent() -> None:
    """What is read of a history is left of it, and of every slice a request for each place."""
    small = Extent(scale=0.001).cell(replace(COLD_CELL, at_once=32))
    assert (small.shape.rows, small.shape.owners, small.requests) == (60, 10, 128)
    assert Extent().cell(COLD_CELL) == COLD_CELL
    assert set(USUAL) < set(GROUPS)


def test_the_pure_part() -> None:
    """Costs of it can be taken."""
    assert assembly_cost(500, 0) > 0
    assert escape_cost("word ", 0) > 0
