"""What an address asks of a page or a form, checked as commands check it."""

from typing import Final

from nexus.http.console.shell import Visit
from nexus.services.history.rows import read_owner_key, read_session_id

# No number has more.
DIGITS: Final = 18


def number(visit: Visit, name: str) -> int | None:
    """A whole number of the address; None where it is left out, ValueError for anything else."""
    given = visit.asked(name).strip()
    if not given:
        return None
    if not (given.isascii() and given.isdecimal()) or len(given) > DIGITS:
        raise ValueError(f"{name}: a whole number is needed")
    return int(given)


def owner_and_session(visit: Visit) -> tuple[str, str]:
    """Whose page it is; ValueError where no owner or no session can be called so."""
    return read_owner_key(visit.owner, "owner"), read_session_id({"session_id": visit.session}, "session")
