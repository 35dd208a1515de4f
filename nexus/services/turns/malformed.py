"""Turns that others have written in another form: they end nobody's work (CONTRACT §6)."""

from collections.abc import Iterable

import structlog

from nexus.core.ports import Row

_log = structlog.get_logger(__name__)


def is_numbered(turn: Row) -> bool:
    """Whether the turn has a number."""
    number = turn.get("turn_number")
    return isinstance(number, int | float) and not isinstance(number, bool)


def is_placed(turn: Row) -> bool:
    """Whether it can be told which turn it is, of which run and session: nobody can change or follow any other."""
    texts = (turn.get(name) for name in ("owner_key", "session_id", "run_id"))
    return is_numbered(turn) and all(isinstance(text, str) for text in texts)


def placed(claimed: Iterable[Row]) -> list[Row]:
    """These turns without those of which that cannot be told; they are left alone, and it is said."""
    found = []
    for turn in claimed:
        if is_placed(turn):
            found.append(turn)
        else:
            _log.warning("turn_malformed", turn_id=str(turn.get("id")), run_id=str(turn.get("run_id")))
    return found
