"""Metrics in the text format of Prometheus.

- Each service has its own registry, so that a process can hold several services.
- Every series of a closed set exists from the start, at 0, so that a rate over its first increase is right.
- A gauge whose value cannot be read is left out of the scrape, which does not fail for it.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from itertools import pairwise
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nexus.core.errors import ErrorCode
from nexus.core.metrics import (
    BOUNDS_S,
    CallOutcome,
    DeadLetterCause,
    Event,
    Figures,
    Part,
    Purpose,
    Reading,
    Stage,
)
from nexus.core.models import ALL_TOPICS, Why

_log = structlog.get_logger(__name__)

# Seconds: from the longest that one message may take of the loop to the longest deadline but a few.
_STALLS: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

_OTHER: Final = "other"
_SUCCESS: Final = "success"
# Counters of events: the name, the text, and the results by event.
_RESULTS: Final[Mapping[str, tuple[str, Mapping[Event, str]]]] = {
    "nexus_rows": (
        "Rows by what became of them.",
        {Event.ROW_RECORDED: "recorded", Event.ROW_REJECTED: "rejected", Event.ROW_LOST: "lost"},
    ),
    "nexus_session_states": (
        "Changes of sessions by what became of them.",
        {Event.STATE_RECORDED: "recorded", Event.STATE_REFUSED: "refused", Event.STATE_LOST: "lost"},
    ),
    "nexus_facts": (
        "Messages with facts by what became of them.",
        {Event.FACTS_RECORDED: "recorded", Event.FACTS_REFUSED: "refused", Event.FACTS_LOST: "lost"},
    ),
    "nexus_constraints": (
        "Messages on constraints by what became of them.",
        {
            Event.CONSTRAINTS_RECORDED: "recorded",
            Event.CONSTRAINTS_REFUSED: "refused",
            Event.CONSTRAINTS_LOST: "lost",
        },
    ),
    "nexus_turns": (
        "Turns by what became of them.",
        {
            Event.TURN_BEGUN: "begun",
            Event.TURN_CLOSED: "closed",
            Event.TURN_SUMMARISED: "summarised",
            Event.TURN_LOST: "lost",
            Event.SUMMARY_DELAYED: "model_away",
            Event.SUMMARY_REFUSED: "nonsense",
            Event.SUMMARY_GIVEN_UP: "given_up",
        },
    ),
    "nexus_compactions": (
        "Compactions by what became of them.",
        {
            Event.COMPACTION_REFINED: "refined",
            Event.REFINING_DELAYED: "model_away",
            Event.REFINING_REFUSED: "nonsense",
            Event.REFINING_GIVEN_UP: "given_up",
        },
    ),
    "nexus_extracted_facts": (
        "Facts that a model reported, by whether a person's words support them; and turns without its answer.",
        {
            Event.FACT_EXTRACTED: "kept",
            Event.FACT_UNSUPPORTED: "refused",
            Event.EXTRACTION_DELAYED: "model_away",
            Event.EXTRACTION_REFUSED: "nonsense",
            Event.EXTRACTION_GIVEN_UP: "given_up",
        },
    ),
    "nexus_tool_calls": (
        "Calls of memory tools by what became of them.",
        {Event.CALL_DONE: "done", Event.CALL_REFUSED: "refused", Event.CALL_FAILED: "failed"},
    ),
    "nexus_recall": (
        "Messages by what became of them in the index, and how often its work was delayed.",
        {Event.RECALL_INDEXED: "indexed", Event.RECALL_FAILED: "failed", Event.RECALL_DELAYED: "delayed"},
    ),
    "nexus_records": (
        "Records of answers by what became of them.",
        {Event.RECORD_KEPT: "kept", Event.RECORD_LOST: "lost"},
    ),
    "nexus_removed": (
        "What retention removed, by collection.",
        {
            Event.ROW_REMOVED: "messages",
            Event.TURN_REMOVED: "turns",
            Event.REVISION_REMOVED: "memory_revisions",
            Event.DETAIL_REMOVED: "details",
            Event.LETTER_REMOVED: "dead_letters",
        },
    ),
}
_EVENTS: Final = {
    Event.LEASE_TAKEN_OVER: ("nexus_leases_taken_over", "Requests acquired that another replica had not finished."),
    Event.ANSWER_UNHEARD: ("nexus_answers_unheard", "Answers published to which nobody was subscribed."),
    Event.ANSWER_REPEATED: ("nexus_answers_repeated", "Kept answers announced again to who asked again."),
    Event.LATE_ANSWER_DISCARDED: ("nexus_late_answers_discarded", "Answers discarded: another replica had answered."),
    Event.REQUEST_DROPPED: ("nexus_requests_dropped", "Requests let go without an answer, beyond every bound."),
    Event.DEAD_LETTER_LOST: ("nexus_dead_letters_lost", "Messages that could not even become dead letters."),
    Event.ERASED_REFUSED: ("nexus_erased_refused", "What is from before an erasure, and was not stored again."),
    Event.BACKGROUND_FAULT: ("nexus_background_faults", "Unexpected errors in background tasks, which went on."),
}
_QUEUES: Final = {
    Reading.WAITING_REQUESTS: "requests",
    Reading.WAITING_REFUSALS: "refusals",
    Reading.UNWRITTEN_ROWS: "rows",
    Reading.UNWRITTEN_STATES: "states",
    Reading.UNWRITTEN_FACTS: "facts",
    Reading.UNWRITTEN_CONSTRAINTS: "constraints",
    Reading.UNWRITTEN_RECORDS: "records",
    Reading.UNWRITTEN_TURNS: "turns",
    Reading.UNFINISHED_CALLS: "calls",
}


class PrometheusMetrics:
    """`nexus.core.metrics.Metrics`, to be scraped."""

    def __init__(self, *, version: str = "") -> None:
        registry = self._registry = _Registry(auto_describe=False)
        self._events = {event: Counter(name, text, registry=registry) for event, (name, text) in _EVENTS.items()}
        for name, (text, results) in _RESULTS.items():
            counter = Counter(name, text, ["result"], registry=registry)
            self._events |= {event: counter.labels(result) for event, result in results.items()}
        outcomes = (_SUCCESS, *(code.value for code in ErrorCode))
        self._outcomes = _series(registry, "nexus_requests", "Answered requests by outcome.", "outcome", outcomes)
        self._parts = _series(registry, "nexus_degraded", "Contexts built without a part.", "part", _values(Part))
        reasons = tuple(why.name.lower() for why in Why)
        self._reasons = _series(registry, "nexus_left_out", "What contexts do not show.", "reason", reasons)
        causes = _values(DeadLetterCause)
        self._causes = _series(registry, "nexus_dead_letters", "Messages that could not be used.", "reason", causes)
        calls = Counter("nexus_llm_calls", "Calls of the model.", ["purpose", "outcome"], registry=registry)
        self._calls = {
            (purpose, outcome): calls.labels(purpose.value, outcome.value)
            for purpose in Purpose
            for outcome in CallOutcome
        }
        text = "Tokens of calls of the model, as the endpoint reported them."
        tokens = Counter("nexus_llm_tokens", text, ["purpose", "kind"], registry=registry)
        self._tokens = {
            purpose: [tokens.labels(purpose.value, kind) for kind in ("prompt", "completion")] for purpose in Purpose
        }
        stages = Histogram(
            "nexus_stage_seconds",
            "Time that requests spend in a stage.",
            ["stage"],
            registry=registry,
            buckets=BOUNDS_S,
        )
        self._stages = {stage.value: stages.labels(stage.value) for stage in Stage}
        text = "How late the event loop calls a task that is due, looked at every 20 ms."
        self._stalls = Histogram("nexus_loop_stall_seconds", text, registry=registry, buckets=_STALLS)
        self._readings = _Readings()
        registry.register(self._readings)
        text = "Whether a check of readiness is well: 1, or else 0."
        self._ready = Gauge("nexus_ready", text, ["check"], registry=registry)
        build = Gauge("nexus_build_info", "Which Nexus this is; always 1.", ["version"], registry=registry)
        build.labels(version).set(1)
        ProcessCollector(registry=registry)

    def count(self, event: Event, amount: int = 1) -> None:
        """The event happened, `amount` times."""
        if event in self._events and amount > 0:
            self._events[event].inc(amount)

    def answered(self, code: ErrorCode | None) -> None:
        """A request got its answer: an error with this code, or for None a success."""
        _count(self._outcomes, _SUCCESS if code is None else code)

    def degraded(self, part: Part) -> None:
        """A context was built without this part."""
        _count(self._parts, part)

    def left_out(self, why: Why, amount: int = 1) -> None:
        """A context has so many entries of `left_out` for this reason."""
        _count(self._reasons, why.name.lower() if isinstance(why, Why) else _OTHER, amount)

    def dead_letter(self, cause: DeadLetterCause) -> None:
        """A message became a dead letter."""
        _count(self._causes, cause)

    def model_called(
        self, purpose: Purpose, outcome: CallOutcome, prompt_tokens: int = 0, completion_tokens: int = 0
    ) -> None:
        """A model was called, and took so many tokens."""
        if (purpose, outcome) in self._calls:
            self._calls[purpose, outcome].inc()
            for counter, tokens in zip(self._tokens[purpose], (prompt_tokens, completion_tokens), strict=True):
                counter.inc(max(tokens, 0))

    def took(self, stage: Stage, seconds: float) -> None:
        """A stage of one request took `seconds`. A value that is no length of time is ignored."""
        stage_seconds = self._stages.get(stage)
        if stage_seconds is not None and math.isfinite(seconds):
            stage_seconds.observe(max(seconds, 0.0))

    def stalled(self, seconds: float) -> None:
        """The event loop called a waiting task so many seconds late."""
        self._stalls.observe(max(seconds, 0.0))

    def read_from(self, reading: Reading, read: Callable[[], float]) -> None:
        """Have `read` called at each scrape."""
        self._readings.readings[reading] = read

    def backlog_from(self, topic: str, read: Callable[[], float]) -> None:
        """Have `read` called at each scrape for the backlog of `topic`."""
        self._readings.backlogs[topic if topic in ALL_TOPICS else _OTHER] = read

    def exposition(self, checks: Mapping[str, bool]) -> bytes:
        """Everything, in Prometheus's text format 0.0.4; `checks` of readiness are well or not."""
        for check, well in checks.items():
            self._ready.labels(check).set(well)
        return generate_latest(self._registry)

    def figures(self) -> Figures:
        """What was counted so far, and what waits now."""
        read = self._readings.read()
        return Figures(
            answers=_counted(self._outcomes),
            degraded=_counted(self._parts),
            dead_letters=_counted(self._causes),
            durations=_buckets(self._stages[Stage.TOTAL]),
            in_flight=int(read.get(Reading.IN_FLIGHT, 0)),
            waiting={queue: int(read[reading]) for reading, queue in _QUEUES.items() if read.get(reading)},
            on_bus=int(sum(self._readings.read_backlogs().values())),
        )


