"""A compaction before it is stored: what it covers, its summary and its archive (CONTRACT §7). Pure.

It takes time that grows with the rows, so it is done in a thread.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from nexus.core.ports import Row, TokenCounter
from nexus.core.working_memory import WHOLE, Compaction, Detail, Wish
from nexus.services.context.agents import is_internal
from nexus.services.context.annotations import read_tool_calls
from nexus.services.context.clock import parse_moment
from nexus.services.context.memory import as_text
from nexus.services.context.tokens import Measure
from nexus.services.context.transcript import SPEAKERS
from nexus.services.memory.archives import archive
from nexus.services.memory.choosing import Chooser
from nexus.services.memory.progress import NOTHING_KNOWN, Known
from nexus.services.memory.reading import Found
from nexus.services.memory.telling import by_run, tell
from nexus.services.rows import storable
from nexus.services.turns.documents import to_milliseconds
from nexus.services.turns.sentences import weight


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """What compacting needs of the settings.

    Attributes:
        idle_s: after so long a silence a run is over although its answer is not known.
        summary_max_tokens: that a summary may have.
        refine: whether a model is to write a better one later.
        detail_max_bytes: of one part of an archive.
    """

    idle_s: float = 300.0
    summary_max_tokens: int = 1_500
    refine: bool = False
    detail_max_bytes: int = 65_536

    @property
    def idle(self) -> timedelta:
        """`idle_s` as a time."""
        return timedelta(seconds=self.idle_s)


@dataclass(frozen=True, slots=True)
class Draft:
    """What is to be stored.

    Attributes:
        compaction: without the names of its archive.
        covered: its rows.
    """

    compaction: Compaction
    covered: tuple[Row, ...]

    @property
    def gains(self) -> bool:
        """Whether a context is shorter with it."""
        made = self.compaction
        return made.tokens_after - made.tokens_carried < made.tokens_before

    def archive(self, most_bytes: int, again: int) -> list[Detail]:
        """Its rows word for word; `again` says which attempt this is, where the names of others are taken."""
        number, now = self.compaction.number, self.compaction.created_at
        return [
            Detail(
                name=part.name,
                version=1,
                kind="archive",
                bytes=weight(part.content),
                updated_at=now,
                content=storable(part.content),
                compaction=number,
                call_id=self.compaction.call_id,
            )
            for part in archive(self.covered, number, most_bytes=most_bytes, again=again)
        ]


def draft(
    wish: Wish,
    found: Found,
    latest: Compaction | None,
    now: datetime,
    *,
    counter: TokenCounter,
    settings: CompactionSettings,
    known: Known = NOTHING_KNOWN,
) -> Draft | None:
    """The compaction that follows `latest`; None where there is nothing to compact.

    Args:
        wish: what is wanted.
        found: rows of the tail.
        latest: the newest compaction; None for none.
        now: the time, to the millisecond.
        counter: counts tokens.
        settings: how it is done.
        known: what is known of runs by other rows.
    """
    measure = Measure(counter)
    chooser = Chooser(now, settings.idle, partial(cost_of, measure), known)
    choice = chooser.choose(wish, found, latest.tail if latest else WHOLE)
    covered = choice.covered
    if not covered:
        return None
    before, total = (latest.summary, latest.total) if latest else ("", 0)
    # A model that asks does not know of any window; that of the session was last known to whoever compacted it last.
    wanted = wish.summary_tokens or (latest.summary_tokens if latest else None)
    most_tokens = min(settings.summary_max_tokens, wanted or settings.summary_max_tokens)
    summary = tell(
        before,
        by_run(covered),
        most_tokens=most_tokens,
        count=counter.count,
        told_before=total,
        by_model=latest is not None and latest.source == "model",
        elsewhere=_runs_shown(found.rows, covered),
    )
    moments = [moment for row in covered if (moment := parse_moment(row.get("timestamp")))]
    compaction = Compaction(
        number=1 + (latest.number if latest else 0),
        created_at=now,
        target=choice.target,
        strategy=wish.strategy,
        trigger=wish.trigger,
        summary=storable(summary),
        rows=tuple(row["_id"] for row in covered),
        count=len(covered),
        total=total + len(covered),
        is_step=found.goes_on,
        since=choice.tail.since,
        without=tuple(sorted(choice.tail.without)),
        first_at=_stored(min(moments, default=None)),
        last_at=_stored(max(moments, default=None)),
        keep_recent=wish.keep_recent,
        summary_tokens=most_tokens,
        run_id=wish.run_id,
        call_id=wish.call_id,
        tokens_before=sum(cost_of(measure, row) for row in covered),
        tokens_after=measure.text(summary),
        tokens_carried=measure.text(before) if before else 0,
    )
    return Draft(compaction, covered)


def _runs_shown(rows: Iterable[Row], covered: Iterable[Row]) -> frozenset[str]:
    """The runs of which something is left that may be shown."""
    taken = {row["_id"] for row in covered}
    left = [row for row in rows if row["_id"] not in taken and not is_internal(row.get("metadata"))]
    return frozenset(run_id for row in left if isinstance(run_id := row.get("run_id"), str))


def cost_of(measure: Measure, row: Row) -> int:
    """How many tokens the row takes in a context; none where it is never shown."""
    role, metadata = row.get("role"), row.get("metadata")
    speaker = SPEAKERS.get(role.lower()) if isinstance(role, str) else None
    if speaker is None:
        return 0
    calls = read_tool_calls(metadata.get("tool_calls")) if isinstance(metadata, Mapping) else ()
    shown = [{"function": {"name": call.name, "arguments": call.raw_arguments}} for call in calls]
    return measure.message({"role": speaker, "content": as_text(row.get("content")), "tool_calls": shown})


def _stored(moment: datetime | None) -> datetime | None:
    return to_milliseconds(moment) if moment else None
