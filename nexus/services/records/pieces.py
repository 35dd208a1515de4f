"""Answers as pieces: bytes cut by what they say, so that answers which begin alike, or repeat a passage, share pieces.

- A piece is one or more of the texts between two places where JSON begins another member or item after a text, object
  or list. It ends behind a text whose checksum says so: the same texts end the same piece in every answer.
- Pieces are bytes, wherever they are cut: joined, they are the answer.
"""

import hashlib
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

_BETWEEN: Final = re.compile(rb'(?<=[}\]"]),(?=[{"])')
# Bytes that a piece has at least, but for the last; a piece then ends behind one text of so many, on average.
_LEAST: Final = 2_048
_ENDS_ONE_IN: Final = 8
_ID_BYTES: Final = 16


def cut(answer: bytes) -> list[bytes]:
    """The pieces of an answer, in their order."""
    pieces, begin, end = [], 0, 0
    for end, text_begin in _places(answer):
        if end - begin >= _LEAST and not zlib.crc32(answer[text_begin:end]) % _ENDS_ONE_IN:
            pieces.append(answer[begin:end])
            begin = end
    return [*pieces, answer[begin:]]


def _places(answer: bytes) -> Iterator[tuple[int, int]]:
    """Where a text ends, and where it begins."""
    begin = 0
    for place in _BETWEEN.finditer(answer):
        yield place.end(), begin
        begin = place.end()


def piece_id(piece: bytes) -> bytes:
    """The beginning of its SHA-256."""
    return hashlib.sha256(piece).digest()[:_ID_BYTES]


def packed(data: bytes) -> bytes:
    """The bytes, compressed."""
    return zlib.compress(data)


def unpacked(data: bytes) -> bytes:
    """What was compressed; ValueError where it is spoilt."""
    try:
        return zlib.decompress(data)
    except zlib.error as error:
        raise ValueError(f"spoilt: {error}") from None


def joined(ids: Sequence[bytes], found: Mapping[bytes, bytes]) -> bytes:
    """The answer, of compressed pieces by id; ValueError, which says what is wrong, where one is missing or spoilt."""
    if missing := [each for each in ids if each not in found]:
        raise ValueError(f"{len(missing)} of {len(ids)} pieces are missing")
    return b"".join(unpacked(found[each]) for each in ids)
