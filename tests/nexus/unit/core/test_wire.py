"""Bytes become a message, or the sender is told why not; no bytes do anything else (contract §1.2, §1.6)."""

import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from nexus.core.errors import ErrorCode, UnreadablePayloadError
from nexus.core.models import Message, Role
from nexus.core.wire import EnvelopeError, EnvelopeIds, compact, decode, encode, find_ids

ENVELOPE: dict[str, Any] = {
    "id": "msg_1",
    "run_id": "run_1",
    "owner_key": "ada",
    "role": "HUMAN",
    "content": "hello",
    "timestamp": "2025-12-10T15:30:00Z",
    "metadata": {},
}
IDS = EnvelopeIds("msg_1", "run_1", "ada")


def payload(**changes: Any) -> bytes:
    """The envelope with some fields changed."""
    return json.dumps({**ENVELOPE, **changes}, ensure_ascii=False).encode()


def with_content(raw: bytes) -> bytes:
    """The envelope with these very bytes as its content."""
    return payload(content="@").replace(b'"@"', raw)


def nested(depth: int) -> bytes:
    """The envelope, `depth` levels deep in all."""
    return with_content(b"[" * (depth - 1) + b"]" * (depth - 1))


def refused(data: bytes, *, max_bytes: int = 1 << 20) -> EnvelopeError:
    """The error that tells the sender what is wrong."""
    with pytest.raises(EnvelopeError) as caught:
        decode(data, max_bytes=max_bytes)
    return caught.value


def test_a_message_has_these_bytes() -> None:
    """The encoded form is one compact JSON object with the fields in the order of the contract."""
    message = Message(
        id="msg_1",
        run_id="run_1",
        owner_key="ada",
        role=Role.AI,
        content={"text": "naïve 🎈"},
        timestamp=datetime(2025, 12, 10, 15, 30, tzinfo=UTC),
    )
    assert encode(message).decode() == (
        '{"id":"msg_1","run_id":"run_1","owner_key":"ada","role":"AI","content":{"text":"naïve 🎈"},'
        '"timestamp":"2025-12-10T15:30:00Z","metadata":{}}'
    )
    assert decode(encode(message)) == message


def test_unknown_fields_are_ignored() -> None:
    """A newer sender's extra fields change nothing."""
    assert decode(payload(added="later", more=[1])) == decode(payload())


def test_missing_metadata_is_empty() -> None:
    """`metadata: null` is no metadata."""
    assert decode(payload(metadata=None)).metadata == {}


@pytest.mark.parametrize(
    ("given", "moment"),
    [
        ("2025-12-10T15:30:00", datetime(2025, 12, 10, 15, 30, tzinfo=UTC)),
        ("2025-12-10T15:30:00Z", datetime(2025, 12, 10, 15, 30, tzinfo=UTC)),
        ("2025-12-10T23:30:00+08:00", datetime(2025, 12, 10, 15, 30, tzinfo=UTC)),
        ("2025-12-10T15:30:00.123456", datetime(2025, 12, 10, 15, 30, 0, 123456, tzinfo=UTC)),
    ],
)
def test_timestamps_are_moments_in_utc(given: str, moment: datetime) -> None:
    """A naive timestamp is UTC, another offset is taken to UTC."""
    read = decode(payload(timestamp=given)).timestamp
    assert (read, read.tzinfo) == (moment, UTC)


def test_a_moment_beyond_the_calendar_is_refused() -> None:
    """A timestamp that has no equivalent in UTC is a wrong value, not an overflow."""
    assert "timestamp: " in refused(payload(timestamp="0001-01-01T00:00:00+14:00")).message


def test_a_missing_id_is_made_of_the_payload() -> None:
    """The same bytes always have the same id, other bytes another."""
    without = json.dumps({key: value for key, value in ENVELOPE.items() if key != "id"}).encode()
    first, again, other = decode(without), decode(without), decode(without.replace(b"hello", b"hallo"))
    assert first.id == again.id
    assert first.id != other.id
    assert first.id.startswith("msg_")
    assert len(first.id) == 36


@pytest.mark.parametrize("text", [r"ada\u0000", r"ada\ud800", r"ada\uDFFF", r"ada\ufffd", "ada�"])
@pytest.mark.parametrize("name", ["owner_key", "run_id", "id"])
def test_two_ids_do_not_become_one(name: str, text: str) -> None:
    """What is made canonical elsewhere is refused in an id: all of these would be one owner. It is never repeated."""
    error = refused(payload(**{name: "an id"}).replace(b"an id", text.encode()))
    assert error.message == f"{name}: NUL, U+FFFD and half a surrogate pair are not allowed in an id"
    assert "\ufffd" not in getattr(error.ids, name)


@pytest.mark.parametrize(
    "text", [" ada", "ada ", "Ada", "a\u0308", "\u00e4", "ada\r\n", "ada\n", "ada\u200b", "\U0001f600"]
)
def test_ids_that_differ_stay_as_they_are(text: str) -> None:
    """No white space, line end, case or composition of an id is made canonical."""
    assert decode(payload(owner_key=text)).owner_key == text