class _Readings(Collector):
    """What others keep, asked at the scrape."""

    def __init__(self) -> None:
        self.readings: dict[Reading, Callable[[], float]] = {}
        self.backlogs: dict[str, Callable[[], float]] = {}

    def read(self) -> dict[Reading, float]:
        """The readings that can be had now."""
        return {reading: value for reading, ask in self.readings.items() if (value := _asked(ask)) is not None}

    def read_backlogs(self) -> dict[str, float]:
        """The backlogs that can be had now, by topic."""
        return {topic: value for topic, ask in self.backlogs.items() if (value := _asked(ask)) is not None}

    def collect(self) -> Iterator[Metric]:
        """What can be had now."""
        read = self.read()
        text = "Requests that are being answered."
        yield GaugeMetricFamily("nexus_requests_in_flight", text, read.get(Reading.IN_FLIGHT))
        text = "Inputs that wait in the outbox for MongoDB; the same from every replica."
        yield GaugeMetricFamily("nexus_outbox_rows", text, read.get(Reading.OUTBOX_ROWS))
        text = "How often the subscription was opened anew."
        yield CounterMetricFamily("nexus_bus_reconnects", text, read.get(Reading.BUS_RECONNECTS))
        queues = GaugeMetricFamily("nexus_queue_depth", "What waits in this process.", labels=["queue"])
        for reading, queue in _QUEUES.items():
            if reading in read:
                queues.add_metric([queue], read[reading])
        backlog = GaugeMetricFamily("nexus_topic_backlog", "Messages that wait on the bus.", labels=["topic"])
        for topic, value in self.read_backlogs().items():
            backlog.add_metric([topic], value)
        yield from (queues, backlog)


