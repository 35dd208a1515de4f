"""A program on a terminal of its own, and the test at its keyboard."""

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pexpect
from pexpect import fdpexpect

PATIENCE_S = 60
# pexpect's own spawn forks a process that has threads; this way the terminal is the child's own without a fork of ours.
# And tests in the background of a shell ignore Ctrl-C, which the child would inherit.
OWN_TERMINAL = (
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
)


@dataclass(frozen=True)
class Conversation:
    """What is said on a terminal."""

    child: "fdpexpect.fdspawn[str]"
    process: "subprocess.Popen[bytes]"

    def expect(self, *texts: str) -> None:
        """Wait for each text in turn."""
        for text in texts:
            self.child.expect_exact(text)

    def answer(self, prompt: str, answer: str) -> None:
        """Wait for a question and answer it."""
        self.child.expect_exact(prompt)
        self.child.send(f"{answer}\r")

    def ended(self) -> int:
        """Wait for the end of the program; returns its exit code."""
        self.child.expect(pexpect.EOF)
        return self.process.wait(timeout=PATIENCE_S)


@contextlib.contextmanager
def on_terminal(words: Sequence[str], environment: Mapping[str, str]) -> Iterator[Conversation]:
    """Run Python with these words on a terminal of its own, 80 columns wide."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", OWN_TERMINAL, sys.executable, *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env=environment,
    )
    os.close(theirs)
    # The echo of a Ctrl-C comes between the bytes of a character.
    spawned = fdpexpect.fdspawn(ours, encoding="utf-8", codec_errors="replace", timeout=PATIENCE_S)
    with contextlib.closing(spawned) as child:
        try:
            yield Conversation(child, process)
        finally:
            process.kill()
            process.wait()
