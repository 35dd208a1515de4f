"""Values of erasure: what is to be forgotten of an owner, and the mark that keeps it from coming back (§13)."""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, get_args

from nexus.core.models import to_milliseconds

# What a store keeps of an owner, in the order in which it goes: what is made of messages before the messages, so that
# an erasure which is broken off finds again what has to go.
StoreKind = Literal[
    "records",
    "pieces",
    "facts",
    "constraints",
    "states",
    "turns",
    "details",
    "overviews",
    "compactions",
    "index",
    "messages",
    "profile",
]
STORE_KINDS: Final[tuple[StoreKind, ...]] = get_args(StoreKind)
# What a bus keeps besides outbox and dead letters: answers, the beginnings of runs, and entries of streams. Of the
# others nothing goes: requests that are being answered, entries that some group is not done with, and values that do
# not say whose they are.
BusKind = Literal["answers", "beginnings", "entries", "in_hand", "pending", "unknown"]
BUS_KINDS: Final[tuple[BusKind, ...]] = ("answers", "beginnings", "entries")
_MARK_CHARS: Final = 32


@dataclass(frozen=True, slots=True)
class Erasure:
    """What is to be forgotten: all of an owner, or of one session, or only what was said before a time."""

    owner_key: str
    session_id: str | None = None
    before: datetime | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the owner."""
        return self.session_id is None and self.before is None


@dataclass(frozen=True, slots=True)
class Tombstone:
    """That something was erased, without any content: of the names only their hashes.

    Attributes:
        owner: see `hashed`.
        session: of the session, likewise; `""` for all of the owner's.
        until: what was said up to then was erased: the time of the erasure, or the one that it was limited to.
        erased_at: when something of it was last still to be removed.
    """

    owner: str
    session: str
    until: datetime
    erased_at: datetime

    def covers(self, session_id: str, said_at: datetime) -> bool:
        """Whether what was said then in that session was erased."""
        return to_milliseconds(said_at) <= self.until and self.session in {"", hashed(session_id)}


def hashed(name: str) -> str:
    """The SHA-256 of a name of an owner or a session, in hexadecimal digits."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


def owner_mark(owner_key: str) -> str:
    """The beginning of `hashed`, by which keys on the bus say whose they are, as their last part."""
    return hashed(owner_key)[:_MARK_CHARS]
