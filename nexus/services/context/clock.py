"""Moments and offsets as they come from the outside: read leniently, compared as moments, never as text (CONTRACT §2).

No function here reads the clock.
"""

from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from typing import Any, Final

from nexus.core.models import as_utc

# The moment of what has no readable time.
LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
# Offsets in use on earth end at 14 hours; anything beyond is a mistake (CONTRACT §4.5).
_LARGEST_OFFSET: Final = 14 * 60


def parse_moment(value: Any) -> datetime | None:
    """An aware UTC datetime from an aware or naive (UTC) datetime or an ISO 8601 text; None when it cannot be read."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip().upper())
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    if value.tzinfo is UTC:
        return value
    try:
        return as_utc(value)
    except OverflowError:
        return None


def parse_offset(value: Any) -> int | None:
    """Minutes west of UTC, as JavaScript's `getTimezoneOffset` gives them; None when unreadable or beyond 14 hours."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        minutes = float(value)
    except (ValueError, OverflowError):
        return None
    if not minutes.is_integer() or abs(minutes) > _LARGEST_OFFSET:
        return None
    return int(minutes)


def at_offset(moment: datetime, minutes_west: int) -> datetime:
    """`moment` on a clock `minutes_west` of UTC (UTC+8 is -480); in UTC at the very ends of the calendar."""
    try:
        return moment.astimezone(_zone(minutes_west))
    except OverflowError:
        return moment.astimezone(UTC)


@lru_cache(maxsize=256)
def _zone(minutes_west: int) -> timezone:
    return timezone(timedelta(minutes=-minutes_west))
