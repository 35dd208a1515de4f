"""Where an export goes to and comes from: a file, which is there whole or not at all, or a standard stream."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Final

from nexus.cli.terminal import confirm, printable
from nexus.core.errors import NexusError

STREAM: Final = "-"
# A document of 16 MiB, with escapes for much of it.
_LONGEST_LINE: Final = 1 << 26
_NAMED: Final = 100


def name_of(path: str) -> str:
    """What a file to read is called in what is said of it."""
    return "standard input" if path == STREAM else printable(path)


def lines_of(path: str) -> Iterator[bytes]:
    """The lines of a file.

    Raises:
        NexusError: it cannot be read.
    """
    try:
        if path == STREAM:
            yield from bounded_lines(sys.stdin.buffer, name_of(path))
        else:
            with Path(path).open("rb") as file:
                yield from bounded_lines(file, name_of(path))
    except OSError as error:
        raise NexusError(f"{name_of(path)}: cannot be read: {error.strerror}") from None


def bounded_lines(file: IO[bytes], name: str) -> Iterator[bytes]:
    """The lines of an open file that is called so in what is said of it.

    Raises:
        NexusError: one is longer than any document.
    """
    number = 0
    while line := file.readline(_LONGEST_LINE + 1):
        number += 1
        if len(line) > _LONGEST_LINE:
            raise NexusError(f"{name}: line {number}: more than {_LONGEST_LINE} bytes")
        yield line


def checked_target(path: str, *, asks: bool) -> None:
    """See that an export may be written there, if it `asks` after a yes where a file is there already.

    Raises:
        NexusError: it may not.
    """
    if path == STREAM:
        return
    target, name = Path(path).resolve(), printable(path)
    try:
        exists, is_file, has_folder = target.exists(), target.is_file(), target.parent.is_dir()
    except OSError as error:
        raise NexusError(f"{name}: cannot be written: {error.strerror}") from None
    if exists and not is_file:
        raise NexusError(f"{name}: is no regular file; - is standard output")
    if not has_folder:
        raise NexusError(f"{name}: there is no folder for it")
    if asks and exists:
        confirm(f"{name} exists. Overwrite it?", "--yes does it without asking")


@contextmanager
def written(path: str) -> Iterator[Callable[[str], None]]:
    """What writes a line. A file appears under its name, readable by its owner alone, when the context has ended well.

    Raises:
        NexusError: it cannot be written.
    """
    try:
        if path == STREAM:
            yield lambda line: _write(sys.stdout.buffer, line)
            sys.stdout.buffer.flush()
        else:
            # Through links to what they mean, so that a link stays one.
            with _beside(Path(path).resolve()) as part:
                yield lambda line: _write(part, line)
    except BrokenPipeError:
        # Whoever read it has had enough.
        raise
    except OSError as error:
        name = "standard output" if path == STREAM else printable(path)
        raise NexusError(f"{name}: cannot be written: {error.strerror}") from None


@contextmanager
def _beside(target: Path) -> Iterator[IO[bytes]]:
    """A file in the same folder that takes the place of `target` at the end; removed when it does not come to that."""
    prefix = f".{target.name[:_NAMED]}."
    with NamedTemporaryFile(dir=target.parent, prefix=prefix, suffix=".part", delete=False) as file:
        part = Path(file.name)
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            part.replace(target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def _write(file: IO[bytes], line: str) -> None:
    file.write(f"{line}\n".encode())
