"""The working memory of a session as lines of JSON, and what a whole export says of itself (CONTRACT §7). Pure.

| file | a line is |
|---|---|
| `export.json` | the header: whose session, and how many lines each of the others has |
| `messages.jsonl` | a recorded row, all of it, as `nexus.core.ports.transfer` spells it |
| `turns.jsonl` | as `nexus turns export` writes it; missing where there are none |
| `state.jsonl` | the state of the session; missing where there is none |
| `overviews.jsonl` | a revision of the overview |
| `details.jsonl` | a version of a detail |
| `compactions.jsonl` | a compaction |

What is read is checked as a store will have to keep it; see `nexus.services.json_lines` for how faults are said.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from nexus.core.models import Identifier, Moment
from nexus.core.ports import Row
from nexus.core.working_memory import Compaction, Detail, Overview
from nexus.services.json_lines import line_of_model, model_in, numbered, visible
from nexus.services.turns.documents import to_milliseconds

HEADER: Final = "export.json"
MESSAGES: Final = "messages.jsonl"
TURNS: Final = "turns.jsonl"
STATE: Final = "state.jsonl"
OVERVIEWS: Final = "overviews.jsonl"
DETAILS: Final = "details.jsonl"
COMPACTIONS: Final = "compactions.jsonl"
FILES: Final = (HEADER, MESSAGES, TURNS, STATE, OVERVIEWS, DETAILS, COMPACTIONS)

# As large as MongoDB keeps a document, less what stands in one besides its texts.
_MOST_BYTES: Final = (1 << 24) - (1 << 12)
# An `_id` in a list, with its place there.
_BYTES_A_ROW: Final = 40

_Document = TypeVar("_Document", bound=BaseModel)
_Count = Field(ge=0)


class Header(BaseModel):
    """What an export holds.

    Attributes:
        exported_at: when it was read.
        messages, turns, overviews, details, compactions: how many lines say so.
        has_state: whether there is a state.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: Literal["nexus-memory"]
    version: Literal[1]
    owner_key: Identifier
    session_id: Identifier
    exported_at: Moment
    messages: int = _Count
    turns: int = _Count
    overviews: int = _Count
    details: int = _Count
    compactions: int = _Count
    has_state: bool = False

    @property
    def total(self) -> int:
        """All that it holds."""
        return self.messages + self.turns + self.overviews + self.details + self.compactions + self.has_state


def header_of(owner_key: str, session_id: str, exported_at: datetime, counts: dict[str, Any]) -> Header:
    """What an export says of itself that holds so much."""
    return Header(
        format="nexus-memory",
        version=1,
        owner_key=owner_key,
        session_id=session_id,
        exported_at=to_milliseconds(exported_at),
        **counts,
    )


def header_line(header: Header) -> str:
    """The line of the header, without its end."""
    return visible(header.model_dump_json())


def row_line(document: Row) -> str:
    """The line of a spelled row, or of a spelled state, without its end."""
    return visible(json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


def digest(document: Row) -> bytes:
    """What tells two spelled rows apart, the order of their fields included."""
    return hashlib.sha256(json.dumps(document, allow_nan=False, separators=(",", ":")).encode()).digest()


def overview_line(document: Row) -> str:
    """The line of a stored overview. See `line_of_model` for errors."""
    return line_of_model(Overview, document)


def detail_line(document: Row) -> str:
    """The line of a stored detail. See `line_of_model` for errors."""
    return line_of_model(Detail, document)


def compaction_line(document: Row) -> str:
    """The line of a stored compaction. See `line_of_model` for errors."""
    return line_of_model(Compaction, document)


def read_header(lines: Iterable[bytes]) -> Header:
    """The header in these lines.

    Raises:
        ValueError: it is none; the line, what is wrong, what is allowed.
    """
    found = [model_in(number, line, Header) for number, line in numbered(lines)]
    if len(found) != 1:
        raise ValueError("one line is needed, which says what the export holds")
    return found[0]


def read_overviews(lines: Iterable[bytes]) -> Iterator[Overview]:
    """The revisions, the lowest first. See `_read` for errors."""
    for number, overview in _read(lines, Overview, lambda overview: overview.revision):
        _check_size(number, len(overview.content.encode()))
        yield overview.model_copy(update={"updated_at": to_milliseconds(overview.updated_at)})


def read_details(lines: Iterable[bytes]) -> Iterator[Detail]:
    """The versions, by name and then by version. See `_read` for errors."""
    for number, detail in _read(lines, Detail, lambda detail: (detail.name, detail.version)):
        size = len(detail.content.encode())
        _check_size(number, size)
        if size != detail.bytes:
            raise ValueError(f"line {number}: bytes: the content has {size}")
        yield detail.model_copy(update={"updated_at": to_milliseconds(detail.updated_at)})


def read_compactions(lines: Iterable[bytes]) -> Iterator[Compaction]:
    """The compactions, the lowest number first. See `_read` for errors."""
    for number, compaction in _read(lines, Compaction, lambda compaction: compaction.number):
        names = len(compaction.rows) + len(compaction.without)
        _check_size(number, len(compaction.summary.encode()) + _BYTES_A_ROW * names)
        if len(compaction.rows) != compaction.count:
            raise ValueError(f"line {number}: count: there are {len(compaction.rows)} rows")
        times = ((name, getattr(compaction, name)) for name in ("created_at", "first_at", "last_at"))
        yield compaction.model_copy(update={name: to_milliseconds(time) for name, time in times if time})


def _read(
    lines: Iterable[bytes], model: type[_Document], key: Callable[[_Document], Any]
) -> Iterator[tuple[int, _Document]]:
    """Each document with the number of its line.

    Raises:
        ValueError: one is malformed, or not after the one before it; the line, what is wrong, what is allowed.
    """
    last: Any = None
    for number, line in numbered(lines):
        document = model_in(number, line, model)
        if last is not None and not key(document) > last:
            raise ValueError(
                f"line {number}: it does not come after the line before it, by revision, version or number"
            )
        last = key(document)
        yield number, document


def _check_size(number: int, size: int) -> None:
    if size > _MOST_BYTES:
        raise ValueError(f"line {number}: as a document it has more than {_MOST_BYTES} bytes")
