"""Replies of Redis that are no longer what it sent."""

from typing import Any

import pytest

from nexus.adapters.redis.client import FAULTS
from nexus.adapters.redis.stream_subscription import delivery_of


@pytest.mark.parametrize("fields", [{b"message": 10**15}, {b"message": None}, {b"message": "text"}, 5, [b"message"]])
def test_an_entry_whose_payload_is_none(fields: Any) -> None:
    """It counts as no reply, and becomes no delivery."""
    with pytest.raises(FAULTS):
        delivery_of("a", b"1-0", fields)
