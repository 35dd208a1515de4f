"""Envelopes damaged on purpose: `decode` gives a fit message or one of its two errors, and nothing is forged."""

import json
from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexus.core.errors import UnreadablePayloadError
from nexus.core.signing import canonical
from nexus.core.wire import EnvelopeError, decode
from tests.nexus.support.wire_oracle import ENVELOPE, SEEDS, SENT_MS, SENT_SIGNED, SIGNED, SIGNING, TOPIC, judge

pytestmark = pytest.mark.heavy

TOKENS: Final = [
    *b"NaN -Infinity 1e999 -0 -0.0 1E400 0.1e-400 9007199254740993 00 1. null true [] {} 1765380600".split(),
    *(rb'"" "\u0000" "\ud800" "\udc00\ud800" "\ud83d\ude00" "\\ud800" "\x" "v1,k1,AAAA" "v2,k1,AAAA"').split(),
    *(b"9" * 4_300, b"-" + b"9" * 4_300, b"9" * 4_301, b"9" * 310, b"1" + b"0" * 309 + b".5"),
    *(b'"\x00"', b'"\xed\xa0\x80"', b'"\xff"', b'"\xc0\x80"', b'"\xf4\x90\x80\x80"', b'"\n"'),
    *(b'"2025-12-10T15:30:00Z"', b'"9999-12-31T23:59:59-14:00"', b'"' + b"x" * 300 + b'"'),
    *(b"[" * 63 + b"]" * 63, b"[" * 64 + b"]" * 64, b'{"a":' * 200 + b"1" + b"}" * 200, b"[" * 5_000),
]
KEYS: Final = [
    *b'"id" "run_id" "owner_key" "role" "content" "timestamp" "metadata" "signature" "reply_to" "id id 1'.split(),
    *(rb'"\u0069d"', rb'"\u0000"', rb'"\ud800"', b'"\xf0\x9f\x98\x80"'),
]
PREFIXES: Final = [b"", b"", b"", b" \n", b"\xef\xbb\xbf", b"\xff\xfe", b"\x00", b"[", b'"', b"null "]
SUFFIXES: Final = [b"", b"", b"", b"\n", b"\x00", b"}", b",", b"{}", b"\xff"]


@st.composite
def objects(draw: st.DrawFn, depth: int = 0) -> bytes:
    """A JSON object as bytes: keys twice, tokens that are none, objects inside."""
    keys = st.sampled_from(KEYS)
    values = st.sampled_from(TOKENS) | (objects(depth=depth + 1) if depth < 2 else st.sampled_from(TOKENS))
    pairs = draw(st.lists(st.tuples(keys, values), max_size=6))
    return b"{" + b",".join(key + b":" + value for key, value in pairs) + b"}"


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """An envelope with a few wounds."""
    data = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data)))
        wound: Callable[[bytes, int, st.DrawFn], bytes] = draw(st.sampled_from(WOUNDS))
        data = wound(data, place, draw)
    return draw(st.sampled_from(PREFIXES)) + data + draw(st.sampled_from(SUFFIXES))


def _insert(data: bytes, place: int, draw: st.DrawFn) -> bytes:
    return data[:place] + draw(st.sampled_from(TOKENS) | st.binary(max_size=4)) + data[place:]


def _overwrite(data: bytes, place: int, draw: st.DrawFn) -> bytes:
    return data[:place] + draw(st.binary(min_size=1, max_size=3)) + data[place + 1 :]


def _cut(data: bytes, place: int, draw: st.DrawFn) -> bytes:
    return data[:place] + data[place + draw(st.integers(1, 40)) :]


def _repeat(data: bytes, place: int, draw: st.DrawFn) -> bytes:
    return data[:place] + data[place : place + draw(st.integers(1, 40))] + data[place:]


def _add_a_key(data: bytes, _place: int, draw: st.DrawFn) -> bytes:
    member = draw(st.sampled_from(KEYS)) + b":" + draw(st.sampled_from(TOKENS) | objects())
    return data[:-1] + b"," + member + b"}" if draw(st.booleans()) else b"{" + member + b"," + data[1:]