@pytest.mark.parametrize("wrong_id", [None, 5, "", "x" * 257])
def test_a_wrong_id_is_answered_under_one_made_of_the_payload(wrong_id: Any) -> None:
    """Who sends an id that is none can still be told."""
    error = refused(payload(id=wrong_id))
    assert error.message.startswith("id: ")
    assert error.ids.id.startswith("msg_")
    assert error.ids.run_id == "run_1"
    assert error.ids == refused(payload(id=wrong_id)).ids


class TestSize:
    """The size is judged before anything is parsed."""

    def test_up_to_the_limit(self) -> None:
        """A payload of exactly the limit is read, one byte more is refused."""
        data = payload()
        assert decode(data, max_bytes=len(data)).id == "msg_1"
        error = refused(data, max_bytes=len(data) - 1)
        assert error.code is ErrorCode.PAYLOAD_TOO_LARGE
        assert error.message == f"{len(data)} bytes, at most {len(data) - 1} are allowed (bus.max_payload_bytes)"
        assert error.ids == IDS

    def test_up_to_sixteen_times_the_ids_are_read(self) -> None:
        """A payload of sixteen times the limit is answered."""
        data = with_content(b'"' + b"x" * 16_000 + b'"')
        limit = -(-len(data) // 16)
        assert refused(data, max_bytes=limit).ids == IDS

    def test_beyond_that_nothing_is(self) -> None:
        """A payload of more than sixteen times the limit is unreadable, although it names its sender."""
        data = with_content(b'"' + b"x" * 16_000 + b'"')
        with pytest.raises(
            UnreadablePayloadError, match=r"^\d+ bytes, at most 1000 are allowed \(bus\.max_payload_bytes\)$"
        ):
            decode(data, max_bytes=1_000)

    def test_too_large_is_not_parsed(self) -> None:
        """What is too large need not be JSON to be answered as too large."""
        data = b'{"id":"msg_1","run_id":"run_1",' + b"{" * 10_000
        assert refused(data, max_bytes=5_000).code is ErrorCode.PAYLOAD_TOO_LARGE


class TestDepth:
    """Objects and arrays may be nested 64 deep."""

    def test_sixty_four_is_allowed(self) -> None:
        """The deepest that may be."""
        assert decode(nested(64)).id == "msg_1"

    @pytest.mark.parametrize("depth", [65, 200, 10_000, 400_000])
    def test_more_is_refused(self, depth: int) -> None:
        """Whatever the depth, the answer is the same and nothing overflows."""
        error = refused(nested(depth))
        assert (error.code, error.message) == (ErrorCode.INVALID_REQUEST, "nested deeper than 64")
        assert error.ids == IDS

    def test_broad_is_not_deep(self) -> None:
        """Ten thousand brackets side by side are fine."""
        assert len(decode(with_content(b"[" + b"[]," * 9_999 + b"[]]")).content) == 10_000

    def test_brackets_in_text_do_not_count(self) -> None:
        """A text may hold as many brackets as it likes."""
        assert decode(payload(content="[" * 1_000)).content == "[" * 1_000


class TestWhatAStoreCannotKeep:
    """NaN, NUL, lone surrogates and duplicate keys are refused or made canonical (contract §1.6)."""

    @pytest.mark.parametrize("content", [b"NaN", b"Infinity", b"-Infinity", b'"a\x00b"', b'"\xed\xa0\x80"'])
    def test_what_is_no_json(self, content: bytes) -> None:
        """NaN and infinities, a control character that is not escaped, and a surrogate in bytes."""
        assert refused(with_content(content)).message.startswith("not JSON")

    def test_an_escaped_nul_is_replaced(self) -> None:
        """In texts and in keys."""
        assert decode(with_content(rb'{"a\u0000b":"c\u0000"}')).content == {"a\ufffdb": "c\ufffd"}

    @pytest.mark.parametrize(
        ("escaped", "text"),
        [
            (rb"\ud800", "\ufffd"),
            (rb"\uDFFF", "\ufffd"),
            (rb"\ud83d\ud83d\ude00", "\ufffd😀"),
            (rb"\ude00\ud83d", "\ufffd\ufffd"),
            (rb"\ud83d\ude00", "😀"),
            (rb"\\ud800", r"\ud800"),
            (rb"\\\ud800", "\\\ufffd"),
            (rb"\\u0000", r"\u0000"),
        ],
    )
    def test_lone_surrogates_are_replaced(self, escaped: bytes, text: str) -> None:
        """A pair stays the character that it is, half a pair becomes U+FFFD, and an escaped backslash is none."""
        message = decode(with_content(b'"' + escaped + b'"'))
        assert message.content == text
        assert decode(encode(message)) == message

    def test_the_last_of_duplicate_keys_counts(self) -> None:
        """For the message as for the ids."""
        data = payload().replace(b'"id": "msg_1"', b'"id": "msg_0", "id": "msg_1"')
        assert decode(data).id == "msg_1"
        assert find_ids(data) == IDS

    def test_an_integer_of_ten_thousand_digits(self) -> None:
        """It is refused: neither Python nor a store could write it again."""
        assert refused(with_content(b"9" * 10_000)).message.startswith("not JSON: number out of range")
        assert decode(with_content(b"9" * 4_000)).content == int("9" * 4_000)


class TestUnreadable:
    """Bytes that name nobody are unreadable; the text says why without repeating them."""

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"secret",
            b"[1]",
            b'["id","run_id"]',
            b'{"secret":1}',
            b'{"content":{"id":"x","run_id":"y"}}',
            b'{"id":5,"run_id":5}',
            b"\xff\xfe{\x00}\x00",
            b'{"id":"se',
            bytes(range(256)),
        ],
    )
    def test_nobody_can_be_answered(self, data: bytes) -> None:
        """There is no id under which an answer could be found."""
        with pytest.raises(UnreadablePayloadError) as caught:
            decode(data)
        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize(
        "data",
        [
            b"\xef\xbb\xbf" + payload(),
            payload()[:-1],
            payload() + b"}",
            payload() + payload(),
            payload().replace(b'"role"', b"role"),
            payload(content="\xff").replace("\xff".encode(), b"\xff"),
        ],
        ids=["byte order mark", "cut", "too long", "two", "unquoted", "not UTF-8"],
    )
    def test_broken_but_from_somebody(self, data: bytes) -> None:
        """What is no JSON but names its sender is answered."""
        error = refused(data)
        assert error.code is ErrorCode.INVALID_REQUEST
        assert error.message.startswith("not JSON")
        assert error.ids == IDS

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"role": "secret"}, "role: Input should be 'HUMAN', 'AI', 'SYSTEM', 'TOOL' or 'COMMAND'"),
            ({"owner_key": {"$ne": "secret"}}, "owner_key: Input should be a valid string"),
            ({"run_id": ""}, "run_id: String should have at least 1 character"),
            ({"owner_key": "secret" * 50}, "owner_key: String should have at most 256 characters"),
            ({"metadata": ["secret"]}, "metadata: Input should be a valid dictionary"),
            ({"role": None, "owner_key": 5}, "owner_key: Input should be a valid string (and 1 more)"),
        ],
    )
    def test_the_text_says_where_and_repeats_nothing(self, changes: dict[str, Any], message: str) -> None:
        """The place and the rule, never what was given."""
        error = refused(payload(**changes))
        assert (error.code, error.message) == (ErrorCode.INVALID_REQUEST, message)


