"""What an address asks of a page or a form, checked as commands check it. What is wrong is an HTTPException 400."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from starlette.exceptions import HTTPException

from nexus.http.console.shell import Visit
from nexus.services.history.rows import read_owner_key, read_session_id

# No number has more.
DIGITS: Final = 18


@contextmanager
def refused() -> Iterator[None]:
    """Around what reads an address: a ValueError is of who asked. Others are faults of Nexus, which no page tells."""
    try:
        yield
    except ValueError as error:
        raise HTTPException(400, str(error)) from None


def number(visit: Visit, name: str) -> int | None:
    """A whole number of the address; None where it is left out."""
    given = visit.asked(name).strip()
    if not given:
        return None
    if not (given.isascii() and given.isdecimal()) or len(given) > DIGITS:
        raise HTTPException(400, f"{name}: a whole number is needed")
    return int(given)


def owner_and_session(visit: Visit) -> tuple[str, str]:
    """Whose page it is: names that an owner and a session can have."""
    with refused():
        return read_owner_key(visit.owner, "owner"), read_session_id({"session_id": visit.session}, "session")