def _replace_a_value(data: bytes, place: int, draw: st.DrawFn) -> bytes:
    start = data.find(b":", place) + 1
    end = min((found for found in (data.find(stop, start) for stop in (b",", b"}")) if found > 0), default=len(data))
    return data[:start] + draw(st.sampled_from(TOKENS) | objects()) + data[end:]


def _nest(data: bytes, place: int, draw: st.DrawFn) -> bytes:
    return data[:place] + data + data[place:] if draw(st.booleans()) else b'{"content":' + data + b"}"


WOUNDS: Final = [_insert, _overwrite, _cut, _repeat, _add_a_key, _replace_a_value, _replace_a_value, _nest]


@given(damaged())
@settings(max_examples=400)
def test_damaged_envelopes(data: bytes) -> None:
    """However they were hurt."""
    judge(data)


@given(objects())
@settings(max_examples=150)
def test_objects_of_nothing_but_oddities(data: bytes) -> None:
    """With keys twice and values that are none."""
    judge(data)


@pytest.mark.parametrize("seed", SEEDS, ids=range(len(SEEDS)))
def test_cut_off_at_every_byte(seed: bytes) -> None:
    """The beginning of an envelope is none, and only the whole is believed."""
    for length in range(len(seed)):
        with pytest.raises((EnvelopeError, UnreadablePayloadError)):
            decode(seed[:length])
        judge(seed[:length])
    assert judge(seed) == ("believed" if b"signature" in seed else "message")


@pytest.mark.parametrize("seed", [seed for seed in SEEDS if b"signature" in seed], ids=["ascii", "utf-8", "as sent"])
def test_every_bit_counts(seed: bytes) -> None:
    """A flipped bit is refused, but where the spelling alone has changed."""
    believed = 0
    for place in range(len(seed)):
        for bit in range(8):
            flipped = seed[:place] + bytes([seed[place] ^ (1 << bit)]) + seed[place + 1 :]
            believed += judge(flipped) == "believed"
    assert believed < 50


_MEMBER: Final = b'"signature":"' + SIGNED["metadata"]["signature"].encode() + b'"'
_UNSIGNED: Final = canonical(ENVELOPE)


@pytest.mark.parametrize(
    ("among", "insert", "places"),
    [
        *((_UNSIGNED, insert, places) for insert, places in ((b",%b", 2), (b"%b,", 2), (b"%b", 0), (b",%b,", 0))),
        # Twice in the metadata it is there once.
        *((SENT_SIGNED, insert, places) for insert, places in ((b",%b", 3), (b"%b,", 3), (b"%b", 0), (b",%b,", 0))),
    ],
)
def test_a_signature_at_every_place(among: bytes, insert: bytes, places: int) -> None:
    """It counts in the metadata at the top only, where the rest is what was signed."""
    inserted = insert.replace(b"%b", _MEMBER)
    judged = [judge(among[:place] + inserted + among[place:]) for place in range(len(among) + 1)]
    assert judged.count("believed") == places


@given(st.dictionaries(st.text(max_size=4), st.text(st.sampled_from(',{}"\\:signature'), max_size=12), max_size=3))
@settings(max_examples=100)
def test_what_was_sent_is_verified_by_its_bytes(content: dict[str, str]) -> None:
    """Whatever the content looks like: its value need have no canonical form, and any other byte is refused."""
    sent = SIGNING.signed(TOPIC, {**ENVELOPE, "content": [content, {"metadata": {"signature": "v1,k1,YQ=="}}]})
    value = {**json.loads(sent), "content": {"no JSON"}}
    assert SIGNING.verify(TOPIC, value, SENT_MS / 1_000, sent) is None
    assert SIGNING.verify(TOPIC, value, SENT_MS / 1_000, sent + b" ") == ("the message has no canonical form: a set")
    assert SIGNING.verify("tools.results", json.loads(sent), SENT_MS / 1_000, sent) is not None
    assert SIGNING.verify(TOPIC, {**json.loads(sent), "id": "msg_2"}, SENT_MS / 1_000, sent) is not None