@pytest.mark.parametrize("number", ["1e309", "-1E+400", "1.5e999", "1" * 400 + ".5"])
@pytest.mark.parametrize("around", ['{"a":%s}', '[%s,"1e999"]', "[1, %s ]", '{"a":{"b":[%s]}}', "[\n%s\n]"])
def test_a_number_that_no_double_holds(number: str, around: str) -> None:
    """JSON has no infinities, so the sender is told, wherever the number stands."""
    error = refused(with_content((around % number).encode()))
    assert (error.code, error.message) == (ErrorCode.INVALID_REQUEST, "not JSON: a number is too large")


@pytest.mark.parametrize("number", ["9" * 309, "1e308", "1e-999", "12.5e10", "0e99", '"1e999"', '"-1e999"'])
def test_a_number_that_is_not_too_large(number: str) -> None:
    """An integer of any size, and the same digits in a text, are taken."""
    assert decode(with_content(f"[{number}]".encode())).content == json.loads(f"[{number}]")


_TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
_FINITE = st.floats(allow_nan=False, allow_infinity=False)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | _FINITE | _TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(_TEXTS, inner),
    max_leaves=20,
)


@given(_VALUES)
def test_compact_json(value: Any) -> None:
    """It is the JSON that pydantic makes: what others have kept is found again."""
    assert compact(value) == to_json(value)
    assert json.loads(compact(value)) == value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2**70, b"1180591620717411303424"),
        ([-(2**64)], b"[-18446744073709551616]"),
        ({1: "a", None: "b"}, b'{"1":"a","None":"b"}'),
        ([math.nan, math.inf], b"[null,null]"),
        ([2**70, math.nan], b"[1180591620717411303424,null]"),
        ('\x00\x1f\x7f\u2028"\\', b'"\\u0000\\u001f\x7f\xe2\x80\xa8\\"\\\\"'),
        ({"a": "\ud83d"}, b'{"a":"\xed\xa0\xbd"}'),
        ((1, [2]), b"[1,[2]]"),
        (json.loads("[" * 200 + "]" * 200), b"[" * 200 + b"]" * 200),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), b'"2026-01-02T03:04:05Z"'),
    ],
)
def test_unusual_compact_json(value: Any, expected: bytes) -> None:
    """Integers of any size, keys that are no text, numbers that JSON has not, control characters, half a pair."""
    assert compact(value) == expected
