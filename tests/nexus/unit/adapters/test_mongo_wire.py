"""OP_MSG as it is sent and read: whatever pieces a reply comes in, and whatever else comes instead of one."""

from itertools import pairwise
from struct import pack, unpack_from

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.adapters.mongo_wire import Reply, ReplyReader, WireError, message


def a_reply(to: int, document: bytes, *, flags: int = 0, kind: int = 2013, section: int = 0) -> bytes:
    """The bytes of a reply, with a checksum where the flags say so."""
    checksum = b"\x01\x02\x03\x04" if flags & 1 else b""
    length = 21 + len(document) + len(checksum)
    return pack("<iiiiIB", length, 7, to, kind, flags, section) + document + checksum


DOCUMENTS = [bson.encode({"ok": 1, "text": text}) for text in ("", "Grüße 世界", "x" * 70_000)]
REPLIES = [Reply(number, document) for number, document in enumerate(DOCUMENTS, 1)]


def test_a_command_is_one_document() -> None:
    """With its length, its id and no flags before it, as a server expects it."""
    sent = message(5, {"find": "messages", "$db": "nexus"})
    assert sent[:21] == pack("<iiiiIB", len(sent), 5, 0, 2013, 0, 0)
    assert [*bson.decode(sent[21:])] == ["find", "$db"]


def test_what_is_inserted_comes_behind_its_command() -> None:
    """In a section of its own, as a server expects it."""
    sent = message(5, {"insert": "messages", "$db": "nexus"}, DOCUMENTS)
    assert sent[:21] == pack("<iiiiIB", len(sent), 5, 0, 2013, 0, 0)
    (length,) = unpack_from("<i", sent, 21)
    assert [*bson.decode(sent[21 : 21 + length])] == ["insert", "$db"]
    sequence = sent[21 + length :]
    assert sequence[:15] == pack("<Bi", 1, len(sequence) - 1) + b"documents\0"
    assert sequence[15:] == b"".join(DOCUMENTS)


@given(st.sets(st.integers(0, sum(map(len, DOCUMENTS)) + 3 * 25), max_size=20), st.booleans())
def test_in_whatever_pieces_replies_come(cuts: set[int], checksum: bool) -> None:
    """Each is read once it is whole, in their order, also with a checksum behind it."""
    data = b"".join(a_reply(reply.to, reply.document, flags=int(checksum)) for reply in REPLIES)
    reader = ReplyReader()
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    read = [reply for first, end in pairwise(places) for reply in reader.feed(data[first:end])]
    assert read == REPLIES


@pytest.mark.parametrize(
    "data",
    [
        pack("<iiii", 16, 7, 1, 2013),
        pack("<iiii", 0, 7, 1, 2013),
        pack("<iiii", -1, 7, 1, 2013),
        pack("<iiii", 48_000_001, 7, 1, 2013),
        a_reply(1, DOCUMENTS[0], kind=2012),
        a_reply(1, DOCUMENTS[0], flags=2),
        a_reply(1, DOCUMENTS[0], section=1),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
    ids=[
        "too short",
        "nothing",
        "negative",
        "too long",
        "compressed",
        "more to come",
        "a sequence",
        "another protocol",
    ],
)
@pytest.mark.parametrize("piecewise", [False, True])
def test_what_is_no_reply(data: bytes, *, piecewise: bool) -> None:
    """Is said at once, and never waited out."""
    reader = ReplyReader()
    if piecewise:
        assert [*reader.feed(data[:3])] == []
        data = data[3:]
    with pytest.raises(WireError):
        [*reader.feed(data)]
