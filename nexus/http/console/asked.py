"""What an address or a form asks, checked as commands check it (else HTTPException 400), and lists in pages."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from pydantic import BaseModel
from starlette.exceptions import HTTPException

from nexus.core.errors import NexusError
from nexus.core.ports import Row
from nexus.http.console.shell import Visit
from nexus.services.history.rows import read_owner_key, read_session_id
from nexus.services.memory.kept import read_kept

_Kept = TypeVar("_Kept", bound=BaseModel)
# No number has more.
_DIGITS: Final = 18


@contextmanager
def refused() -> Iterator[None]:
    """Around what reads an address: a ValueError is of who asked. Others are faults of Nexus, which no page tells."""
    try:
        yield
    except ValueError as error:
        raise HTTPException(400, str(error)) from None


def number(visit: Visit, name: str) -> int | None:
    """A whole number of the form or the address; None where it is left out."""
    given = visit.fields.get(name, visit.asked(name)).strip()
    if not given:
        return None
    if not (given.isascii() and given.isdecimal()) or len(given) > _DIGITS:
        raise HTTPException(400, f"{name}: a whole number is needed")
    return int(given)


def owner_and_session(visit: Visit) -> tuple[str, str]:
    """Whose page it is: names that an owner and a session can have."""
    with refused():
        return read_owner_key(visit.owner, "owner"), read_session_id({"session_id": visit.session}, "session")


def listed(
    visit: Visit, kind: type[_Kept], key: str, documents: Sequence[Row], at_once: int
) -> tuple[list[_Kept], list[str], Any]:
    """The values of the session's documents, of which the store was asked for one more than a page shows.

    Besides the faults of those that cannot be read, and the `key` behind which the next page begins, else None.
    """
    found: list[_Kept] = []
    faults: list[str] = []
    for document in documents[:at_once]:
        if (document.get("owner_key"), document.get("session_id")) != (visit.owner, visit.session):
            raise HTTPException(500, "the store gave the memory of another session")
        try:
            found.append(read_kept(kind, document, key))
        except NexusError as error:
            faults.append(str(error))
    return found, faults, documents[at_once - 1].get(key) if len(documents) > at_once else None
