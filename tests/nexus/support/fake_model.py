"""A language model in memory, for tests of what stands on it. The port's contract suite runs on it too."""

from collections.abc import Callable, Mapping
from typing import Any

import anyio

from nexus.core.errors import ModelUnavailableError, PromptTooLongError


class FakeModel:
    """`nexus.core.ports.LanguageModel` in memory.

    Args:
        answer: what it says to a system and a user message.

    Attributes:
        down: every call fails.
        holds: how many bytes of a prompt fit.
        asked: the system and the user message of every call that was made.
    """

    name = "fake"
    resting_s = 0.0

    def __init__(self, answer: Callable[[str, str], str]) -> None:
        self.answer = answer
        self.down = False
        self.holds = 1 << 30
        self.asked: list[tuple[str, str]] = []

    async def complete(self, system: str, user: str, *, schema: Mapping[str, Any], schema_name: str) -> str:
        """What `answer` says."""
        assert schema["type"] == "object"
        assert schema_name.isidentifier()
        await anyio.lowlevel.checkpoint()
        self.asked.append((system, user))
        if self.down:
            raise ModelUnavailableError("down")
        if len(f"{system}{user}".encode(errors="replace")) > self.holds:
            raise PromptTooLongError("too long")
        return self.answer(system, user)
