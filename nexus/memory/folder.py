"""Where the export of a session goes to and comes from: a folder, which is there whole or not at all.

Rules of this module:

- What is written is readable by its owner alone.
- What is read was perhaps sent by somebody else: no link is followed inside of the folder, nothing but regular files is
  read, and none of them, and no line, is larger than what is kept may be.
"""

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import IO, Final

from nexus.cli.files import bounded_lines
from nexus.cli.terminal import confirm, printable
from nexus.core.errors import NexusError
from nexus.services.memory.transfer_lines import FILES, HEADER
from nexus.services.memory.transfer_notes import FOLDER

_NAMED: Final = 100
_MOST_NOTE_BYTES: Final = 1 << 24
_MOST_NOTES: Final = 100_000
# A pipe that somebody put there is no file, and opening it must not wait for who writes to it.
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NewFolder:
    """A folder that is being written. Errors are `OSError`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[str, IO[bytes]] = {}
        self._stack = ExitStack()

    def put(self, name: str, line: str) -> None:
        """Write a line, without its end, to a file."""
        if name not in self._files:
            self._files[name] = self._stack.enter_context(self._new(name))
        self._files[name].write(f"{line}\n".encode())

    def write(self, name: str, text: str) -> None:
        """Write a file, which has this text."""
        with self._new(name) as file:
            file.write(text.encode())
            _synchronise(file)

    def finish(self) -> None:
        """Have all of it on the disk."""
        for file in self._files.values():
            _synchronise(file)
        self.close()

    def close(self) -> None:
        """Close what is open."""
        self._stack.close()

    def _new(self, name: str) -> IO[bytes]:
        path = self._path / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Not there yet, and nobody else's to read from the start.
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


class GivenFolder:
    """A folder that is read: `nexus.services.memory.transfer_reading.Folder`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def lines(self, name: str) -> Iterator[bytes]:
        """The lines of a file; none where it is missing."""
        with self._opened(name) as file:
            if file is not None:
                yield from bounded_lines(file, self._name(name))

    def note(self, name: str) -> bytes | None:
        """A file of Markdown; None where it is missing."""
        with self._opened(name) as file:
            content = None if file is None else file.read(_MOST_NOTE_BYTES + 1)
        if content is not None and len(content) > _MOST_NOTE_BYTES:
            raise NexusError(f"{self._name(name)}: more than {_MOST_NOTE_BYTES} bytes")
        return content

    def notes(self, folder: str) -> list[str]:
        """The names of the files in a folder of Markdown, in order. What is hidden is somebody's editor's."""
        try:
            with self._descriptor(folder, os.O_DIRECTORY) as opened:
                names = [] if opened is None else os.listdir(opened)  # noqa: PTH208  # of a descriptor
        except OSError as error:
            raise self._unreadable(folder, error) from None
        if len(names) > _MOST_NOTES:
            raise NexusError(f"{self._name(folder)}: more than {_MOST_NOTES} files")
        return sorted(name for name in names if not name.startswith("."))

    @contextmanager
    def _opened(self, name: str) -> Iterator[IO[bytes] | None]:
        try:
            with self._descriptor(name) as opened:
                if opened is None:
                    yield None
                    return
                if not stat.S_ISREG(os.fstat(opened).st_mode):
                    raise NexusError(f"{self._name(name)}: is no regular file")
                with os.fdopen(opened, "rb", closefd=False) as file:
                    yield file
        except OSError as error:
            raise self._unreadable(name, error) from None

    @contextmanager
    def _descriptor(self, name: str, flags: int = 0) -> Iterator[int | None]:
        """What is there under the name, opened without following a link at any step; None for nothing."""
        with ExitStack() as stack:
            opened = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, opened)
            *folders, last = name.split("/")
            try:
                for folder in folders:
                    opened = os.open(folder, _READ | os.O_DIRECTORY, dir_fd=opened)
                    stack.callback(os.close, opened)
                opened = os.open(last, _READ | flags, dir_fd=opened)
            except FileNotFoundError:
                yield None
                return
            stack.callback(os.close, opened)
            yield opened

    def _unreadable(self, name: str, error: OSError) -> NexusError:
        return NexusError(f"{self._name(name)}: cannot be read: {error.strerror}")

    def _name(self, name: str) -> str:
        return printable(f"{self._path}/{name}")


def given_folder(path: str) -> GivenFolder:
    """The folder at that path.

    Raises:
        NexusError: there is no export.
    """
    folder = Path(path)
    if not folder.is_dir():
        fault = "is a file; the folder that `export` wrote is needed" if folder.exists() else "there is no such folder"
        raise NexusError(f"{printable(path)}: {fault}")
    if not (folder / HEADER).exists():
        raise NexusError(f"{printable(path)}: no {HEADER} is in it: it is no export of a session")
    return GivenFolder(folder)


def checked_target(path: str, *, asks: bool) -> Path:
    """The folder that an export may be written to, if it `asks` after a yes where there is one already.

    Raises:
        NexusError: it may not.
    """
    target, name = Path(path).resolve(), printable(path)
    try:
        exists, has_folder = target.exists(), target.parent.is_dir()
        there = {entry.name for entry in target.iterdir()} if exists else set()
    except OSError as error:
        raise NexusError(f"{name}: cannot be written: {error.strerror}") from None
    if not has_folder:
        raise NexusError(f"{name}: there is no folder for it")
    if strangers := there - {*FILES, FOLDER}:
        stranger = printable(min(strangers))
        raise NexusError(f"{name}: there is something else in it, {stranger}; an export has a folder to itself")
    if asks and there:
        confirm(f"{name} exists. Overwrite it?", "--yes does it without asking")
    return target


@contextmanager
def written(target: Path) -> Iterator[NewFolder]:
    """A folder beside `target`, which takes its place when the context has ended well; else nothing of it stays.

    Raises:
        NexusError: it cannot be written.
    """
    try:
        # Readable by its owner alone.
        part = Path(mkdtemp(prefix=f".{target.name[:_NAMED]}.", suffix=".part", dir=target.parent))
        new = NewFolder(part)
        try:
            yield new
            new.finish()
            _put_in_place(part, target)
        except BaseException:
            new.close()
            shutil.rmtree(part, ignore_errors=True)
            raise
    except OSError as error:
        raise NexusError(f"{printable(str(target))}: cannot be written: {error.strerror}") from None


def _put_in_place(part: Path, target: Path) -> None:
    if not target.exists():
        part.rename(target)
        return
    old = Path(mkdtemp(prefix=f".{target.name[:_NAMED]}.", suffix=".old", dir=target.parent))
    try:
        # Onto an empty folder a folder may be moved.
        target.rename(old)
        part.rename(target)
    finally:
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(target)


def _synchronise(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
