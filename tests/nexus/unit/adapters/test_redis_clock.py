"""The time of a server, as its replies tell it: never later than it is there."""

import time
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.adapters.redis_clock import RedisTime, ServerClock

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


@pytest.mark.parametrize("back_s", [0.1, 1.0, 3_600.0])
def test_a_clock_that_is_set_back(back_s: float) -> None:
    """By more than the reply takes: it is noticed with that."""
    clock = ServerClock()
    clock.heard(10_000_000_000, 1.0, 1.0)
    said_us = 10_001_000_000 - int(back_s * 1e6)
    clock.heard(said_us, 1.95, 2.0)
    assert clock.earliest_us(2.0) == said_us


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


class FakePipeline:
    """What `RedisTime` needs to know of one."""

    opened = connections = 1


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time here, which passes by itself no more."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


class TestRedisTime:
    """The same, of the server that a pipeline is connected to."""

    @pytest.fixture
    def redis(self) -> Any:
        """A pipeline."""
        return FakePipeline()

    @pytest.fixture
    def known(self, redis: Any, moment: list[float]) -> RedisTime:
        """Told of half a second ago that it was 7 s."""
        found = RedisTime(redis)
        asked = found.asked()
        found.heard(7_000_000, asked)
        moment[0] += 0.5
        return found

    def test_it_is_a_little_earlier(self, known: RedisTime, moment: list[float]) -> None:
        """Than what was said, and what has passed: by 0.1 % and 0.2 ms."""
        assert known.earliest_us(moment[0]) == 7_499_300
        assert known.earliest_us(moment[0] - 0.5) == 6_999_800

    def test_what_was_said_long_ago(self, known: RedisTime, moment: list[float]) -> None:
        """Is not known any more: whoever asks then is told anew."""
        moment[0] += 29.4
        assert known.earliest_us(moment[0]) is not None
        moment[0] += 0.2
        assert known.earliest_us(moment[0]) is None

    def test_another_connection(self, known: RedisTime, redis: Any, moment: list[float]) -> None:
        """May be to another server: nothing is known of that before it has said something."""
        asked = known.asked()
        redis.opened = 2
        assert known.earliest_us(moment[0]) is None
        known.heard(8_000_000, asked)
        assert known.earliest_us(moment[0]) is None
        known.heard(3_000_000, known.asked())
        assert known.earliest_us(moment[0]) == 2_999_800

    def test_no_connection(self, known: RedisTime, redis: Any, moment: list[float]) -> None:
        """The next one is another."""
        redis.connections = 0
        assert known.earliest_us(moment[0]) is None

    def test_no_pipeline(self, moment: list[float]) -> None:
        """Whoever answers next may be another server."""
        unknown = RedisTime(None)
        unknown.heard(7_000_000, unknown.asked())
        assert unknown.earliest_us(moment[0]) is None
