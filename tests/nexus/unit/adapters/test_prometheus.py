"""Metrics as Prometheus reads them: parsed with its own parser."""

import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nexus.adapters.prometheus import PrometheusMetrics
from nexus.core.errors import ErrorCode
from nexus.core.metrics import (
    BOUNDS_S,
    CallOutcome,
    DeadLetterCause,
    Event,
    Metrics,
    Part,
    Purpose,
    Reading,
    Stage,
)
from nexus.core.models import Topics, Why

SECRET = "hunter2-canary"

Samples = dict[tuple[str, tuple[str, ...]], float]


def samples(metrics: PrometheusMetrics) -> Samples:
    """Every sample by name and label values."""
    families = text_string_to_metric_families(metrics.exposition({}).decode())
    return {(s.name, tuple(s.labels.values())): s.value for family in families for s in family.samples}


def test_every_series_of_a_closed_set_is_there_from_the_start() -> None:
    """At zero, so that the first increase is seen as one."""
    read = samples(PrometheusMetrics(version="1.2.3"))
    assert read["nexus_build_info", ("1.2.3",)] == 1
    outcomes = ["success", *(code.value for code in ErrorCode)]
    assert [read["nexus_requests_total", (outcome,)] for outcome in outcomes] == [0] * len(outcomes)
    assert all(read["nexus_degraded_total", (part.value,)] == 0 for part in Part)
    assert all(read["nexus_left_out_total", (why.name.lower(),)] == 0 for why in Why)
    assert all(read["nexus_dead_letters_total", (cause.value,)] == 0 for cause in DeadLetterCause)
    assert all(read["nexus_stage_seconds_count", (stage.value,)] == 0 for stage in Stage)
    every = itertools.product(Purpose, CallOutcome)
    assert all(read["nexus_llm_calls_total", (outcome.value, purpose.value)] == 0 for purpose, outcome in every)
    kinds = itertools.product(("prompt", "completion"), Purpose)
    assert all(read["nexus_llm_tokens_total", (kind, purpose.value)] == 0 for kind, purpose in kinds)


@pytest.mark.parametrize(
    ("event", "name", "labels"),
    [
        (Event.LEASE_TAKEN_OVER, "nexus_leases_taken_over_total", ()),
        (Event.ANSWER_UNHEARD, "nexus_answers_unheard_total", ()),
        (Event.ANSWER_REPEATED, "nexus_answers_repeated_total", ()),
        (Event.LATE_ANSWER_DISCARDED, "nexus_late_answers_discarded_total", ()),
        (Event.REQUEST_DROPPED, "nexus_requests_dropped_total", ()),
        (Event.DEAD_LETTER_LOST, "nexus_dead_letters_lost_total", ()),
        (Event.BACKGROUND_FAULT, "nexus_background_faults_total", ()),
        (Event.ROW_RECORDED, "nexus_rows_total", ("recorded",)),
        (Event.ROW_REJECTED, "nexus_rows_total", ("rejected",)),
        (Event.ROW_LOST, "nexus_rows_total", ("lost",)),
        (Event.STATE_RECORDED, "nexus_session_states_total", ("recorded",)),
        (Event.STATE_REFUSED, "nexus_session_states_total", ("refused",)),
        (Event.STATE_LOST, "nexus_session_states_total", ("lost",)),
        (Event.FACTS_RECORDED, "nexus_facts_total", ("recorded",)),
        (Event.FACTS_REFUSED, "nexus_facts_total", ("refused",)),
        (Event.FACTS_LOST, "nexus_facts_total", ("lost",)),
        (Event.CONSTRAINTS_RECORDED, "nexus_constraints_total", ("recorded",)),
        (Event.CONSTRAINTS_REFUSED, "nexus_constraints_total", ("refused",)),
        (Event.CONSTRAINTS_LOST, "nexus_constraints_total", ("lost",)),
        (Event.TURN_BEGUN, "nexus_turns_total", ("begun",)),
        (Event.TURN_CLOSED, "nexus_turns_total", ("closed",)),
        (Event.TURN_SUMMARISED, "nexus_turns_total", ("summarised",)),
        (Event.TURN_LOST, "nexus_turns_total", ("lost",)),
        (Event.SUMMARY_DELAYED, "nexus_turns_total", ("model_away",)),
        (Event.SUMMARY_REFUSED, "nexus_turns_total", ("nonsense",)),
        (Event.ROW_REMOVED, "nexus_removed_total", ("messages",)),
        (Event.TURN_REMOVED, "nexus_removed_total", ("turns",)),
        (Event.REVISION_REMOVED, "nexus_removed_total", ("memory_revisions",)),
        (Event.DETAIL_REMOVED, "nexus_removed_total", ("details",)),
        (Event.LETTER_REMOVED, "nexus_removed_total", ("dead_letters",)),
    ],
)
def test_an_event_is_counted(event: Event, name: str, labels: tuple[str, ...]) -> None:
    """Each in a series of its own, and nothing else moves."""
    metrics = PrometheusMetrics()
    before = changing(metrics)
    metrics.count(event)
    metrics.count(event, 2)
    metrics.count(event, 0)
    metrics.count(event, -1)
    after = changing(metrics)
    assert {key for key, value in after.items() if value != before[key]} == {(name, labels)}
    assert after[name, labels] == 3


