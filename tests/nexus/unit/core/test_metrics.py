"""The port that takes metrics: what goes nowhere goes there quietly, and the sets of labels are closed."""

import re

from nexus.core.errors import ErrorCode
from nexus.core.metrics import DeadLetterCause, Event, Metrics, NoMetrics, Part, Reading, Stage
from nexus.core.models import Topics


def test_no_metrics_take_everything() -> None:
    """It has every operation of the port, and asks nobody for anything."""
    metrics: Metrics = NoMetrics()
    asked: list[int] = []

    def read() -> float:
        asked.append(1)
        return 1.0

    metrics.count(Event.ROW_RECORDED, 2)
    metrics.answered(None)
    metrics.answered(ErrorCode.INTERNAL)
    metrics.degraded(Part.HISTORY)
    metrics.buried(DeadLetterCause.POISON)
    metrics.took(Stage.TOTAL, 0.1)
    metrics.read_from(Reading.IN_FLIGHT, read)
    metrics.backlog_from(Topics.CONTEXT_BUILD_REQUEST, read)
    assert asked == []


def test_labels_are_plain_names() -> None:
    """What can become a label is a word of the code."""
    for names in (Event, Stage, Part, DeadLetterCause, Reading):
        assert all(re.fullmatch(r"[a-z_]+", name.value) for name in names)
