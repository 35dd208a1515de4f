"""What is told of answers, and for how long they are kept (CONTRACT §1.4, §1.5)."""

import time
from typing import Final

import structlog

from nexus.core.errors import ErrorCode
from nexus.core.metrics import Event, Metrics, Stage
from nexus.core.ports import Bus
from nexus.services.asks import Ask, RequestSettings

_log = structlog.get_logger(__name__)

# For how long copies of a request may turn up, whose longest deadline is 60 s; and those of a signed one that somebody
# overheard and sends again.
_ON_ITS_WAY_MS: Final = 120_000
_REPLAYABLE_MS: Final = 600_000
# An agent asks at each of its steps, and is each time answered with all of its session.
_LARGE: Final = 256 << 10


class Telling:
    """Counts and logs answers.

    Args:
        bus: told of a delivery that is done with.
        settings: for how long answers are kept.
        metrics: what is counted.
    """

    def __init__(self, bus: Bus, settings: RequestSettings, metrics: Metrics) -> None:
        self._bus = bus
        self._settings = settings
        self._metrics = metrics

    def keep_ms(self, code: ErrorCode | None, size: int) -> int:
        """At least as long as copies may turn up; what fills Redis, by its size or by its number, no longer."""
        shortest_ms = _REPLAYABLE_MS if self._settings.signing else _ON_ITS_WAY_MS
        if size > _LARGE or (code and (code.retryable or code is ErrorCode.UNAUTHENTICATED)):
            return shortest_ms
        return max(self._settings.answer_ttl_ms, shortest_ms)

    def tell(self, ask: Ask, heard: int | None, code: ErrorCode | None, size: int, started: float) -> None:
        """Count and log an answer: how many heard it, or None where there was one before."""
        ended = time.monotonic()
        if heard is None:
            self._bus.done(ask.delivery)
            self._metrics.count(Event.LATE_ANSWER_DISCARDED)
        else:
            self._metrics.answered(code)
            self._metrics.took(Stage.FINISH, ended - started)
            self._metrics.took(Stage.TOTAL, ended - ask.at)
        if heard == 0:
            self._metrics.count(Event.ANSWER_UNHEARD)
            _log.info("answer_unheard", request_id=ask.ids.id)
        _log.info(
            "late_answer_discarded" if heard is None else "answered",
            request_id=ask.ids.id,
            run_id=ask.ids.run_id,
            outcome=code.value if code else "success",
            bytes=size,
            ms=round((ended - ask.at) * 1_000, 1),
        )