def changing(metrics: PrometheusMetrics) -> Samples:
    """What does not change by itself."""
    return {key: value for key, value in samples(metrics).items() if not key[0].startswith("process_")}


def test_every_event_has_a_series() -> None:
    """None is forgotten by the adapter."""
    metrics = PrometheusMetrics()
    for event in Event:
        before = changing(metrics)
        metrics.count(event)
        assert changing(metrics) != before


def test_outcomes_parts_and_causes_are_counted() -> None:
    """Under their labels."""
    metrics = PrometheusMetrics()
    metrics.answered(None)
    metrics.answered(ErrorCode.OVERLOADED)
    metrics.degraded(Part.HISTORY)
    metrics.left_out(Why.NO_ROOM, 2)
    metrics.left_out(Why.NO_ROOM)
    metrics.dead_letter(DeadLetterCause.UNREADABLE)
    metrics.model_called(Purpose.TURN, CallOutcome.UNUSABLE, 900, 40)
    metrics.model_called(Purpose.TURN, CallOutcome.USED, 1_000, 60)
    read = samples(metrics)
    assert read["nexus_requests_total", ("success",)] == 1
    assert read["nexus_requests_total", ("OVERLOADED",)] == 1
    assert read["nexus_degraded_total", ("history",)] == 1
    assert read["nexus_left_out_total", ("no_room",)] == 3
    assert read["nexus_dead_letters_total", ("unreadable",)] == 1
    assert read["nexus_llm_calls_total", ("unusable", "turn")] == 1
    assert read["nexus_llm_tokens_total", ("prompt", "turn")] == 1_900
    assert read["nexus_llm_tokens_total", ("completion", "turn")] == 100


def test_stages_are_histograms() -> None:
    """Buckets from 0.5 ms to 60 s; a value that is no length of time is ignored."""
    metrics = PrometheusMetrics()
    for seconds in (0.0005, 0.003, 3.0, 300.0, -1.0, math.nan, math.inf):
        metrics.took(Stage.BUILD, seconds)
    read = samples(metrics)
    assert (BOUNDS_S[0], BOUNDS_S[-1]) == (0.0005, 60.0)
    bucket = {
        bound: read["nexus_stage_seconds_bucket", (bound, "build")] for bound in ("0.001", "0.005", "60.0", "+Inf")
    }
    assert bucket == {"0.001": 2, "0.005": 3, "60.0": 4, "+Inf": 5}
    assert read["nexus_stage_seconds_sum", ("build",)] == pytest.approx(303.0035)


