"""Whether a history is read while its request is still being claimed.

Who gets the request has it sooner; who does not has read for nothing. On a bus where every replica hears every request
it is worth it for one that gets nearly all of them.
"""

from typing import Final

from nexus.core.ports import Delivery

_WEIGHT: Final = 0.1
_ENOUGH: Final = 0.75


class ReadingAhead:
    """Which part of the requests that were heard lately this replica got."""

    def __init__(self) -> None:
        self._got = 1.0

    def note(self, *, got: bool) -> None:
        """A request is this replica's, or another has it."""
        self._got += _WEIGHT * (got - self._got)

    def is_worth_it(self, delivery: Delivery) -> bool:
        """Whether to read before it is known who gets this one."""
        return delivery.shared or self._got >= _ENOUGH
