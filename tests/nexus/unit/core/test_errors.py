"""What is said of errors, some of which have no text."""

import anyio
import pytest

from nexus.core.errors import BusUnavailableError, reason_of


@pytest.mark.parametrize(
    ("error", "seconds", "said"),
    [
        (BusUnavailableError("silent"), 5, "silent"),
        (TimeoutError(), 5, "no answer within 5 s"),
        (TimeoutError(""), 0.25, "no answer within 0.25 s"),
        (TimeoutError(" \n"), 1.49876543, "no answer within 1.5 s"),
        (TimeoutError(), None, "no answer in time"),
        (TimeoutError("of its own"), 5, "of its own"),
        (ConnectionResetError(), 5, "ConnectionResetError, which gives no reason"),
        (ConnectionResetError(104, "reset by peer"), None, "[Errno 104] reset by peer"),
        (KeyError(""), None, "''"),
        (ExceptionGroup("some", [ValueError()]), None, "some (1 sub-exception)"),
    ],
)
def test_reason(error: BaseException, seconds: float | None, said: str) -> None:
    """Its own text, else what its kind means."""
    assert reason_of(error, seconds) == said


async def test_of_a_time_limit() -> None:
    """As anyio's have it."""
    with pytest.raises(TimeoutError) as caught, anyio.fail_after(0):
        await anyio.sleep_forever()
    assert (str(caught.value), reason_of(caught.value, 0)) == ("", "no answer within 0 s")
