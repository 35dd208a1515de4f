"""The model of docs/scale.md."""

import pytest

from benchmarks.scale import Cost, predict


@pytest.mark.parametrize(
    ("replicas", "processors", "runs"),
    [(1, 8, 100), (2, 8, 200), (4, 8, 400), (8, 8, 400), (1, 1, 50), (4, 2, 100)],
)
def test_what_is_predicted(replicas: int, processors: int, runs: int) -> None:
    """A replica computes on one processor; from some number on there are no processors left for more."""
    cost = Cost(nexus_ms=10, redis_ms=1, mongo_ms=7, asking_ms=2, in_bytes=0, out_bytes=0, kept_bytes=0)
    assert predict(cost, replicas, processors) == runs
