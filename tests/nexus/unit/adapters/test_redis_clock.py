"""The time of a server, as its replies tell it: never later than it is there."""

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.adapters.redis_clock import ServerClock

_START_S: Final = 1_700_000_000.0


def test_nothing_is_known_before_a_reply() -> None:
    """Nor after it may be another server."""
    clock = ServerClock()
    assert clock.earliest_us(1.0) is None
    clock.heard(5, 1.0, 1.1)
    assert clock.earliest_us(1.1) == 5
    clock.forget()
    assert clock.earliest_us(1.1) is None


def test_it_goes_on() -> None:
    """As time passes here, but for what the clocks may differ by; and back, for what was before."""
    clock = ServerClock()
    clock.heard(10_000_000, 1.0, 1.5)
    assert clock.earliest_us(2.5) == 10_999_000
    assert clock.earliest_us(0.5) == 8_999_000


def test_the_quicker_reply_counts() -> None:
    """One that took longer says less, until the other is old."""
    clock = ServerClock()
    clock.heard(1_000_000, 0.9, 1.0)
    clock.heard(1_500_000, 1.4, 1.6)
    assert clock.earliest_us(2.0) == 1_999_000
    clock.heard(1_999_500, 1.99, 2.0)
    assert clock.earliest_us(2.0) == 1_999_500


def test_a_clock_that_is_set_back() -> None:
    """It is noticed with the next reply, however much it is."""
    clock = ServerClock()
    clock.heard(10_000_000, 1.0, 1.0)
    clock.heard(9_900_000, 2.0, 2.0)
    assert clock.earliest_us(2.0) == 9_900_000


def test_a_clock_that_is_set_on() -> None:
    """What passes there is not known here before it is said."""
    clock = ServerClock()
    clock.heard(10_000_000, 1.0, 1.0)
    clock.heard(99_000_000, 2.0, 2.1)
    assert clock.earliest_us(2.1) == 99_000_000


@pytest.mark.parametrize("rate", [0.9995, 1.0, 1.0005])
@given(
    steps=st.lists(
        st.tuples(st.floats(0, 100), st.floats(0, 2), st.floats(0, 1), st.floats(0, 10)), min_size=1, max_size=20
    )
)
def test_never_later_than_it_is_there(rate: float, steps: list[tuple[float, float, float, float]]) -> None:
    """Whatever replies take, and whichever clock is the faster as far as clocks are."""
    clock, here = ServerClock(), 0.0

    def there_us(at: float) -> int:
        return int((_START_S + at * rate) * 1e6)

    for pause, takes, part, later in steps:
        asked_at = here + pause
        heard_at = asked_at + takes
        clock.heard(there_us(asked_at + takes * part), asked_at, heard_at)
        here = heard_at
        earliest_us = clock.earliest_us(here + later)
        assert earliest_us is not None
        assert earliest_us <= there_us(here + later) + 1
        # And not much earlier than the slowest reply would have it.
        assert earliest_us >= there_us(here + later) - 2.1e6 - (here + later) * 2_000