def test_stalls_of_the_loop_are_a_histogram() -> None:
    """From 20 ms to 10 s."""
    metrics = PrometheusMetrics()
    for seconds in (-0.001, 0.001, 0.15, 4.0, 30.0):
        metrics.stalled(seconds)
    read = samples(metrics)
    bounds = {"0.02": 2, "0.1": 2, "0.2": 3, "5.0": 4, "10.0": 4, "+Inf": 5}
    assert {bound: read["nexus_loop_stall_seconds_bucket", (bound,)] for bound in bounds} == bounds


def test_readings_are_taken_at_each_scrape() -> None:
    """Gauges, and the reconnects as a counter."""
    metrics, depth = PrometheusMetrics(), {"value": 1.0}
    for reading in Reading:
        metrics.read_from(reading, lambda: depth["value"])
    metrics.backlog_from(Topics.LLM_RESULTS, lambda: depth["value"])
    for depth["value"] in (1.0, 7.0):
        read = samples(metrics)
        assert read["nexus_requests_in_flight", ()] == depth["value"]
        assert read["nexus_bus_reconnects_total", ()] == depth["value"]
        assert read["nexus_outbox_rows", ()] == depth["value"]
        queues = [read["nexus_queue_depth", (queue,)] for queue in ("requests", "refusals", "rows")]
        assert queues == [depth["value"]] * 3
        assert read["nexus_topic_backlog", ("llm.results",)] == depth["value"]


def test_checks_are_gauges() -> None:
    """1 while well, as at the latest scrape."""
    metrics = PrometheusMetrics()
    for well in (True, False, True):
        metrics.exposition({"bus": True, "database": well})
        read = samples(metrics)
        assert (read["nexus_ready", ("bus",)], read["nexus_ready", ("database",)]) == (1, well)


def failing() -> float:
    """A reading that cannot be had."""
    raise RuntimeError(SECRET)


@pytest.mark.parametrize("read", [failing, lambda: math.nan, lambda: math.inf, lambda: SECRET])
def test_a_reading_that_cannot_be_had_is_left_out(read: Callable[[], Any]) -> None:
    """The scrape goes on without it, and shows nothing of why."""
    metrics = PrometheusMetrics()
    for reading in Reading:
        metrics.read_from(reading, read)
    metrics.backlog_from(Topics.LLM_RESULTS, read)
    metrics.answered(None)
    taken = samples(metrics)
    assert taken["nexus_requests_total", ("success",)] == 1
    assert not {"nexus_requests_in_flight", "nexus_queue_depth", "nexus_topic_backlog"} & {name for name, _ in taken}
    assert SECRET not in metrics.exposition({}).decode()


def test_foreign_texts_are_no_labels() -> None:
    """Whatever is given by mistake in place of a member is counted as `other` or not at all."""
    metrics, foreign = PrometheusMetrics(), SECRET
    anything: Any = metrics
    anything.count(foreign)
    anything.answered(foreign)
    anything.degraded(foreign)
    anything.left_out(foreign)
    anything.dead_letter(foreign)
    anything.model_called(foreign, foreign, 1, 1)
    anything.took(foreign, 1.0)
    anything.backlog_from(foreign, lambda: 5.0)
    read = samples(metrics)
    assert read["nexus_requests_total", ("other",)] == 1
    assert read["nexus_degraded_total", ("other",)] == 1
    assert read["nexus_left_out_total", ("other",)] == 1
    assert read["nexus_dead_letters_total", ("other",)] == 1
    assert read["nexus_topic_backlog", ("other",)] == 5
    assert SECRET not in metrics.exposition({}).decode()


def test_the_names_are_prometheus_s() -> None:
    """One prefix, snake case, units spelled out, counters in `_total`, a help text each, and no series of creation."""
    metrics: Metrics = PrometheusMetrics()
    metrics.answered(None)
    assert isinstance(metrics, PrometheusMetrics)
    for family in text_string_to_metric_families(metrics.exposition({}).decode()):
        assert re.fullmatch(r"(nexus|process)(_[a-z]+)+", family.name)
        assert family.documentation
        assert family.type in {"counter", "gauge", "histogram"}
        assert not any(sample.name.endswith("_created") for sample in family.samples)
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples)
