"""The turns of a session as lines of JSON: a header, then a turn a line, the lowest number first (CONTRACT §6). Pure.

Rules of this module:

- Characters that a terminal might obey, or not show, are written as escapes; all others as they are.
- What is read is checked whole before any of it is of use, as it will have to be stored: with its owner, each number
  once, as large as a request or a summary may be, and nothing in it that a store cannot hold. Numbers may have gaps:
  old turns are deleted, and those that are malformed are not exported.
- A fault is said with its line and what is allowed, and quotes nothing but names of fields.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nexus.core.models import Identifier, Moment
from nexus.core.ports import Row
from nexus.core.turns import Turn, TurnStatus
from nexus.services.context.request_turn import MAX_GOAL_CHARS
from nexus.services.json_lines import explained, line_of_model, model_in, numbered, object_in, visible
from nexus.services.turns.documents import to_milliseconds

# As large as MongoDB keeps a document, less what stands in a document besides the turn.
_MOST_BYTES: Final = (1 << 24) - (1 << 10)
# Whole numbers that take half of the room that BSON has for one.
_SMALL_NUMBERS: Final = range(-(2**31), 2**31)
_MOST_CHARS: Final = 10_000
_MOST_INSIGHT_CHARS: Final = 2_000
_MOST_INSIGHTS: Final = 5


class Header(BaseModel):
    """The first line.

    Attributes:
        turns: how many follow.
        exported_at: when they were read.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: Literal["nexus-turns"] = "nexus-turns"
    version: Literal[1] = 1
    owner_key: Identifier
    session_id: Identifier
    turns: int = Field(ge=1)
    exported_at: Moment


class _GivenHeader(Header):
    # What is read has to say what it is.
    format: Literal["nexus-turns"]
    version: Literal[1]


@dataclass(frozen=True, slots=True)
class Export:
    """An export that was read: turns of one session, all of them over, the lowest number first."""

    owner_key: str
    session_id: str
    turns: tuple[Turn, ...]


def header_line(owner_key: str, session_id: str, turns: int, exported_at: datetime) -> str:
    """The first line of an export, without its end."""
    header = Header(owner_key=owner_key, session_id=session_id, turns=turns, exported_at=exported_at)
    return visible(header.model_dump_json())


def line_of(document: Row) -> str:
    """The line of a stored turn, without its end.

    Raises:
        ValueError: it is malformed; says what is wrong.
    """
    return line_of_model(Turn, document)


def read_export(lines: Iterable[bytes], *, owner_key: str | None = None, session_id: str | None = None) -> Export:
    """The export in these lines, of another owner and session where those are given. Lines without text are skipped.

    Raises:
        ValueError: it is none, or not whole; the line, what is wrong, what is allowed.
    """
    rest = numbered(lines)
    first = next(rest, None)
    if first is None:
        raise ValueError("no lines; an export has a header and a turn a line")
    header = _read_header(*first)
    renamed = {"owner_key": owner_key or header.owner_key, "session_id": session_id or header.session_id}
    return Export(**renamed, turns=tuple(_read_turns(rest, header, renamed)))


def _read_header(number: int, line: bytes) -> Header:
    try:
        return _GivenHeader.model_validate(object_in(number, line))
    except ValidationError as error:
        raise ValueError(f"line {number}: no header of an export: {explained(error)}") from None


def _read_turns(lines: Iterable[tuple[int, bytes]], header: Header, renamed: Mapping[str, str]) -> list[Turn]:
    """The turns by their numbers."""
    turns: dict[int, Turn] = {}
    lines_of: dict[tuple[str, Any], int] = {}
    for number, line in lines:
        turn = _read_turn(number, line, header).model_copy(update=renamed)
        for name in ("turn_number", "run_id"):
            first = lines_of.setdefault((name, getattr(turn, name)), number)
            if first != number:
                raise ValueError(f"line {number}: its {name} is that of line {first}; each may be there once")
        if _size(turn.model_dump()) > _MOST_BYTES:
            raise ValueError(f"line {number}: as a document it has more than {_MOST_BYTES} bytes")
        turns[turn.turn_number] = turn
    if len(turns) != header.turns:
        there = "1 turn is" if len(turns) == 1 else f"{len(turns)} turns are"
        raise ValueError(f"{there} there, and the header says {header.turns}: it is not whole")
    return [turns[number] for number in sorted(turns)]


def _read_turn(number: int, line: bytes, header: Header) -> Turn:
    turn = model_in(number, line, Turn)
    for name in ("owner_key", "session_id"):
        if getattr(turn, name) != getattr(header, name):
            raise ValueError(f"line {number}: its {name} is not that of the header; an export is of one session")
    for fault in _out_of_bounds(turn):
        raise ValueError(f"line {number}: {fault}")
    return _as_imported(turn)


def _out_of_bounds(turn: Turn) -> Iterator[str]:
    """What in it is larger than a request or a summary may have it, or missing."""
    if not re.fullmatch(rf"turn_{turn.turn_number}_-?[0-9]+", turn.id):
        yield f"id: turn_{turn.turn_number}_ and digits are needed"
    if len(turn.task_context) > MAX_GOAL_CHARS:
        yield _too_long("task_context", MAX_GOAL_CHARS)
    if len(turn.insights) > _MOST_INSIGHTS:
        yield f"insights: more than {_MOST_INSIGHTS}"
    if any(len(insight) > _MOST_INSIGHT_CHARS for insight in turn.insights):
        yield _too_long("insights", _MOST_INSIGHT_CHARS)
    brief, detailed, structured = turn.summaries.brief, turn.summaries.detailed, turn.summaries.structured
    needed = {"brief": brief, "detailed": detailed, "structured.overview": structured.overview}
    yield from (f"summaries.{name}: a text is needed" for name, text in needed.items() if not text.strip())
    lists = {f"structured.{name}": value for name, value in structured if name != "overview"}
    for name, texts in ({name: (text,) for name, text in needed.items()} | lists).items():
        if any(len(text) > _MOST_CHARS for text in texts):
            yield _too_long(f"summaries.{name}", _MOST_CHARS)


def _too_long(place: str, most: int) -> str:
    return f"{place}: more than {most} characters"


def _size(value: Any) -> int:
    """How many bytes of a document it takes, without its name."""
    if isinstance(value, str):
        return 5 + len(value.encode())
    if isinstance(value, dict):
        return 5 + sum(2 + len(name.encode()) + _size(item) for name, item in value.items())
    if isinstance(value, list | tuple):
        return 5 + sum(2 + len(str(index)) + _size(item) for index, item in enumerate(value))
    if value is None or isinstance(value, bool):
        return int(value is not None)
    return 4 if isinstance(value, int) and value in _SMALL_NUMBERS else 8


def _as_imported(turn: Turn) -> Turn:
    """The turn as it will come back: nobody goes on with it any more."""
    status = turn.status if turn.status.is_over else TurnStatus.COMPLETED
    return turn.model_copy(update={"status": status, "timestamp": to_milliseconds(turn.timestamp)})
