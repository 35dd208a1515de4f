"""Dead letters as people and programs read them.

What a letter holds was written by whoever spoke on the bus: nothing of it reaches a terminal but printable characters.
"""

import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from nexus.cli.terminal import printable
from nexus.core.ports import DeadLetter

_COLUMNS: Final = ("ID", "TIME (UTC)", "TOPIC", "DELIVERIES", "SIZE", "MESSAGE ID", "REASON")
_NOTHING: Final = "-"


def when(at_ms: int) -> str:
    """A time in UTC, to the second."""
    try:
        return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"


def table(letters: Sequence[DeadLetter]) -> list[str]:
    """A line a letter under a line of headings. Nothing is cut, and the reason comes last."""
    rows = [_COLUMNS, *(_row(letter) for letter in letters)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def lines(letter: DeadLetter, *, body: bool) -> list[str]:
    """Every field of a letter, one a line; the body last."""
    values = {
        "id": letter.letter_id,
        "time": f"{when(letter.at_ms)} UTC",
        "topic": printable(letter.topic) or _NOTHING,
        "reason": printable(letter.reason) or _NOTHING,
        "deliveries": str(letter.deliveries),
        "message id": printable(letter.message_id) or _NOTHING,
        "sha256": printable(letter.sha256) or _NOTHING,
        "size": f"{letter.size} bytes",
        "body": _of_body(letter, shown=body),
    }
    return [f"{name:<10}  {value}" for name, value in values.items()]


def as_json(letter: DeadLetter, *, body: bool = False) -> dict[str, Any]:
    """A letter for programs. A body that is no UTF-8 text is `body_base64`."""
    values: dict[str, Any] = {
        "id": letter.letter_id,
        "at_ms": letter.at_ms,
        "topic": letter.topic,
        "reason": letter.reason,
        "deliveries": letter.deliveries,
        "message_id": letter.message_id or None,
        "sha256": letter.sha256,
        "size": letter.size,
        "body_kept": letter.body is not None,
    }
    if body and letter.body is not None:
        try:
            values["body"] = letter.body.decode()
        except UnicodeDecodeError:
            values["body_base64"] = base64.b64encode(letter.body).decode()
    return values


def _row(letter: DeadLetter) -> tuple[str, ...]:
    return (
        letter.letter_id,
        when(letter.at_ms),
        printable(letter.topic) or _NOTHING,
        str(letter.deliveries),
        str(letter.size),
        printable(letter.message_id) or _NOTHING,
        printable(letter.reason) or _NOTHING,
    )


def _of_body(letter: DeadLetter, *, shown: bool) -> str:
    if letter.body is None:
        return "not kept: bus.dead_letter_bodies was false at the service when it came"
    if not shown:
        return "kept; --body shows it"
    return printable(letter.body.decode("utf-8", "backslashreplace")) or "empty"
