"""A compaction before it is stored: what it covers, its summary and its archive (CONTRACT §7). Pure.

It takes time that grows with the rows, so it is done in a thread.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from nexus.core.ports import Row, TokenCounter
from nexus.core.working_memory import WHOLE, Compaction, Detail, Wish
from nexus.services.context.annotations import read_tool_calls
from nexus.services.context.clock import parse_moment
from nexus.services.context.memory import as_text
from nexus.services.context.tokens import Measure
from nexus.services.context.transcript import SPEAKERS
from nexus.services.memory.archives import archive
from nexus.services.memory.planning import Keep, Plan, plan, stored_at, tail_after
from nexus.services.memory.reading import Found
from nexus.services.memory.telling import by_run, tell
from nexus.services.rows import storable
from nexus.services.turns.documents import to_milliseconds
from nexus.services.turns.sentences import weight

# Before all that is stored.
_FIRST: Final = datetime.fromtimestamp(1, UTC)


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
    over: Collection[str] = (),
) -> Draft | None:
    """The compaction that follows `latest`; None where there is nothing to compact.

    Args:
        wish: what is wanted.
        found: rows of the tail.
        latest: the newest compaction; None for none.
        now: the time, to the millisecond.
        counter: counts tokens.
        settings: how it is done.
        over: runs that are known to be over; see `planning.plan`.
    """
    measure = Measure(counter)
    covered = _plan(wish, found, now, settings, measure, over).covered
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
    )
    tail = tail_after(latest.tail if latest else WHOLE, found.rows, covered, _until(found) if found.goes_on else now)
    moments = [moment for row in covered if (moment := parse_moment(row.get("timestamp")))]
    compaction = Compaction(
        number=1 + (latest.number if latest else 0),
        created_at=now,
        target="all" if found.goes_on else wish.target,
        strategy=wish.strategy,
        trigger=wish.trigger,
        summary=storable(summary),
        rows=tuple(row["_id"] for row in covered),
        count=len(covered),
        total=total + len(covered),
        since=tail.since,
        without=tuple(sorted(tail.without)),
        first_at=_stored(min(moments, default=None)),
        last_at=_stored(max(moments, default=None)),
        keep_recent=None if found.goes_on else wish.keep_recent,
        summary_tokens=most_tokens,
        run_id=wish.run_id,
        # Only the last step does what was asked for.
        call_id="" if found.goes_on else wish.call_id,
        tokens_before=measure.text(before) + sum(_cost(measure, row) for row in covered),
        tokens_after=measure.text(summary),
    )
    return Draft(compaction, covered)


def _plan(  # noqa: PLR0917  # one for each thing that it depends on
    wish: Wish, found: Found, now: datetime, settings: CompactionSettings, measure: Measure, over: Collection[str]
) -> Plan:
    if found.goes_on:
        # Later rows are not at hand: what is not seen to be over may go on in them.
        return plan(found.rows, now=now, idle=None, run_id=wish.run_id, over=over)
    keep = Keep(wish.keep_recent, wish.keep_tokens, partial(_cost, measure))
    return plan(found.rows, keep, now=now, idle=settings.idle, target=wish.target, run_id=wish.run_id, over=over)


def _until(found: Found) -> datetime:
    """Before what was stored later than these rows, which come in that order."""
    return max((moment for row in found.rows if (moment := stored_at(row))), default=_FIRST)


def _cost(measure: Measure, row: Row) -> int:
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
