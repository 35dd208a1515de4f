"""The figures of replicas: what a sample is, rates and quantiles, and how they reach the others (contract §16)."""

import asyncio
import math
from datetime import UTC, datetime

import anyio
import pytest
from structlog.testing import capture_logs

from nexus.adapters.prometheus import PrometheusMetrics
from nexus.core.errors import ErrorCode, StoreUnavailableError
from nexus.core.metrics import BOUNDS_S, DeadLetterCause, Part, Reading, Stage
from nexus.core.replicas import Sample
from nexus.services.replicas import EVERY_S, MOST_SAMPLES, Replicas, quantile, rate, sampled, totals
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.virtual_time import VirtualLoop

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def sample(*durations_s: float, seconds: float = 5.0, metrics: PrometheusMetrics | None = None) -> Sample:
    """What a replica did that gave answers after so many seconds."""
    metrics = metrics or PrometheusMetrics()
    before = metrics.figures()
    for duration_s in durations_s:
        metrics.answered(None)
        metrics.took(Stage.TOTAL, duration_s)
    return sampled(before, metrics.figures(), seconds=seconds, at=NOON)


def test_a_sample_is_what_was_counted_in_between() -> None:
    """Nothing of before, no zeros; what waits is as of now."""
    metrics = PrometheusMetrics()
    metrics.answered(None)
    metrics.took(Stage.TOTAL, 0.003)
    before = metrics.figures()
    metrics.answered(None)
    metrics.answered(ErrorCode.OVERLOADED)
    metrics.degraded(Part.HISTORY)
    metrics.dead_letter(DeadLetterCause.POISON)
    metrics.took(Stage.TOTAL, 0.003)
    metrics.took(Stage.BUILD, 0.003)
    metrics.took(Stage.TOTAL, 100.0)
    metrics.read_from(Reading.IN_FLIGHT, lambda: 3)
    metrics.read_from(Reading.UNWRITTEN_ROWS, lambda: 2)
    metrics.read_from(Reading.UNWRITTEN_TURNS, lambda: 0)
    metrics.backlog_from("llm.results", lambda: 7)
    metrics.backlog_from("runs.input", lambda: 1)
    taken = sampled(before, metrics.figures(), seconds=5.0, at=NOON)
    durations = [0] * (len(BOUNDS_S) + 1)
    durations[BOUNDS_S.index(0.005)] = durations[-1] = 1
    assert taken == Sample(
        {"success": 1, "OVERLOADED": 1},
        {"history": 1},
        {"poison": 1},
        tuple(durations),
        in_flight=3,
        waiting={"rows": 2},
        on_bus=8,
        at=NOON,
        seconds=5.0,
    )


@pytest.mark.parametrize(
    ("durations_s", "share", "expected"),
    [
        ((), 0.5, None),
        ((0.0001,) * 4, 0.5, 0.00025),
        ((0.003,) * 4, 0.5, 0.00375),
        ((0.003,) * 4, 1.0, 0.005),
        ((0.003, 0.003, 0.07, 0.07), 0.5, 0.005),
        ((0.003, 0.07, 0.07, 0.07), 0.5, 0.05 + 0.05 / 3),
        ((0.003, 100.0), 0.99, math.inf),
        ((0.003,) * 199 + (2.0,), 0.99, 0.0025 + 0.0025 * 198 / 199),
    ],
)
def test_quantiles(durations_s: tuple[float, ...], share: float, expected: float | None) -> None:
    """Interpolated within a bucket, over several samples as over one; endless behind the last bound."""
    one = quantile([sample(*durations_s)], share)
    several = quantile([sample(each) for each in durations_s], share)
    assert one == several == (expected if expected is None else pytest.approx(expected))


def test_samples_of_other_buckets_count_for_no_quantile() -> None:
    """Another version may have others."""
    other = Sample({}, {}, {}, (1, 2, 3), 0, {}, 0, NOON, 5.0)
    assert quantile([other], 0.5) is None
    assert quantile([other, sample(0.003)], 1.0) == pytest.approx(0.005)


def test_rates_and_sums() -> None:
    """Each sample by its own length; sums with the largest first."""
    assert rate([sample(*[0.1] * 10), sample(*[0.1] * 10, seconds=10.0)]) == pytest.approx(3.0)
    assert rate([]) == 0.0
    assert [*totals([{"a": 1, "b": 2}, {"a": 1, "c": 5}]).items()] == [("c", 5), ("a", 2), ("b", 2)]


def test_each_replica_is_told_to_the_others() -> None:
    """Samples every five seconds, no more than are kept; gone at the end. What is stored otherwise is passed over."""
    store, metrics = FakeStore(), PrometheusMetrics()

    async def main() -> None:
        replicas = Replicas(store.replicas, metrics, metrics, host="one", version="1")
        other = Replicas(store.replicas, metrics, metrics, host="another", version="2")
        async with replicas.running():
            await anyio.sleep(3 * EVERY_S)
            metrics.answered(None)
            await anyio.sleep(2 * EVERY_S * MOST_SAMPLES)
            assert len(replicas.own.samples) == MOST_SAMPLES
            async with other.running():
                await anyio.sleep(3 * EVERY_S)
                store.replicas.kept["odd"] = {"replica_id": "odd", "samples": "many"}
                with capture_logs() as logs:
                    seen = await replicas.all()
                assert [line["event"] for line in logs] == ["stored_replica_passed_over"]
                assert [each.host for each in seen] == ["another", "one"]
                assert seen[0] == other.own
                assert seen[1] is replicas.own
        assert [*store.replicas.kept] == ["odd"]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


def test_without_the_store_there_are_own_figures() -> None:
    """Samples go on, and are told when it is back; reading says that it is away."""
    store, metrics = FakeStore(), PrometheusMetrics()

    async def main() -> None:
        store.down = True
        replicas = Replicas(store.replicas, metrics, metrics, host="one", version="1")
        async with replicas.running():
            await anyio.sleep(4 * EVERY_S)
            taken = replicas.own.samples
            assert len(taken) >= 2
            with pytest.raises(StoreUnavailableError):
                await replicas.all()
            with pytest.raises(StoreUnavailableError):
                await replicas.due()
            store.down = False
            await anyio.sleep(2 * EVERY_S)
            assert len(store.replicas.kept[replicas.own.replica_id]["samples"]) > len(taken)
            store.down = True

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
