"""What all replicas do now and did in the last minutes (contract §16)."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, Final

import anyio
from starlette.responses import Response

from nexus.config import Settings
from nexus.core.errors import BusUnavailableError, StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import BOUNDS_S
from nexus.core.models import utc_now
from nexus.core.ports import DeadLetters
from nexus.core.replicas import DueWork, Replica, Sample
from nexus.http.console.shell import Page, Visit
from nexus.services.replicas import EVERY_S, MOST_DUE, MOST_SAMPLES, quantile, rate, totals

# Samples of the last minute.
_LATELY: Final = 60 // EVERY_S
# A sample is there for others so much later than it was taken.
_WRITTEN_WITHIN: Final = timedelta(seconds=1)
_SILENT: Final = timedelta(seconds=3 * EVERY_S)
# Whoever looks at this page may do so because Redis is away.
_PATIENCE_S: Final = 1.0
# Of a chart, in units of its own.
_WIDTH: Final = 300
_HEIGHT: Final = 60
_SPACE: Final = 2
_TWO_DIGITS: Final = 10


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over the last minutes.

    Attributes:
        lines: of each, the `points` of its parts: where nothing is known it is interrupted.
        top: what its upper end stands for; `""` where nothing is known.
    """

    lines: list[list[str]]
    top: str
    width: int = _WIDTH
    height: int = _HEIGHT


async def live(visit: Visit) -> Response:
    """The figures of all replicas; of this one alone where the store is away."""
    services, now = visit.services, utc_now()
    replicas, due, fault = [services.replicas.own], None, ""
    try:
        replicas = await services.replicas.all()
        due = await services.replicas.due()
    except (StoreUnavailableError, StoreRejectedError) as error:
        fault = str(error)
    moments = _moments(replicas, now)
    lately = [moment for moment in moments[-_LATELY:] if moment]
    known = [sample for moment in moments for sample in moment]
    latest = [replica.samples[-1] for replica in replicas if replica.samples and not _is_silent(replica, now)]
    return visit.page(
        "live.html",
        replicas=[_described(replica, now) for replica in replicas],
        due=_due(due, services.settings) if due else None,
        fault=fault,
        letters=await _count(services.letters),
        is_known=bool(known),
        rate=_short(_mean_rate(lately)),
        p50=_duration(_quantile(lately, 0.5)),
        p99=_duration(_quantile(lately, 0.99)),
        answers=totals([sample.answers for sample in known]),
        degraded=totals([sample.degraded for sample in known]),
        dead_letters=totals([sample.dead_letters for sample in known]),
        in_flight=sum(sample.in_flight for sample in latest),
        waiting=totals([sample.waiting for sample in latest]),
        on_bus=_on_bus(latest),
        rates=_chart(moments, _short, rate),
        times=_chart(moments, _duration, lambda moment: quantile(moment, 0.5), lambda moment: quantile(moment, 0.99)),
        queues=_chart(moments, _short, _all_waiting),
        minutes=MOST_SAMPLES * EVERY_S // 60,
        is_paused=bool(visit.asked("paused")),
        every_s=EVERY_S,
    )


def _moments(replicas: Sequence[Replica], now: datetime) -> list[list[Sample]]:
    """Of each moment of the last minutes, oldest first, the samples of all replicas."""
    moments: list[list[Sample]] = [[] for _ in range(MOST_SAMPLES)]
    latest = int((now - _WRITTEN_WITHIN).timestamp()) // EVERY_S
    for sample in (sample for replica in replicas for sample in replica.samples):
        age = latest - round(sample.at.timestamp() / EVERY_S)
        if 0 <= age < MOST_SAMPLES:
            moments[-1 - age].append(sample)
    return moments


def _described(replica: Replica, now: datetime) -> Mapping[str, Any]:
    samples = replica.samples[-_LATELY:]
    latest = [] if _is_silent(replica, now) else [*samples[-1:]]
    return {
        "replica": replica,
        "silent_s": math.floor((now - replica.at).total_seconds()) if _is_silent(replica, now) else None,
        "rate": _short(_mean_rate([[sample] for sample in samples])) if latest else "",
        "p99": _duration(quantile(samples, 0.99)) if latest else "",
        "in_flight": sum(sample.in_flight for sample in latest),
        "waiting": sum(sum(sample.waiting.values()) for sample in latest),
    }


def _is_silent(replica: Replica, now: datetime) -> bool:
    return now - replica.at > _SILENT


def _mean_rate(moments: Sequence[Sequence[Sample]]) -> float | None:
    return sum(map(rate, moments)) / len(moments) if moments else None


def _quantile(moments: Sequence[Sequence[Sample]], share: float) -> float | None:
    return quantile([sample for moment in moments for sample in moment], share)


def _on_bus(samples: Sequence[Sample]) -> int:
    return max((sample.on_bus for sample in samples), default=0)


def _all_waiting(moment: Sequence[Sample]) -> float:
    return _on_bus(moment) + sum(sample.in_flight + sum(sample.waiting.values()) for sample in moment)


def _due(due: DueWork, settings: Settings) -> list[tuple[str, str]]:
    """What is due, by what it is; without what nobody does by these settings."""
    counts = {"turns to close": due.turns_to_close}
    if settings.llm.enabled:
        counts["turns to summarise"] = due.turns_to_summarise
        counts["compactions to summarise"] = due.compactions_to_summarise
    if settings.facts.extract == "model":
        counts["turns to read facts in"] = due.turns_to_read
    if settings.recall.enabled:
        counts["messages to index"] = due.messages_to_index
    if settings.recall.enabled and settings.recall.embedder != "off":
        counts["messages to embed"] = due.messages_to_embed
    return [(name, f"{MOST_DUE:,} or more" if n > MOST_DUE else f"{n:,}") for name, n in counts.items()]


async def _count(letters: DeadLetters) -> int | None:
    with anyio.move_on_after(_PATIENCE_S), suppress(BusUnavailableError):
        return await letters.count()
    return None


def _chart(
    moments: Sequence[Sequence[Sample]],
    shown: Callable[[float], str],
    *lines: Callable[[Sequence[Sample]], float | None],
) -> Chart:
    """A chart of these values of each moment. One that is endless ends with the chart."""
    values = [[_finite(line(moment)) if moment else None for moment in moments] for line in lines]
    top = max((value for line in values for value in line if value is not None), default=None)
    if top is None:
        return Chart([[] for _ in lines], "")
    return Chart([[*_parts(line, top or 1)] for line in values], shown(top))


def _parts(values: Sequence[float | None], top: float) -> Iterator[str]:
    """The points of each part of a line, from left to right."""
    step = _WIDTH / (len(values) - 1)
    for is_known, part in groupby(enumerate(values), lambda each: each[1] is not None):
        points = [(place * step, value) for place, value in part if value is not None]
        if is_known:
            # A part of one point has some width, too.
            ends = [*points, (points[0][0] + 1, points[0][1])] if len(points) == 1 else points
            yield " ".join(f"{x:.1f},{_HEIGHT - _SPACE - y / top * (_HEIGHT - 2 * _SPACE):.1f}" for x, y in ends)


def _finite(value: float | None) -> float | None:
    return BOUNDS_S[-1] if value == math.inf else value


def _short(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1f}" if 0 < value < _TWO_DIGITS else f"{value:,.0f}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds >= BOUNDS_S[-1]:
        return f"{BOUNDS_S[-1]:g} s or more"
    return f"{_short(seconds)} s" if seconds >= 1 else f"{_short(seconds * 1_000)} ms"


PAGES: Final[Mapping[str, Page]] = {"": live, "live": live}
