"""The model of capacity, and that docs/scale.md shows what it says."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.capacity import LOADS, MEASURED, Plan, costs_in, need, pubsub_rate, tables

PAGE = Path(__file__).parents[4] / "docs" / "scale.md"


def test_the_page_shows_the_tables() -> None:
    """They are those of `python -m benchmarks.capacity`: whoever changes an input pastes them anew."""
    page = PAGE.read_text(encoding="utf-8")
    assert [table for table in tables().split("\n\n") if table not in page] == []


def test_more_load_takes_more() -> None:
    """Of everything, in proportion where nothing is rounded."""
    small, large = (need(load, MEASURED, Plan()) for load in (LOADS[1], LOADS[3]))
    assert large.rows == 100 * small.rows
    assert large.kept_gb == pytest.approx(100 * small.kept_gb)
    assert (large.nexus_cores, large.masters, large.shards) > (small.nexus_cores, small.masters, small.shards)


def test_replicas_that_all_hear_everything() -> None:
    """Where hearing costs nothing they add up; where it costs something, more of them end up doing less."""
    free = replace(MEASURED, heard_ms=0, heard_redis_ms=0, redis_ms=0.001)
    plan = Plan(returning=0)
    assert pubsub_rate(8, free, plan) == pytest.approx(8 * pubsub_rate(1, free, plan))
    dear = replace(MEASURED, heard_redis_ms=1)
    assert pubsub_rate(64, dear, plan) < pubsub_rate(8, dear, plan)


def test_costs_come_from_a_report() -> None:
    """What was measured replaces what is assumed; what hearing costs is found from cells of few and many replicas."""
    cells = [
        {"responder": f"replicas-{number}", "replicas": number, "rounds": [{"cpu_ms": 1.0 + number}]}
        for number in (1, 2, 4)
    ]
    report = {"measures": [{"name": "CPU of Redis, a build, cold", "value": 0.125}], "cells": cells}
    assert costs_in(report) == replace(MEASURED, redis_ms=0.125, heard_ms=1.0)
