"""Which event loop the service runs on."""

import pytest

from nexus.cli.serve import event_loop
from nexus.core.errors import ConfigError


@pytest.mark.parametrize(
    ("wanted", "installed", "taken"),
    [
        ("auto", True, "uvloop"),
        ("auto", False, "asyncio"),
        ("asyncio", True, "asyncio"),
        ("asyncio", False, "asyncio"),
        ("uvloop", True, "uvloop"),
    ],
)
def test_the_faster_one_is_taken_where_it_is_installed(wanted: str, installed: bool, taken: str) -> None:
    """Unless the other is asked for."""
    assert event_loop(wanted, find=lambda _: object() if installed else None) == taken


def test_one_that_is_not_installed_is_no_fallback() -> None:
    """The fault of a uvloop that is missing says how to install it."""
    with pytest.raises(ConfigError, match=r"system.event_loop: .*nexus-context\[speed\]"):
        event_loop("uvloop", find=lambda _: None)
