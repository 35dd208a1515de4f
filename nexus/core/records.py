"""Values of records of builds: what an answer was, and the pieces of its bytes (contract §13)."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

# The bytes of a piece's id.
ID_BYTES: Final = 16
# `manifest`: of an answer its manifest alone; `full`: all of its bytes.
RecordMode = Literal["off", "manifest", "full"]


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """What was answered to one build request.

    Attributes:
        request_id: of the request, which names the record within its owner.
        outcome: `success`, or the code of the error (`nexus.core.errors.ErrorCode`).
        reason: of an error, as the answer says it; `""` for a success.
        layout, form: `""` where the request could not be read.
        agent: whom the context is for, `main`, `sub` or `sub` and the id of a sub-agent; `""` where that is not known.
        answered_at: to the millisecond.
        size: how many bytes were published; `sha256`: theirs, in hexadecimal digits.
        settings: the beginning of the SHA-256 of the settings that the build went by.
        version: of Nexus.
        mode: whether there are `pieces`, or the manifest alone.
        pieces: ids of the pieces that the bytes consist of, in their order; the same one may occur again.
        manifest: the JSON of the manifest where there are no pieces; else `b""`.
    """

    owner_key: str
    request_id: str
    run_id: str
    session_id: str
    outcome: str
    reason: str
    layout: str
    form: str
    answered_at: datetime
    size: int
    settings: str
    version: str
    mode: Literal["manifest", "full"]
    sha256: str = ""
    pieces: tuple[bytes, ...] = ()
    manifest: bytes = b""
    agent: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of the bytes of answers to an owner. Its `id` follows from both: no other owner has a piece with that id."""

    id: bytes
    owner_key: str
    data: bytes
