"""A module of tools that ends the service, as by a fault in native code, whenever it begins to build a certain input.

No input is known that does that to Nexus, and one that is found will be mended; but the promise is about the next one.
So the fault is put in here, in the only place where a deployment may load code of its own (`tools.modules`).
"""

import os
import signal
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Final

from nexus.services.context.builder import ContextBuilder

POISON: Final = "Speak of the devil."

_BUILD: Final = "handle_build_request"
_Build = Callable[..., Awaitable[Any]]


def _fatal(build: _Build) -> _Build:
    @wraps(build)
    async def built(self: ContextBuilder, message: Any, *args: Any, **named: Any) -> Any:
        if POISON in str(message.content):
            os.kill(os.getpid(), signal.SIGKILL)
        return await build(self, message, *args, **named)

    return built


setattr(ContextBuilder, _BUILD, _fatal(getattr(ContextBuilder, _BUILD)))

TOOLS = [({"type": "function", "function": {"name": "nothing", "description": "Does nothing."}}, lambda: None)]
