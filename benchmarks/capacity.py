"""What it takes to serve so many owners and builds a second, from what one build was measured to cost.

    .venv/bin/nexus bench costs replicas --output bench.json
    .venv/bin/python -m benchmarks.capacity bench.json

Without a file it reckons with `MEASURED`. It prints the tables of docs/scale.md. The model is linear but where it says
otherwise: it tells what breaks first and by how much, not whether the last tenth fits.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, Final

# In KB.
_MB, _GB = 1e3, 1e6
# The busiest hour is a tenth of a day's work, as it is where people live in a few time zones.
_BUSY_S_A_DAY: Final = 36_000
# Without decimals from here on.
_ROUNDED: Final = 10


@dataclass(frozen=True, slots=True)
class Costs:
    """What was measured of one dialogue build, or assumed.

    Attributes:
        nexus_cold_ms: processor time of a replica where the database is asked; recording and turn included.
        nexus_warm_ms: the same where the tail is in memory.
        heard_ms: processor time of every other replica for a request that it hears and leaves (pub/sub).
        heard_redis_ms: processor time of Redis for that.
        redis_ms: processor time of Redis.
        mongo_cold_ms: processor time of MongoDB.
        mongo_warm_ms: the same, with recording alone.
        into_redis_kb: bytes that Redis reads.
        out_of_redis_kb: bytes that it writes: a request and an answer, each to one hearer.
        kept_kb: memory of Redis, for `answer_ttl_s`.
        rows: documents that a run adds: its input, its turn, and what a model and its tools say.
        row_kb: bytes of a row on disk with its part of the indexes.
        tail_kb: memory of a replica for an owner's tail.
    """

    nexus_cold_ms: float = 1.002
    nexus_warm_ms: float = 0.594
    heard_ms: float = 0.461
    heard_redis_ms: float = 0.03
    redis_ms: float = 0.2
    mongo_cold_ms: float = 0.588
    mongo_warm_ms: float = 0.516
    into_redis_kb: float = 26.325
    out_of_redis_kb: float = 24.229
    kept_kb: float = 24.76
    rows: float = 5.0
    row_kb: float = 0.7
    tail_kb: float = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How it is run.

    Attributes:
        returning: share of first builds whose owner was here while the tail was still in memory.
        replicas: of a partition, an installation with a prefix of its own for a part of the owners. A tail is good only
            where the owner's last rows were served or recorded, so of so many replicas one has it.
        busy: how much of a core is planned for; the rest is for peaks and for replicas that are gone.
        answer_ttl_s: as `bus.answer_ttl_s`.
        mongo_cores: of a shard's primary.
        mongo_rows: that a shard records a second.
        redis_gb: memory of a Redis that is planned for.
    """

    returning: float = 0.8
    replicas: int = 2
    busy: float = 0.6
    answer_ttl_s: int = 3_600
    mongo_cores: int = 8
    mongo_rows: float = 10_000
    redis_gb: float = 32

    @property
    def warm(self) -> float:
        """Share of first builds that find their owner's tail in memory."""
        return self.returning / self.replicas


@dataclass(frozen=True, slots=True)
class Load:
    """Owners who come back within a day, and first builds of runs a second at the busiest time."""

    owners: int
    builds: float


@dataclass(frozen=True, slots=True)
class Need:
    """What a load takes."""

    nexus_cores: int
    partitions: int
    redis_by_cpu: int
    redis_by_memory: int
    kept_gb: float
    bus_mb: float
    mongo_by_cpu: int
    mongo_by_rows: int
    rows: float
    disk_gb_a_day: float
    tails_gb: float

    @property
    def masters(self) -> int:
        """Of Redis; each may have several partitions."""
        return max(self.redis_by_cpu, self.redis_by_memory)

    @property
    def shards(self) -> int:
        """Of MongoDB."""
        return max(self.mongo_by_cpu, self.mongo_by_rows)


MEASURED: Final = Costs()
LOADS: Final = (Load(10_000, 100), Load(100_000, 1_000), Load(100_000, 10_000), Load(1_000_000, 100_000))


def need(load: Load, costs: Costs, plan: Plan) -> Need:
    """What the load takes, when each request is heard by one replica (streams)."""
    nexus = load.builds * _mean(costs.nexus_cold_ms, costs.nexus_warm_ms, plan) / 1e3
    redis = load.builds * costs.redis_ms / 1e3
    mongo = load.builds * _mean(costs.mongo_cold_ms, costs.mongo_warm_ms, plan) / 1e3
    kept_kb = load.builds * plan.answer_ttl_s * costs.kept_kb
    rows = load.builds * costs.rows
    return Need(
        nexus_cores=(cores := ceil(nexus / plan.busy)),
        partitions=ceil(cores / plan.replicas),
        # One Redis executes on one core.
        redis_by_cpu=ceil(redis / plan.busy),
        redis_by_memory=ceil(kept_kb / _GB / plan.redis_gb),
        kept_gb=kept_kb / _GB,
        bus_mb=load.builds * (costs.into_redis_kb + costs.out_of_redis_kb) / _MB,
        mongo_by_cpu=ceil(mongo / plan.mongo_cores / plan.busy),
        mongo_by_rows=ceil(rows / plan.mongo_rows),
        rows=rows,
        disk_gb_a_day=rows * _BUSY_S_A_DAY * costs.row_kb / _GB,
        tails_gb=load.owners * costs.tail_kb * plan.replicas / _GB,
    )


