"""What somebody has changed in the files of Markdown of an export (CONTRACT §7).

Rules of this module:

- An edited overview is a new revision, an edited note a new version, a file with another name a new note. A file that
  is missing says nothing: nothing that was kept is taken back.
- What the model could not have written with its tools is refused, and so is an archive that is edited: it holds what
  was said.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from nexus.core.working_memory import Detail, Overview
from nexus.services.context.working import TEMPLATE
from nexus.services.memory.transfer_notes import (
    DETAIL_FOLDER,
    OVERVIEW,
    SUFFIX,
    as_lines,
    file_names,
    fingerprint,
    text_of,
)
from nexus.tools.detail_names import is_reserved, read_name


class Notes(Protocol):
    """Files of Markdown. What cannot be read raises `NexusError`."""

    def note(self, name: str) -> bytes | None:
        """A file; None where it is missing."""
        ...

    def notes(self, folder: str) -> list[str]:
        """The names of the files in a folder, in order."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """How large what is edited may be, in bytes."""

    overview: int
    detail: int


@dataclass(frozen=True, slots=True)
class NewestNote:
    """The newest version of a detail; `fingerprint` of its content."""

    version: int
    kind: str
    fingerprint: bytes


@dataclass(frozen=True, slots=True)
class Edits:
    """What is new in the files.

    Attributes:
        overview: the text; None where it is as it was.
        details: of each that is another one its text, by name.
        versions: the version that each of those is to have.
    """

    overview: str | None = None
    details: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there is anything."""
        return self.overview is not None or bool(self.details)

    def new_overview(self, revision: int, now: datetime) -> Overview | None:
        """The revision that comes of it; None where the overview is as it was."""
        if self.overview is None:
            return None
        return Overview(revision=revision, content=self.overview, updated_at=now, author="import")

    def new_details(self, now: datetime) -> list[Detail]:
        """The versions that come of it."""
        return [
            Detail(name=name, version=self.versions[name], bytes=len(text.encode()), updated_at=now, content=text)
            for name, text in self.details.items()
        ]


def edits_in(notes: Notes, overview: Overview | None, newest: Mapping[str, NewestNote], limits: Limits) -> Edits:
    """What is new in the files, against the newest revision and the newest versions.

    Raises:
        ValueError: it cannot be kept; the file, what is wrong, what is allowed.
    """
    kept = fingerprint(overview.content if overview else TEMPLATE)
    found = notes.note(OVERVIEW)
    text = None if found is None else _read(OVERVIEW, found, kept, limits.overview)
    details = dict(_edited_details(notes, newest, limits))
    versions = {name: newest[name].version + 1 if name in newest else 1 for name in details}
    return Edits(text, details, versions)


def _edited_details(notes: Notes, newest: Mapping[str, NewestNote], limits: Limits) -> Iterator[tuple[str, str]]:
    names = {file: name for name, file in file_names(newest).items()}
    for file in notes.notes(DETAIL_FOLDER):
        path = f"{DETAIL_FOLDER}/{file}"
        name = names.get(file) or _new_name(path, file)
        known = newest.get(name)
        content = notes.note(path)
        text = None if content is None else _read(path, content, known.fingerprint if known else b"", limits.detail)
        if text is None:
            continue
        if known and known.kind == "archive":
            raise ValueError(f"{path}: an archive holds what was said and is not edited")
        yield name, text


def _new_name(path: str, file: str) -> str:
    name = file.removesuffix(SUFFIX)
    if name == file:
        raise ValueError(f"{path}: a detail is a file whose name ends with {SUFFIX}")
    name = read_name(name, path)
    if is_reserved(name) or file_names([name])[name].removesuffix(SUFFIX) != name:
        raise ValueError(f"{path}: no detail can be called so; another name is needed")
    return name


def _read(path: str, content: bytes, kept: bytes, most: int) -> str | None:
    """The text, where it is another one than what is kept."""
    try:
        text = text_of(content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if fingerprint(text) == kept:
        return None
    edited = as_lines(text)
    if not edited.strip():
        raise ValueError(f"{path}: it is empty; a text is needed")
    if "\x00" in edited:
        raise ValueError(f"{path}: it holds a NUL, which no text of the working memory may")
    if (size := len(edited.encode())) > most:
        raise ValueError(f"{path}: it has {size} bytes, at most {most} are allowed")
    return edited
