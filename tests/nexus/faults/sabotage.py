"""A module of tools under which certain inputs take long to build, and others end the service as a fault in C would.

No input is known that ends Nexus, and one that is found will be mended; but the promise is about the next one. So the
faults are put in here, in the only place where a deployment may load code of its own (`tools.modules`). Being slow
costs no CPU here, as a slow database would not, so that a replica has builds in hand whenever it is killed.
"""

import os
import signal
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Final

import anyio

from nexus.services.context.builder import ContextBuilder

POISON: Final = "Speak of the devil."
SLOW: Final = "Take your time."
SLOW_S: Final = 0.15

_BUILD: Final = "build"
_Build = Callable[..., Awaitable[Any]]


def _sabotaged(build: _Build) -> _Build:
    @wraps(build)
    async def built(self: ContextBuilder, message: Any, *args: Any, **named: Any) -> Any:
        text = str(message.content)
        if POISON in text:
            os.kill(os.getpid(), signal.SIGKILL)
        if SLOW in text:
            await anyio.sleep(SLOW_S)
        return await build(self, message, *args, **named)

    return built


setattr(ContextBuilder, _BUILD, _sabotaged(getattr(ContextBuilder, _BUILD)))

SETTINGS: Final = {"tools__modules": f"[{__name__}]"}
TOOLS = [({"type": "function", "function": {"name": "nothing", "description": "Does nothing."}}, lambda: None)]
