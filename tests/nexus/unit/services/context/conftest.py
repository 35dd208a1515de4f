"""Builds pass the time that they wait for, so that none of their limits depends on how busy the machine is."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from tests.nexus.support.virtual_time import VirtualLoop


def pytest_asyncio_loop_factories(**_: Any) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Loops in virtual time."""
    return {"virtual": VirtualLoop}
