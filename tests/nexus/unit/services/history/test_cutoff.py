"""Up to which row the history of a run goes (contract §4.6)."""

from datetime import UTC, datetime, timedelta

import pytest

from nexus.core.ports import Row
from nexus.services.history.reader import UntilShown, UntilStored

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ONE, OTHER = "a" * 10, "0" * 10


def row(second: float, replica: str = ONE, count: int = 0, *, at: float | None = None) -> Row:
    """A row that a replica stored so many seconds after noon, said at that time or another."""
    stored = int((NOON + timedelta(seconds=int(second))).timestamp())
    said = NOON + timedelta(seconds=second if at is None else at)
    return {"_id": f"{stored:08x}{replica}{count:06x}", "timestamp": said}


class TestUntilShown:
    """Exactly the rows that were shown, and everything older than all that could be doubtful."""

    def test_what_was_shown(self) -> None:
        """Is included, whatever is stored later, by which replica and in which order of ids."""
        shown = [row(0), row(5, OTHER, 7), row(5, ONE, 1), row(6, OTHER, 8)]
        until = UntilShown.of(shown)
        assert all(map(until.includes, shown))
        later = [row(6, OTHER, 9), row(6, ONE, 0), row(6, "f" * 10), row(5, OTHER, 1), row(4.5, OTHER), row(60)]
        assert not any(map(until.includes, later))

    def test_older_ones(self) -> None:
        """Are included although they were not shown: the limit of a read may let more of them in."""
        assert UntilShown.of([row(10)]).includes(row(7))

    def test_nothing_was_shown(self) -> None:
        """So nothing is part of it but what another program stored."""
        assert not UntilShown.of([]).includes(row(0))
        assert UntilShown.of([]).includes({"_id": "zzz"})

    def test_ids_of_other_programs(self) -> None:
        """Say nothing."""
        until = UntilShown.of([{"_id": "zzz"}, row(5)])
        assert until.includes({"_id": "zzz"})
        assert not until.includes(row(6))


class TestUntilStored:
    """What was stored before a run's input."""

    @pytest.mark.parametrize(
        ("other", "included"),
        [
            (row(4, OTHER), True),
            (row(6, OTHER), False),
            (row(5, ONE, 4), True),
            (row(5, ONE, 6), False),
            (row(5.2, OTHER, 9), True),
            (row(5.9, OTHER, 1), False),
            (row(5.5, OTHER, 9), True),
        ],
    )
    def test_seconds_then_replicas_then_times(self, other: Row, included: bool) -> None:
        """Within the second the same replica's ids count, and of another one what the rows say of their time."""
        assert UntilStored.of(row(5.5, ONE, 5)).includes(other) is included

    def test_rows_without_a_time(self) -> None:
        """And ids that say nothing are included."""
        until = UntilStored.of(row(5.5))
        assert until.includes({**row(5, OTHER), "timestamp": None})
        assert until.includes({"_id": "zzz", "timestamp": NOON + timedelta(days=1)})
