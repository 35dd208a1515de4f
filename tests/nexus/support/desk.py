"""The program as operators use it: words in, its output and its exit code out."""

import gc
import io
import os
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest.mock import patch

import structlog
from anyio.to_thread import run_sync

from nexus.cli import main
from tests.nexus.support.terminal import on_terminal


@dataclass(frozen=True)
class Result:
    """How a run of the program ended."""

    returncode: int
    stdout: str
    stderr: str


def run_program(*words: str, stdin: bytes = b"", environment: Mapping[str, str]) -> Result:
    """Run `nexus` with these words in this process, whose streams it takes for as long as it runs."""
    given, out, err = (io.TextIOWrapper(io.BytesIO(content), encoding="utf-8") for content in (stdin, b"", b""))
    thresholds, logging = gc.get_threshold(), structlog.get_config()
    code: object = 0
    with (
        patch.dict(os.environ, environment),
        patch.object(sys, "argv", ["nexus", *words]),
        patch.object(sys, "stdin", given),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
        finally:
            gc.set_threshold(*thresholds)
            structlog.configure(**logging)
    assert isinstance(code, int)
    return Result(code, *(_text(stream) for stream in (out, err)))


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode()


@dataclass(frozen=True)
class Desk:
    """A command of the program, such as `turns`, with settings of the test's own."""

    command: str
    environment: Mapping[str, str]

    async def run(self, *words: str, stdin: bytes | str = b"", **environment: str) -> Result:
        """Run the command with these words."""
        content = stdin.encode() if isinstance(stdin, str) else stdin

        def run() -> Result:
            return run_program(self.command, *words, stdin=content, environment={**self.environment, **environment})

        return await run_sync(run)

    async def said(self, *words: str) -> str:
        """The output of a command that does what it is asked."""
        done = await self.run(*words)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    async def refused(self, *words: str, stdin: bytes = b"") -> str:
        """The one line of a command that is refused."""
        done = await self.run(*words, stdin=stdin)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        return done.stderr.removeprefix("nexus: ").rstrip("\n")

    async def at_keyboard(self, question: str, answer: str, *words: str) -> int:
        """Run it as a process on a terminal and answer its question; returns the exit code."""

        def talk() -> int:
            all_words = ["-m", "nexus", self.command, *words]
            with on_terminal(all_words, {**os.environ, "TERM": "xterm", **self.environment}) as conversation:
                conversation.answer(question, answer)
                return conversation.ended()

        return await run_sync(talk)
