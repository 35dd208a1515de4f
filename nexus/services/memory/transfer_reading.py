"""A whole export, read and checked before any of it is of use (CONTRACT §7).

Rules of this module:

- Messages and details may be many: of each no more is held than what tells it from another; they are read once more
  when they are written.
- A fault is said with its file and its line.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from nexus.core.ports import Row
from nexus.core.ports.transfer import SpelledRow, TransferStore
from nexus.core.working_memory import Compaction, Detail, Overview
from nexus.services.json_lines import numbered, object_in
from nexus.services.memory import transfer_lines as lines
from nexus.services.memory.transfer_edits import Edits, Limits, NewestNote, edits_in
from nexus.services.memory.transfer_lines import Header
from nexus.services.memory.transfer_notes import fingerprint
from nexus.services.turns.transfer_lines import Export, read_export

# Spelled, an object may stand in another one.
_MOST_DEPTH: Final = 200


class Folder(Protocol):
    """Where an export is read from. What cannot be read raises `NexusError`."""

    def lines(self, name: str) -> Iterator[bytes]:
        """The lines of a file; none where it is missing."""
        ...

    def note(self, name: str) -> bytes | None:
        """A file of Markdown; None where it is missing."""
        ...

    def notes(self, folder: str) -> list[str]:
        """The names of the files in a folder of Markdown, in order."""
        ...


@dataclass(frozen=True, slots=True)
class GivenRow:
    """What is held of a message.

    Attributes:
        spelled_id: its `_id`.
        message_id: its `id`; `""` for none.
        told_by: what tells it from another.
    """

    spelled_id: Any
    message_id: str
    told_by: bytes


@dataclass(frozen=True, slots=True)
class Given:
    """An export.

    Attributes:
        header: what it says of itself.
        rows: the messages, by their `_id`s, in the order in which they are read.
        overviews: all revisions, the lowest first.
        details: of each version what tells it from another.
        compactions: all of them, the lowest number first.
        turns: None where there are none.
        state: spelled; None where there is none.
        edits: what somebody has changed in the files of Markdown.
    """

    header: Header
    rows: Mapping[str, GivenRow]
    overviews: tuple[Overview, ...]
    details: Mapping[tuple[str, int], bytes]
    compactions: tuple[Compaction, ...]
    turns: Export | None
    state: Row | None
    edits: Edits = field(default_factory=Edits)


def read_folder(folder: Folder, store: TransferStore, limits: Limits) -> Given:
    """The export in a folder.

    Raises:
        ValueError: it is none, or not whole, or not to be kept; the file, the line, what is wrong, what is allowed.
    """
    with _named(lines.HEADER):
        header = lines.read_header(folder.lines(lines.HEADER))
    rows = {row.row_id: _given(row) for row in read_rows(folder, store, header)}
    with _named(lines.OVERVIEWS):
        overviews = tuple(lines.read_overviews(folder.lines(lines.OVERVIEWS)))
    details = dict[tuple[str, int], bytes]()
    newest = dict[str, NewestNote]()
    for detail in read_details(folder):
        details[detail.name, detail.version] = told_by_detail(detail)
        newest[detail.name] = NewestNote(detail.version, detail.kind, fingerprint(detail.content))
    with _named(lines.COMPACTIONS):
        compactions = tuple(lines.read_compactions(folder.lines(lines.COMPACTIONS)))
    turns, state = _read_turns(folder, header), _read_state(folder, store)
    counts = {
        lines.MESSAGES: (len(rows), header.messages),
        lines.TURNS: (len(turns.turns) if turns else 0, header.turns),
        lines.STATE: (int(state is not None), int(header.has_state)),
        lines.OVERVIEWS: (len(overviews), header.overviews),
        lines.DETAILS: (len(details), header.details),
        lines.COMPACTIONS: (len(compactions), header.compactions),
    }
    for name, (there, said) in counts.items():
        if there != said:
            raise ValueError(f"{name}: it has {there} lines, and {lines.HEADER} says {said}: it is not whole")
    edits = edits_in(folder, overviews[-1] if overviews else None, newest, limits)
    return Given(header, rows, overviews, details, compactions, turns, state, edits)


def read_rows(folder: Folder, store: TransferStore, header: Header) -> Iterator[SpelledRow]:
    """The messages, one after the other, as the store will spell them.

    Raises:
        ValueError: as for `read_folder`.
    """
    lines_of: dict[tuple[str, Any], int] = {}
    with _named(lines.MESSAGES):
        for number, line in numbered(folder.lines(lines.MESSAGES)):
            document = object_in(number, line, most_depth=_MOST_DEPTH)
            for name in ("owner_key", "session_id"):
                if document.get(name) != getattr(header, name):
                    raise ValueError(f"line {number}: its {name} is not that of {lines.HEADER}")
            try:
                row = store.checked(document)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
            keys = {"_id": row.row_id, "id": row.document.get("id")}
            for name, key in keys.items():
                if isinstance(key, str) and key and lines_of.setdefault((name, key), number) != number:
                    raise ValueError(f"line {number}: its {name} is that of line {lines_of[name, key]}")
            yield row


def read_details(folder: Folder) -> Iterator[Detail]:
    """The versions of details, one after the other.

    Raises:
        ValueError: as for `read_folder`.
    """
    with _named(lines.DETAILS):
        yield from lines.read_details(folder.lines(lines.DETAILS))


def told_by(document: Row) -> bytes:
    """What tells a spelled row from another, whosever it is and whatever its `_id`."""
    return lines.digest({**document, "_id": None, "owner_key": None, "session_id": None})


def told_by_detail(detail: Detail) -> bytes:
    """What tells a detail from another."""
    return lines.digest(detail.model_dump(mode="json"))


def _given(row: SpelledRow) -> GivenRow:
    message_id = row.document.get("id")
    return GivenRow(row.document["_id"], message_id if isinstance(message_id, str) else "", told_by(row.document))


def _read_turns(folder: Folder, header: Header) -> Export | None:
    if not header.turns and not any(numbered(folder.lines(lines.TURNS))):
        return None
    with _named(lines.TURNS):
        export = read_export(folder.lines(lines.TURNS))
        if (export.owner_key, export.session_id) != (header.owner_key, header.session_id):
            raise ValueError(f"line 1: its owner_key and session_id are not those of {lines.HEADER}")
    return export


def _read_state(folder: Folder, store: TransferStore) -> Row | None:
    with _named(lines.STATE):
        found = [object_in(number, line) for number, line in numbered(folder.lines(lines.STATE))]
        if len(found) > 1:
            raise ValueError("more than one line; a session has one state")
        # As the store will spell it, should somebody have written it in another form.
        return store.spelled(store.unspelled(found[0])) if found else None


@contextmanager
def _named(name: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
