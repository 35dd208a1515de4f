"""The event loop of whatever is measured, and of what measures: the one that the service takes."""

from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import TypeVar, TypeVarTuple

import anyio

_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")


def name() -> str:
    """`uvloop` where it is installed, else asyncio."""
    return "uvloop" if find_spec("uvloop") else "asyncio"


def run(work: Callable[[*_Arguments], Awaitable[_Result]], *arguments: *_Arguments) -> _Result:
    """What `work` returns."""
    return anyio.run(work, *arguments, backend_options={"use_uvloop": name() == "uvloop"})