class _Registry(CollectorRegistry):
    """A registry without the series that say since when each of the others counts: they double the scrape."""

    def collect(self) -> Iterator[Metric]:
        """All metrics, without those series."""
        for metric in super().collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


def _series(
    registry: CollectorRegistry, name: str, text: str, label: str, values: tuple[str, ...]
) -> dict[str, Counter]:
    counter = Counter(name, text, [label], registry=registry)
    return {value: counter.labels(value) for value in dict.fromkeys((*values, _OTHER))}


def _count(series: Mapping[str, Counter], label: str, amount: int = 1) -> None:
    series.get(label, series[_OTHER]).inc(amount)


def _counted(series: Mapping[str, Counter]) -> dict[str, int]:
    """By label, what was counted of it at all."""
    counts = {label: sum(_samples(counter, "_total")) for label, counter in series.items()}
    return {label: count for label, count in counts.items() if count}


def _buckets(histogram: Histogram) -> tuple[int, ...]:
    """The count of each bucket by itself."""
    cumulated = [0, *_samples(histogram, "_bucket")]
    return tuple(more - less for less, more in pairwise(cumulated))


def _samples(metric: Counter | Histogram, suffix: str) -> list[int]:
    return [int(each.value) for family in metric.collect() for each in family.samples if each.name.endswith(suffix)]


def _values(names: type[StrEnum]) -> tuple[str, ...]:
    return tuple(name.value for name in names)


def _asked(read: Callable[[], float]) -> float | None:
    try:
        value = float(read())
    except Exception:  # noqa: BLE001  # whatever is wrong with one reading, the scrape goes on without it
        _log.exception("metric_not_read")
        return None
    return value if math.isfinite(value) else None