def pubsub_rate(replicas: int, costs: Costs, plan: Plan) -> float:
    """Builds a second of so many replicas, a core each, that all hear every request.

    Each gives its share to building and the rest to hearing; Redis gives its core to both.
    """
    own_ms = _mean(costs.nexus_cold_ms, costs.nexus_warm_ms, replace(plan, replicas=replicas))
    by_nexus = replicas * plan.busy * 1e3 / (own_ms + (replicas - 1) * costs.heard_ms)
    by_redis = plan.busy * 1e3 / (costs.redis_ms + (replicas - 1) * costs.heard_redis_ms)
    return min(by_nexus, by_redis)


def _mean(cold: float, warm: float, plan: Plan) -> float:
    return (1 - plan.warm) * cold + plan.warm * warm


def costs_in(report: Mapping[str, Any]) -> Costs:
    """The costs that `nexus bench costs replicas --output` has found; what it has not measured stays as assumed."""
    values = {measure["name"]: measure["value"] for measure in report["measures"]}
    names = {
        "nexus_cold_ms": "CPU of Nexus, a build, cold",
        "nexus_warm_ms": "CPU of Nexus, a build, warm",
        "redis_ms": "CPU of Redis, a build, cold",
        "mongo_cold_ms": "CPU of MongoDB, a build, cold",
        "mongo_warm_ms": "CPU of MongoDB, a build, warm",
        "into_redis_kb": "bytes into Redis, a build, cold",
        "out_of_redis_kb": "bytes out of Redis, a build, cold",
        "kept_kb": "memory of Redis, a build, cold",
    }
    found = {name: values[measure] for name, measure in names.items() if measure in values}
    replicas = (cell for cell in report["cells"] if cell["responder"].startswith("replicas"))
    cpu = {cell["replicas"]: [one["cpu_ms"] for one in cell["rounds"]] for cell in replicas}
    fewest, most = min(cpu, default=1), max(cpu, default=1)
    if fewest < most:
        found["heard_ms"] = max(0.0, (median(cpu[most]) - median(cpu[fewest])) / (most - fewest))
    return replace(MEASURED, **found)


def tables(costs: Costs = MEASURED, plan: Plan = Plan()) -> str:
    """The tables of docs/scale.md, in Markdown."""
    return "\n\n".join((_costs_table(costs, plan), _needs_table(costs, plan), _pubsub_table(costs, plan)))


def _costs_table(costs: Costs, plan: Plan) -> str:
    rows = [(f"`{field.name}`", _number(getattr(costs, field.name))) for field in fields(costs)]
    rows += [(f"`{field.name}` (plan)", _number(getattr(plan, field.name))) for field in fields(plan)]
    rows.append(("`warm`, of these", _number(plan.warm)))
    return _table(("input", "value"), rows)


def _needs_table(costs: Costs, plan: Plan) -> str:
    needs = [need(load, costs, plan) for load in LOADS]
    short = [need(load, costs, replace(plan, answer_ttl_s=60)) for load in LOADS]
    lines: list[tuple[str, Callable[[Need], float], list[Need]]] = [
        ("Nexus: cores, and so replicas", lambda one: one.nexus_cores, needs),
        (f"partitions of {plan.replicas} replicas", lambda one: one.partitions, needs),
        ("Redis: masters, by processor time", lambda one: one.redis_by_cpu, needs),
        (f"Redis: kept answers, GB, `answer_ttl_s: {plan.answer_ttl_s}`", lambda one: one.kept_gb, needs),
        ("Redis: masters for that", lambda one: one.redis_by_memory, needs),
        ("Redis: kept answers, GB, `answer_ttl_s: 60`", lambda one: one.kept_gb, short),
        ("Redis: masters in all, `answer_ttl_s: 60`", lambda one: one.masters, short),
        ("bus: MB a second", lambda one: one.bus_mb, needs),
        ("MongoDB: documents a second", lambda one: one.rows, needs),
        ("MongoDB: shards, by processor time", lambda one: one.mongo_by_cpu, needs),
        ("MongoDB: shards, by documents", lambda one: one.mongo_by_rows, needs),
        ("MongoDB: GB a day", lambda one: one.disk_gb_a_day, needs),
        ("tails of all owners, GB over all replicas", lambda one: one.tails_gb, needs),
    ]
    head = ("", *(f"{load.owners:,} owners, {load.builds:,} builds/s" for load in LOADS))
    return _table(head, [(name, *(_number(value(one)) for one in some)) for name, value, some in lines])


def _pubsub_table(costs: Costs, plan: Plan) -> str:
    counts = (1, 2, 4, 8, 16, 32, 64)
    rates = [pubsub_rate(count, costs, plan) for count in counts]
    per = [f"{rate / count / rates[0]:.0%}" for rate, count in zip(rates, counts, strict=True)]
    head = ("replicas in `pubsub`", *map(str, counts))
    return _table(head, [("builds a second", *map(_number, rates)), ("of each, against one alone", *per)])


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---", *("---:" for _ in head[1:])), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= _ROUNDED or value == int(value) else f"{value:,.2f}"


if __name__ == "__main__":
    print(tables(costs_in(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))) if sys.argv[1:] else MEASURED))
