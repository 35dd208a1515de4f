"""A language model in memory, for unit tests. The port's contract suite runs on it too."""

from collections.abc import Callable, Mapping
from typing import Any

import anyio

from nexus.core.errors import ModelUnavailableError, PromptTooLongError
from nexus.core.ports.model import Completion


class FakeModel:
    """`nexus.core.ports.LanguageModel` in memory. A call takes 100 tokens, and its answer ten.

    Args:
        answer: what it says to a system and a user message.
        script: what it says first, one each; a callable is called, and may raise.

    Attributes:
        down: every call fails.
        hangs: no call ends.
        holds: how many bytes of a prompt fit.
        asked: the system and the user message of every call that was made.
    """

    name = "fake"

    def __init__(self, answer: Callable[[str, str], str], *script: str | Callable[[], str]) -> None:
        self.answer = answer
        self.script = [*script]
        self.resting_s = 0.0
        self.down = False
        self.hangs = False
        self.holds = 1 << 30
        self.asked: list[tuple[str, str]] = []

    @property
    def users(self) -> list[str]:
        """The user message of every call that was made."""
        return [user for _, user in self.asked]

    async def was_asked(self) -> bool:
        """Whether it was asked at all."""
        return bool(self.asked)

    async def complete(self, system: str, user: str, *, schema: Mapping[str, Any], schema_name: str) -> Completion:
        """The next reply of the script, and after them that of `answer`."""
        assert schema["type"] == "object"
        assert schema_name.isidentifier()
        await anyio.lowlevel.checkpoint()
        self.asked.append((system, user))
        if self.down:
            raise ModelUnavailableError("down")
        if len(f"{system}{user}".encode(errors="replace")) > self.holds:
            raise PromptTooLongError("too long")
        if self.hangs:
            await anyio.sleep_forever()
        scripted = self.script.pop(0) if self.script else self.answer(system, user)
        return Completion(scripted if isinstance(scripted, str) else scripted(), 100, 10)
