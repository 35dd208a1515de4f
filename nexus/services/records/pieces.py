"""Answers as pieces: bytes cut by what they say, so that answers which begin alike, or repeat a passage, share pieces.

- A piece ends where a line or an object of a list ends, if the bytes before say so: the same passage is cut at the same
  places in every answer, whatever stands before it.
- Pieces are bytes, wherever they are cut: joined, they are the answer.
- A piece is named by its owner and its bytes. Owners share none.
"""

import hashlib
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Final

from nexus.core.records import ID_BYTES

# A line break inside a JSON text, and what stands between two objects.
_END: Final = re.compile(rb"\\n|\},\{")
# Bytes that a piece has at least, but for the last; it then ends at one place of so many, as these bytes before it say.
_LEAST: Final = 512
_ENDS_ONE_IN: Final = 2
_BYTES_BEFORE: Final = 64


def cut(answer: bytes) -> list[bytes]:
    """The pieces of an answer, in their order."""
    pieces, begin, place = [], 0, _END.search(answer, _LEAST)
    while place:
        end = place.end()
        if zlib.crc32(answer[end - _BYTES_BEFORE : end]) % _ENDS_ONE_IN:
            place = _END.search(answer, end)
        else:
            pieces.append(answer[begin:end])
            begin, place = end, _END.search(answer, end + _LEAST)
    return [*pieces, answer[begin:]]


def piece_ids(owner_key: str, pieces: Sequence[bytes]) -> list[bytes]:
    """The ids of pieces of this owner: of each the beginning of a SHA-256."""
    of_owner = hashlib.sha256(hashlib.sha256(owner_key.encode("utf-8", "surrogatepass")).digest())
    ids = []
    for piece in pieces:
        digest = of_owner.copy()
        digest.update(piece)
        ids.append(digest.digest()[:ID_BYTES])
    return ids


def joined(owner_key: str, ids: Sequence[bytes], found: Mapping[bytes, bytes]) -> bytes:
    """The answer, of pieces by id; ValueError, which says what is wrong, where one is missing or spoilt."""
    if missing := sum(each not in found for each in ids):
        raise ValueError(f"{missing} of {len(ids)} pieces are missing")
    pieces = [found[each] for each in ids]
    if spoilt := sum(a != b for a, b in zip(ids, piece_ids(owner_key, pieces), strict=True)):
        raise ValueError(f"{spoilt} of {len(ids)} pieces are spoilt")
    return b"".join(pieces)
