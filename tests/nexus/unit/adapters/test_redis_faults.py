"""What is said of errors on the way to Redis, whose own texts name hosts."""

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from nexus.adapters.redis.client import FAULTS, translated
from nexus.core.errors import BusRefusedError, BusUnavailableError


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RedisTimeoutError("Timeout reading from redis.internal:6379"), "no answer in time"),
        (TimeoutError(), "no answer in time"),
        (RedisConnectionError("Error 111 connecting to redis.internal:6379."), "ConnectionError"),
        (RedisConnectionError(), "ConnectionError"),
        (ResponseError("WRONGTYPE Operation against a key"), "a key of that name is of another type"),
    ],
)
def test_reason(error: Exception, said: str) -> None:
    """A reason without a host, which is never empty."""
    assert isinstance(error, FAULTS)
    with pytest.raises(BusUnavailableError) as caught, translated():
        raise error
    assert str(caught.value) == said
    assert isinstance(caught.value, BusRefusedError) == said.startswith("a key")
