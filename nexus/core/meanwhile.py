"""Making what is needed later while something else is waited for."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

_Result = TypeVar("_Result")


class Meanwhile(Generic[_Result]):
    """Something that is made in the pass after the next of the event loop, or when it is asked for before that.

    Who is about to ask a server something and to wait for it has other work done so, when what he asks is on its way:
    what several ask on one connection is written in the next pass.

    Args:
        make: makes it, in no task; is called once.
    """

    def __init__(self, make: Callable[[], _Result]) -> None:
        self._make: Callable[[], _Result] | None = make
        self._made: list[_Result] = []
        self._error: Exception | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._give_way)

    def result(self) -> _Result:
        """What was made; whatever that raised is raised here."""
        self._do()
        if self._error:
            raise self._error
        return self._made[0]

    def _give_way(self) -> None:
        self._loop.call_soon(self._do)

    def _do(self) -> None:
        make, self._make = self._make, None
        if make is None:
            return
        try:
            self._made.append(make())
        except Exception as error:  # noqa: BLE001  # it is raised where the result is asked for
            self._error = error
