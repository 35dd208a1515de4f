"""MongoDB's wire protocol as far as a command and its one reply need it: OP_MSG (CONTRACT §2). Pure.

A message is a header of four little-endian 32-bit integers (its length, its id, the id of what it answers, the kind of
message), 32 flag bits, and sections: one of kind 0, a BSON document, and where a command inserts another one of kind 1,
a sequence of documents. See "OP_MSG" in MongoDB's documentation of its wire protocol.
"""

from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

import bson

_HEADER: Final = Struct("<iiii")
# With the flags and the kind of the section.
_BEGINNING: Final = Struct("<iiiiIB")
_OP_MSG: Final = 2013
# The kind of a section, its length without that, and the name of what is in it.
_SEQUENCE: Final = Struct("<Bi10s")
_DOCUMENTS: Final = b"documents\0"
_CHECKSUM_PRESENT: Final = 1
_CHECKSUM_BYTES: Final = 4
# `maxMessageSizeBytes`, as every server since 3.6 has it.
_LONGEST: Final = 48_000_000


class WireError(Exception):
    """Bytes that are no reply to a command."""


class Reply(NamedTuple):
    """A reply.

    Attributes:
        to: the id of the message that it answers.
        document: its BSON.
    """

    to: int
    document: bytes


def message(message_id: int, command: Mapping[str, Any], documents: Sequence[bytes] = ()) -> bytes:
    """A command as it is sent.

    Args:
        message_id: what the reply names; positive, 31 bits.
        command: its name first, and `$db`.
        documents: what it inserts, as BSON.

    Raises:
        BSONError: a value of it cannot be sent; likewise OverflowError and UnicodeEncodeError.
    """
    parts = [bson.encode(command), *documents]
    length = sum(map(len, parts))
    if documents:
        inserted = _SEQUENCE.size + length - len(parts[0])
        parts.insert(1, _SEQUENCE.pack(1, inserted - 1, _DOCUMENTS))
        length += _SEQUENCE.size
    return b"".join((_BEGINNING.pack(_BEGINNING.size + length, message_id, 0, _OP_MSG, 0, 0), *parts))


class ReplyReader:
    """Makes replies of bytes as they come in."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Reply]:
        """The replies that are complete with these bytes.

        Raises:
            WireError: they are something else; nothing that comes later can be read.
        """
        if not self._rest and len(data) >= _HEADER.size and len(data) == _HEADER.unpack_from(data)[0]:
            yield _reply(data)
            return
        rest = self._rest
        rest += data
        while len(rest) >= _HEADER.size:
            length = _length(rest)
            if len(rest) < length:
                return
            whole = bytes(rest[:length])
            del rest[:length]
            yield _reply(whole)


def _length(data: bytearray) -> int:
    length: int = _HEADER.unpack_from(data)[0]
    if not _BEGINNING.size <= length <= _LONGEST:
        raise WireError(f"a message of {length} bytes")
    return length


def _reply(whole: bytes) -> Reply:
    if len(whole) < _BEGINNING.size:
        raise WireError(f"a message of {len(whole)} bytes")
    _, _, to, kind, flags, section = _BEGINNING.unpack_from(whole)
    if kind != _OP_MSG or section or flags & ~_CHECKSUM_PRESENT:
        raise WireError(f"a message of kind {kind}, flags {flags}, section {section}")
    end = len(whole) - _CHECKSUM_BYTES if flags & _CHECKSUM_PRESENT else len(whole)
    return Reply(to, whole[_BEGINNING.size : end])
