"""Values of erasure: what is to be forgotten of an owner, and the mark that keeps it from coming back (§13)."""

import hashlib
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Erasure:
    """What is to be forgotten: all of an owner, or of one session, or only what was said before a time."""

    owner_key: str
    session_id: str | None = None
    before: datetime | None = None


@dataclass(frozen=True, slots=True)
class Tombstone:
    """That something was erased, without any content: of the names only their hashes.

    Attributes:
        owner: see `hashed`.
        session: of the session, likewise; `""` for all of the owner's.
        until: what was said up to then was erased: the time of the erasure, or the one that it was limited to.
        erased_at: when.
    """

    owner: str
    session: str
    until: datetime
    erased_at: datetime

    def covers(self, session_id: str, said_at: datetime) -> bool:
        """Whether what was said then in that session was erased."""
        return said_at <= self.until and self.session in {"", hashed(session_id)}


def hashed(name: str) -> str:
    """The SHA-256 of a name of an owner or a session, in hexadecimal digits."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
