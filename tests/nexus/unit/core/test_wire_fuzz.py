"""Whatever the bytes are, `decode` gives a message or one of its two errors; `find_ids` agrees with a real parser."""

import json
import random
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.core.errors import UnreadablePayloadError
from nexus.core.models import Message, Role
from nexus.core.wire import EnvelopeError, EnvelopeIds, decode, encode, find_ids

IDENTIFIERS = st.text(st.characters(codec="utf-8", exclude_characters="\0\ufffd"), min_size=1, max_size=256)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=10,
)
# A message has no time that is none in UTC.
_FIRST, _LAST = datetime(1, 1, 2), datetime(9999, 12, 30)  # noqa: DTZ001  # each is given a zone
MESSAGES = st.builds(
    Message,
    id=IDENTIFIERS,
    run_id=IDENTIFIERS,
    owner_key=IDENTIFIERS,
    role=st.sampled_from(Role),
    content=JSON,
    timestamp=st.datetimes(_FIRST, _LAST, timezones=st.timezones()),
    metadata=st.dictionaries(TEXTS, JSON, max_size=3),
)


@given(MESSAGES)
def test_what_is_encoded_is_read_back(message: Message) -> None:
    """No message changes on its way, and the same message has the same bytes."""
    read = decode(encode(message))
    assert (read, encode(read)) == (message, encode(message))


@given(
    st.fixed_dictionaries(dict.fromkeys(("id", "run_id", "owner_key"), IDENTIFIERS)),
    st.dictionaries(TEXTS, JSON, max_size=4),
    st.none() | IDENTIFIERS,
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_ids_are_found_as_a_parser_finds_them(
    ids: dict[str, str], others: dict[str, Any], reply_to: str | None, in_ascii: bool, shuffler: random.Random
) -> None:
    """For any JSON object with texts as ids at its top, in any order and among any other keys."""
    metadata = {"reply_to": reply_to} if reply_to else {"id": "not this"}
    items = [*{**others, **ids, "metadata": metadata}.items()]
    shuffler.shuffle(items)
    data = json.dumps(dict(items), ensure_ascii=in_ascii).encode()
    assert find_ids(data) == EnvelopeIds(**ids, reply_to=reply_to or "")


@pytest.mark.parametrize(
    "part",
    [*b'" \\ \\" "\\ [ ] { } {" ": "" "": \\u \\ud800'.split(), b" ", b'"a": '],
)
@pytest.mark.parametrize("head", [b"", b'{"id":"msg_1","run_id":"run_1","content":', b'{"content":"'])
def test_a_megabyte_of_anything_ends(part: bytes, head: bytes) -> None:
    """No repetition makes reading take longer than the test's time limit."""
    data = head + part * (1_048_576 // len(part))
    with pytest.raises((EnvelopeError, UnreadablePayloadError)):
        decode(data, max_bytes=2 << 20)
    find_ids(data)


@pytest.mark.parametrize("kept", range(1, 60))
def test_half_an_id_is_none(kept: int) -> None:
    """An id that was cut off could be somebody else's, and is not used."""
    data = b'{"run_id":"run_12","id":"msg_12","owner_key":"ada_12","x":1}'[:kept]
    ids = find_ids(data)
    if ids:
        assert ids.run_id in {"", "run_12"}
        assert ids.id == "msg_12" or len(ids.id) == 36
        assert ids.owner_key in {"", "ada_12"}
