"""Rows as they are stored, numbered in the order of time."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from nexus.core.ports import Row

START: Final = datetime(2024, 1, 1, tzinfo=UTC)


def moment(number: int) -> datetime:
    """The time of row `number`: a minute after that of the row before."""
    return START + timedelta(minutes=number)


def row(number: int, **changes: Any) -> Row:
    """A human row of the owner `o`, `m<number>` of a run by itself, with changes."""
    return {
        "id": f"m{number}",
        "run_id": f"r{number}",
        "owner_key": "o",
        "session_id": "s",
        "role": "HUMAN",
        "content": f"text {number}",
        "timestamp": moment(number),
        "metadata": {},
        **changes,
    }


def ids(rows: list[Row]) -> list[Any]:
    """The ids of the rows."""
    return [found.get("id") for found in rows]
