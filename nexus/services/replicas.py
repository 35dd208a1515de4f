"""Figures of the last minutes: each replica takes its own, and tells the others through the store (contract §16).

- A sample is taken at every full five seconds, by each replica's clock, so that those of several belong together.
- Without the store each replica has its own.
"""

import math
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, Self

import anyio
import structlog
from pydantic import TypeAdapter, ValidationError

from nexus.core.concurrency import supervised
from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import BOUNDS_S, Figures, FigureSource, Metrics
from nexus.core.models import Row, utc_now
from nexus.core.ports import ReplicaStore
from nexus.core.replicas import DueWork, Replica, Sample

_log = structlog.get_logger(__name__)

EVERY_S: Final = 5
MOST_SAMPLES: Final = 60
# Of more due work, or of more replicas, only so much is counted and shown.
MOST_DUE: Final = 1_000
_MOST_REPLICAS: Final = 200
_KEPT: Final = timedelta(minutes=10)
# How long leaving may hold up the end of the service.
_LEAVING_S: Final = 0.5
_TASK: Final = "figures"
_REPLICA: Final = TypeAdapter(Replica)


class Replicas:
    """Takes the figures of this process while `running()`, and reads those of all.

    `own` is this process, with its latest samples.
    """

    def __init__(self, store: ReplicaStore, source: FigureSource, metrics: Metrics, *, host: str, version: str) -> None:
        self._store = store
        self._source = source
        self._metrics = metrics
        now = utc_now()
        self.own = Replica(secrets.token_hex(4), host, version, now, now)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Take samples until the context ends, and leave."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(supervised, self._metrics, _TASK, self._take_all)
            try:
                yield self
            finally:
                tasks.cancel_scope.cancel()
                with (
                    anyio.move_on_after(_LEAVING_S, shield=True),
                    suppress(StoreUnavailableError, StoreRejectedError),
                ):
                    await self._store.remove_replica(self.own.replica_id)

    async def _take_all(self) -> None:
        await _next_moment()
        before, then = self._source.figures(), anyio.current_time()
        while True:
            await _next_moment()
            figures, now = self._source.figures(), anyio.current_time()
            taken = sampled(before, figures, seconds=now - then, at=utc_now())
            before, then = figures, now
            self.own = replace(self.own, at=taken.at, samples=(*self.own.samples, taken)[-MOST_SAMPLES:])
            # Others report a store that is away, and the next sample brings this one along.
            with suppress(StoreUnavailableError, StoreRejectedError):
                await self._store.put_replica(self.own, taken.at + _KEPT)

    async def all(self) -> list[Replica]:
        """All replicas that gave a sign lately, by host and start; this one as it is now. Errors of the store."""
        read = [*map(_replica, await self._store.replicas(limit=_MOST_REPLICAS))]
        others = [each for each in read if each and each.replica_id != self.own.replica_id]
        return sorted([self.own, *others], key=lambda each: (each.host, each.started_at, each.replica_id))

    async def due(self) -> DueWork:
        """How much work is due in the store, of each kind up to `MOST_DUE` and one more. Errors of the store."""
        return await self._store.due_work(utc_now(), limit=MOST_DUE + 1)


def sampled(before: Figures, figures: Figures, *, seconds: float, at: datetime) -> Sample:
    """What happened between two readings of a process."""
    return Sample(
        _more(before.answers, figures.answers),
        _more(before.degraded, figures.degraded),
        _more(before.dead_letters, figures.dead_letters),
        tuple(now - then for then, now in zip(before.durations, figures.durations, strict=True)),
        figures.in_flight,
        figures.waiting,
        figures.on_bus,
        at,
        seconds,
    )


def rate(samples: Sequence[Sample]) -> float:
    """Answers a second of replicas that were sampled at the same time."""
    return sum(sum(sample.answers.values()) / sample.seconds for sample in samples if sample.seconds > 0)


def quantile(samples: Sequence[Sample], share: float) -> float | None:
    """Within how many seconds this share of the answers was given, interpolated within a bucket of `BOUNDS_S`.

    Infinite where that is longer than all of them; None without an answer.
    """
    known = [sample.durations for sample in samples if len(sample.durations) == len(BOUNDS_S) + 1]
    counts: list[int] = [sum(column) for column in zip(*known, strict=True)]
    rank = share * sum(counts)
    if not rank:
        return None
    bucket = 0
    while rank > counts[bucket]:
        rank -= counts[bucket]
        bucket += 1
    bounds = (0.0, *BOUNDS_S, math.inf)
    return bounds[bucket] + (bounds[bucket + 1] - bounds[bucket]) * rank / counts[bucket]


def totals(mappings: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The sums by name, the largest first."""
    sums: dict[str, int] = {}
    for mapping in mappings:
        for name, count in mapping.items():
            sums[name] = sums.get(name, 0) + count
    return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))


async def _next_moment() -> None:
    await anyio.sleep(EVERY_S - time.time() % EVERY_S)


def _more(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {name: count - before.get(name, 0) for name, count in after.items() if count > before.get(name, 0)}


def _replica(row: Row) -> Replica | None:
    try:
        return _REPLICA.validate_python(row)
    except ValidationError as error:
        _log.warning("stored_replica_passed_over", reason=f"{error.error_count()} faults in its fields")
        return None
