"""The program as operators use it: words in, what it says and its exit code out."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from subprocess import CompletedProcess

import anyio
from anyio.to_thread import run_sync

from tests.nexus.support.terminal import on_terminal


@dataclass(frozen=True)
class Desk:
    """A command of the program, such as `turns`, on a database of the test's own."""

    command: str
    environment: Mapping[str, str]

    async def run(self, *words: str, stdin: bytes = b"", **environment: str) -> CompletedProcess[str]:
        """Run the command with these words."""
        done = await anyio.run_process(
            [sys.executable, "-m", "nexus", self.command, *words],
            input=stdin,
            check=False,
            env={**os.environ, **self.environment, **environment},
        )
        return CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    async def said(self, *words: str) -> str:
        """What a command says that does what it is asked."""
        done = await self.run(*words)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    async def refused(self, *words: str, stdin: bytes = b"") -> str:
        """The one line of a command that is refused."""
        done = await self.run(*words, stdin=stdin)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        return done.stderr.removeprefix("nexus: ").rstrip("\n")

    async def at_keyboard(self, question: str, answer: str, *words: str) -> int:
        """Run it on a terminal and answer its question; returns the exit code."""

        def talk() -> int:
            words_of_all = ["-m", "nexus", self.command, *words]
            with on_terminal(words_of_all, {**os.environ, **self.environment}) as conversation:
                conversation.answer(question, answer)
                return conversation.ended()

        return await run_sync(talk)
