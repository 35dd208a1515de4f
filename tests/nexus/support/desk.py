"""The programs as operators use them: words in, their output and their exit code out."""

import gc
import io
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Self
from unittest.mock import patch

import structlog
from anyio.to_thread import run_sync

from nexus.cli import main
from tests.nexus.support.terminal import on_terminal


@dataclass(frozen=True)
class Result:
    """How a run of a program ended."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def fault(self) -> str:
        """The one line of a command that is refused."""
        assert (self.returncode, self.stdout, self.stderr.count("\n")) == (1, "", 1), self
        return self.stderr.removeprefix("nexus: ").rstrip("\n")


class _Stream(io.TextIOWrapper):
    def __init__(self, content: bytes, *, terminal: bool = False) -> None:
        self._content = io.BytesIO(content)
        super().__init__(self._content, encoding="utf-8")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def text(self) -> str:
        self.flush()
        return self._content.getvalue().decode()


def run_here(
    call: Callable[[], int | None], *, stdin: bytes = b"", terminal: bool = False, environment: Mapping[str, str]
) -> Result:
    """Call a program's `main` in this process, whose streams it takes for as long as it runs.

    `terminal` says that its input comes from one.
    """
    given, out, err = _Stream(stdin, terminal=terminal), _Stream(b""), _Stream(b"")
    thresholds, logging = gc.get_threshold(), structlog.get_config()
    code: object = 0
    with (
        patch.dict(os.environ, environment),
        patch.object(sys, "stdin", given),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        if "COLUMNS" not in environment:
            # readline gives it to the workers of pytest-xdist.
            os.environ.pop("COLUMNS", None)
        try:
            code = call()
        except SystemExit as ended:
            code = ended.code
        finally:
            gc.set_threshold(*thresholds)
            structlog.configure(**logging)
    assert isinstance(code or 0, int)
    return Result(int(code or 0), out.text(), err.text())


def run_program(*words: str, stdin: bytes = b"", environment: Mapping[str, str]) -> Result:
    """Run `nexus` with these words."""
    with patch.object(sys, "argv", ["nexus", *words]):
        return run_here(main, stdin=stdin, environment=environment)


def is_printable(text: str) -> bool:
    """Whether a terminal obeys nothing in these lines."""
    return text.replace("\n", "").isprintable()


@dataclass(frozen=True)
class Desk:
    """A command of the program, such as `turns`, with settings of the test's own."""

    command: str
    environment: Mapping[str, str]

    @classmethod
    def on(cls, command: str, mongo_uri: str, database: str, **more: str) -> Self:
        """The command on this database."""
        place = {"NEXUS_DATABASE__URI": mongo_uri, "NEXUS_DATABASE__NAME": database}
        return cls(command, {**place, "NEXUS_DATABASE__TIMEOUT_MS": "5000", "TERM": "xterm", **more})

    async def run(self, *words: str, stdin: bytes | str = b"", **environment: str) -> Result:
        """Run the command with these words."""
        content = stdin.encode() if isinstance(stdin, str) else stdin

        def run() -> Result:
            return run_program(self.command, *words, stdin=content, environment={**self.environment, **environment})

        return await run_sync(run)

    async def said(self, *words: str) -> str:
        """The output of a command that succeeds."""
        done = await self.run(*words)
        assert (done.returncode, done.stderr) == (0, ""), f"{done.returncode}: {done.stderr}\n{done.stdout}"
        return done.stdout

    async def refused(self, *words: str, stdin: bytes = b"", **environment: str) -> str:
        """The one line of a command that is refused."""
        return (await self.run(*words, stdin=stdin, **environment)).fault

    async def at_keyboard(self, question: str, answer: str, *words: str) -> int:
        """Run it as a process on a terminal and answer its question; returns the exit code."""

        def talk() -> int:
            all_words = ["-m", "nexus", self.command, *words]
            with on_terminal(all_words, {**os.environ, "TERM": "xterm", **self.environment}) as conversation:
                conversation.answer(question, answer)
                return conversation.ended()

        return await run_sync(talk)
