"""Answers cut into pieces: joined they are the answer, and answers that say the same share them (contract §13)."""

import json
import random
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.services.records.pieces import cut, joined, piece_ids

# Bytes with many places at which a piece may end.
BYTES: Final = st.one_of(
    st.binary(max_size=4_000),
    st.lists(st.sampled_from([b"\\n", b"},{", b"},", b"{", b"\\", b"n", b"\xff", b"x" * 300, b"y" * 900])).map(
        b"".join
    ),
)


def answer(texts: list[str]) -> bytes:
    """An answer with these texts."""
    return json.dumps([{"role": "user", "content": text} for text in texts], ensure_ascii=False).encode()


def texts(number: int, seed: int = 0) -> list[str]:
    """Texts of one line or of several."""
    words = random.Random(seed)  # noqa: S311  # made data
    return ["\n".join(words.randbytes(60).hex() for _ in range(words.randint(1, 6))) for _ in range(number)]


def shared(one: bytes, other: bytes) -> float:
    """The part of the bytes of one that are in pieces of the other."""
    known = {*cut(other)}
    return sum(len(piece) for piece in cut(one) if piece in known) / len(one)


@given(BYTES)
def test_pieces_joined_are_the_answer(given: bytes) -> None:
    """Whatever the bytes are."""
    pieces = cut(given)
    assert b"".join(pieces) == given
    ids = piece_ids("ada", pieces)
    assert joined("ada", ids, dict(zip(ids, pieces, strict=True))) == given


@given(BYTES)
def test_pieces_are_of_some_size(given: bytes) -> None:
    """All but the last, so that an answer has no more than can be named."""
    assert all(len(piece) > 512 for piece in cut(given)[:-1])


def test_what_begins_alike_or_ends_alike_shares_pieces() -> None:
    """Also where the middle is changed, and where the beginning goes, as that of a history does."""
    said = texts(200)
    whole = answer(said)
    assert shared(answer([*said, "And?"]), whole) > 0.95
    assert shared(answer([*said[:100], "Another.", *said[101:]]), whole) > 0.95
    assert shared(answer(said[3:]), whole) > 0.95
    assert shared(answer(["Before all.", *said]), whole) > 0.95
    assert shared(answer(texts(200, seed=1)), whole) == 0


def test_lines_of_one_text_are_shared() -> None:
    """A layout may show a history as one text."""
    said = [line for text in texts(200) for line in text.split("\n")]
    assert shared(answer(["\n".join(said[3:])]), answer(["\n".join(said)])) > 0.95


def test_owners_share_no_id() -> None:
    """Nor does an owner whose name goes on where a piece begins."""
    assert not {*piece_ids("ada", [b"x", b""])} & {*piece_ids("ad", [b"ax", b"x", b""])}
    assert piece_ids("\ud800", [b"x"]) != piece_ids("?", [b"x"])


def test_what_is_missing_or_spoilt_is_said() -> None:
    """By how many of how many pieces."""
    ids = piece_ids("ada", [b"one", b"two", b"one"])
    with pytest.raises(ValueError, match=r"^2 of 3 pieces are missing$"):
        joined("ada", ids, {ids[1]: b"two"})
    with pytest.raises(ValueError, match=r"^1 of 3 pieces are spoilt$"):
        joined("ada", ids, {ids[0]: b"one", ids[1]: b"Two"})
