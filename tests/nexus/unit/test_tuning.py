"""The settings as each service takes them."""

import os

import pytest

from nexus.config import Settings
from nexus.tuning import builder_settings, give_way, polled_s


@pytest.mark.parametrize(
    ("llm", "by_model"),
    [({}, False), ({"base_url": "http://127.0.0.1:1/v1", "model": "m"}, True)],
)
def test_whether_summaries_are_replaced(llm: dict[str, str], by_model: bool) -> None:
    """Only where there is a model to ask."""
    assert builder_settings(Settings(llm=llm)).summaries_by_model is by_model


@pytest.mark.parametrize(("processors", "seconds"), [({0}, 0), ({0, 1}, 0.0005)])
def test_on_one_processor_nothing_is_polled_for(
    monkeypatch: pytest.MonkeyPatch, processors: set[int], seconds: float
) -> None:
    """Whoever is waited for may need it."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: processors)
    assert polled_s(Settings().context) == seconds


def test_giving_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is asked of the system where it can be, and else does nothing."""
    given: list[int] = []
    monkeypatch.setattr(os, "sched_yield", lambda: given.append(1), raising=False)
    give_way()
    assert given == [1]
    monkeypatch.delattr(os, "sched_yield")
    give_way()
    assert given == [1]
