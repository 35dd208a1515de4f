"""A signed message is believed as it was signed, where it was signed for, for five minutes (contract §1.7)."""

import base64
import hashlib
import hmac
import itertools
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.core.errors import ErrorCode
from nexus.core.models import Message, Role, Topics, utc_now
from nexus.core.signing import Signing, canonical
from nexus.core.wire import EnvelopeError, EnvelopeIds, decode, encode

TOPIC = Topics.CONTEXT_BUILD_REQUEST
FIRST, SECOND = b"the first secret", b"the second secret"
SIGNING = Signing({"k1": FIRST}, required=True)
LENIENT = Signing({"k1": FIRST})
SENT = datetime(2025, 12, 10, 15, 30, tzinfo=UTC)
NOW = SENT.timestamp()
VALUE: dict[str, Any] = {
    "id": "msg_1",
    "run_id": "run_1",
    "owner_key": "ada",
    "role": "HUMAN",
    "content": {"text": "naïve 🎈", "list": [1, 2.5, None, True], "big": 2**64},
    "timestamp": "2025-12-10T15:30:00Z",
    "metadata": {"reply_to": "me"},
}

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


def signed(value: dict[str, Any] | None = None, signing: Signing = SIGNING, topic: str = TOPIC) -> dict[str, Any]:
    """The message with its signature."""
    value = VALUE if value is None else value
    return {**value, "metadata": {**(value.get("metadata") or {}), "signature": signature_of(value, signing, topic)}}


def signature_of(value: dict[str, Any], signing: Signing = SIGNING, topic: str = TOPIC) -> str:
    """The signature of the message."""
    return str(json.loads(signing.signed(topic, value))["metadata"]["signature"])


def with_signature(signature: Any) -> dict[str, Any]:
    """The message with this as its signature."""
    return {**VALUE, "metadata": {**VALUE["metadata"], "signature": signature}}


def refusal(value: dict[str, Any], signing: Signing = SIGNING, topic: str = TOPIC, later: float = 0) -> str:
    """Why it is not believed."""
    reason = signing.verify(topic, value, NOW + later)
    assert reason is not None
    return reason


def fresh() -> dict[str, Any]:
    """The message, sent now."""
    return {**VALUE, "timestamp": utc_now().isoformat()}


def refused(payload: bytes, signing: Signing = SIGNING) -> EnvelopeError:
    """The error that tells the sender what is wrong."""
    with pytest.raises(EnvelopeError) as caught:
        decode(payload, topic=TOPIC, signing=signing)
    return caught.value


class TestKeys:
    """The first signs, every one verifies."""

    def test_rotation(self) -> None:
        """At no step is a message refused that another replica, one step behind or ahead, has signed."""
        steps = [
            Signing({"k1": FIRST}, required=True),
            Signing({"k1": FIRST, "k2": SECOND}, required=True),
            Signing({"k2": SECOND, "k1": FIRST}, required=True),
            Signing({"k2": SECOND}, required=True),
        ]
        for one, next_one in itertools.pairwise(steps):
            assert one.verify(TOPIC, signed(signing=next_one), NOW) is None
            assert next_one.verify(TOPIC, signed(signing=one), NOW) is None
        assert "k2," in signed(signing=steps[2])["metadata"]["signature"]
        assert refusal(signed(signing=steps[0]), steps[3]) == "made with a key that is not known here"

    def test_a_wrong_key(self) -> None:
        """The same id with another secret."""
        other = Signing({"k1": SECOND})
        assert refusal(signed(signing=other)) == "does not belong to this message, topic and key"

    def test_another_key_of_the_bus(self) -> None:
        """A signature counts for the key that it names only."""
        both = Signing({"k1": FIRST, "k2": SECOND}, required=True)
        swapped = signature_of(VALUE, both).replace("v1,k1,", "v1,k2,")
        assert "does not belong" in refusal(with_signature(swapped), both)

    @pytest.mark.parametrize("keys", [{}, {"": b"x"}, {"a,b": b"x"}, {"k" * 65: b"x"}, {"ü": b"x"}, {"k1": b""}])
    def test_keys_that_are_none(self, keys: dict[str, bytes]) -> None:
        """They are refused before they can do harm, and not repeated."""
        with pytest.raises(ValueError, match=r"^signing needs a key"):
            Signing(keys)

    def test_no_secret_shows(self) -> None:
        """In a repr or a text."""
        assert repr(SIGNING) == str(SIGNING) == "Signing(keys=['k1'], required=True)"


class TestChanges:
    """Nothing that was signed can be changed; how it is spelled can."""

    def test_metadata(self) -> None:
        """Everything but the signature itself is signed."""
        metadata = signed()["metadata"]
        for change in ({"reply_to": "eve"}, {"deadline_ms": 5}, {"Signature": ""}):
            assert "does not belong" in refusal({**VALUE, "metadata": {**metadata, **change}})
        assert "does not belong" in refusal({**VALUE, "metadata": {"signature": metadata["signature"]}})

    @pytest.mark.parametrize("field", ["run_id", "owner_key", "role", "content"])
    def test_a_field_that_is_gone(self, field: str) -> None:
        """Removing is changing."""
        assert "does not belong" in refusal({key: item for key, item in signed().items() if key != field})

    @pytest.mark.parametrize("topic", ["", "context.build.response", "context.build.request.", "Context.build.request"])
    def test_another_topic(self, topic: str) -> None:
        """A message cannot be moved."""
        assert "does not belong" in refusal(signed(), topic=topic)

    @pytest.mark.parametrize("in_ascii", [True, False])
    def test_another_spelling(self, in_ascii: bool) -> None:
        """Order of keys, white space and escapes do not matter, nor how a number is written."""
        value = signed()
        turned = {**dict(reversed(value.items())), "metadata": dict(reversed(value["metadata"].items()))}
        spelled = json.dumps(turned, indent=3, ensure_ascii=in_ascii).replace("2.5", "0.25E+1").replace(" 1,", " 1.0,")
        assert "0.25E+1" in spelled
        assert SIGNING.verify(TOPIC, json.loads(spelled), NOW) is None

    def test_a_signature_signs_nothing_of_itself(self) -> None:
        """Signing again gives the same, and metadata may be missing when it is signed."""
        assert SIGNING.signed(TOPIC, signed()) == SIGNING.signed(TOPIC, VALUE)
        variants: list[dict[str, Any]] = [{}, {"metadata": None}, {"metadata": {}}]
        for metadata in variants:
            value = {**{key: item for key, item in VALUE.items() if key != "metadata"}, **metadata}
            assert SIGNING.verify(TOPIC, signed(value), NOW) is None


class TestFreshness:
    """A signature counts for 300 s, before and after its timestamp."""

    @pytest.mark.parametrize("later", [-300, -299.5, 0, 60, 300])
    def test_fresh(self, later: float) -> None:
        """Clocks may differ by as much."""
        assert SIGNING.verify(TOPIC, signed(), NOW + later) is None

    @pytest.mark.parametrize("later", [-300.1, -86_400, 300.1, 86_400, float("inf"), float("nan")])
    def test_stale(self, later: float) -> None:
        """A message that was heard cannot be kept and used again, nor one from the future."""
        assert refusal(signed(), later=later) == "the timestamp is more than 300 s away"
        assert refusal(signed(), LENIENT, later=later) == "the timestamp is more than 300 s away"

    @pytest.mark.parametrize(
        "timestamp",
        [
            "2025-12-10T15:30:00.123456789Z",
            "2025-12-10T15:30:00",
            "2025-12-10 15:30:00+00:00",
            "2025-12-10T23:30:00+08:00",
            "20251210T153000Z",
        ],
    )
    def test_forms_of_a_timestamp(self, timestamp: str) -> None:
        """Any of ISO 8601; without an offset it is UTC."""
        assert SIGNING.verify(TOPIC, signed({**VALUE, "timestamp": timestamp}), NOW) is None

    @pytest.mark.parametrize("timestamp", ["", "yesterday", "15:30", "2025-12-10T25:00:00Z", "1" * 9, "\0"])
    def test_a_timestamp_that_is_none(self, timestamp: str) -> None:
        """It cannot be fresh."""
        reason = refusal(signed({**VALUE, "timestamp": timestamp}))
        assert reason == "a signed message needs a timestamp in ISO 8601"

    @pytest.mark.parametrize("timestamp", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
    def test_the_ends_of_the_calendar(self, timestamp: str) -> None:
        """They are far away, and no error."""
        assert "away" in refusal(signed({**VALUE, "timestamp": timestamp}))

    @pytest.mark.parametrize("name", ["id", "timestamp"])
    @pytest.mark.parametrize("wrong", [None, 5, NOW, [], {}, True])
    def test_id_and_timestamp_are_needed(self, name: str, wrong: Any) -> None:
        """Without them the same message could be used again."""
        reason = f"a signed message needs a text as {name}"
        assert refusal({**signed(), name: wrong}) == reason
        assert refusal({key: item for key, item in signed().items() if key != name}) == reason
        with pytest.raises(ValueError, match=reason):
            SIGNING.signed(TOPIC, {**VALUE, name: wrong})


class TestForms:
    """What is no signature."""

    @pytest.mark.parametrize("value", [VALUE, {}, {"metadata": None}, {"metadata": []}, with_signature(None)])
    def test_unsigned(self, value: dict[str, Any]) -> None:
        """Refused where signatures are required, believed where they are not."""
        assert refusal(value) == "missing, and only signed messages are taken"
        assert LENIENT.verify(TOPIC, value, NOW) is None

    @pytest.mark.parametrize("signing", [SIGNING, LENIENT])
    @pytest.mark.parametrize(
        ("signature", "reason"),
        [
            ("", "not of the form"),
            (5, "not of the form"),
            (["v1,k1,YQ=="], "not of the form"),
            ("v1", "not of the form"),
            ("v1,k1,", "not of the form"),
            ("v1,k1,YQ==,x", "not of the form"),
            (" v1,k1,YQ==", "not of the form"),
            ("v1,k1,YQ==\n", "not of the form"),
            ("v1,k1,ä", "not of the form"),
            ("v1,k1," + "A" * 1_000_000, "not of the form"),
            ("v2,k1,YQ==", "of an unknown version; v1 is known"),
            ("v1,k2,YQ==", "made with a key that is not known here"),
            ("v1,k1,YQ==", "does not belong"),
            (signature_of(VALUE)[:-1], "does not belong"),
            (signature_of(VALUE) + "=", "does not belong"),
        ],
    )
    def test_wrong_ones(self, signing: Signing, signature: Any, reason: str) -> None:
        """Refused whether or not signatures are required, and not repeated."""
        assert refusal(with_signature(signature), signing).startswith(reason)


class TestOnTheWire:
    """`encode` signs, `decode` believes or refuses."""

    def test_the_way_there(self) -> None:
        """The message arrives as it was sent, with its signature."""
        message = Message.model_validate(fresh())
        read = decode(encode(message, topic=TOPIC, signing=SIGNING), topic=TOPIC, signing=SIGNING)
        signature = read.metadata.pop("signature")
        assert signature.startswith("v1,k1,")
        assert read == message
        assert "signature" not in message.metadata

    def test_a_message_is_signed_again(self) -> None:
        """One that is passed on gets the signature of who passes it on."""
        first = encode(Message.model_validate(fresh()), topic=TOPIC, signing=SIGNING)
        other = Signing({"k2": SECOND}, required=True)
        again = encode(decode(first), topic="tools.results", signing=other)
        assert decode(again, topic="tools.results", signing=other).id == "msg_1"
        assert json.loads(first)["metadata"].keys() == json.loads(again)["metadata"].keys()

    def test_unsigned_is_answered_as_such(self) -> None:
        """Before anything else that is wrong with it, and under its ids."""
        error = refused(json.dumps({**VALUE, "role": "nobody"}).encode())
        assert error.code is ErrorCode.UNAUTHENTICATED
        assert error.message == "metadata.signature: missing, and only signed messages are taken"
        assert error.ids == EnvelopeIds("msg_1", "run_1", "ada", "me")
        assert not error.code.retryable

    def test_what_cannot_be_parsed(self) -> None:
        """Nobody can tell who sent it: where signatures are required it is no more believed than an unsigned one."""
        data = encode(Message.model_validate(fresh()), topic=TOPIC, signing=SIGNING)
        error = refused(data[:-1])
        assert error.code is ErrorCode.UNAUTHENTICATED
        assert error.message.startswith("metadata.signature: cannot be checked: not JSON")
        with pytest.raises(EnvelopeError, match=r"cannot be checked: .* at most 100 are allowed") as caught:
            decode(data, max_bytes=100, topic=TOPIC, signing=SIGNING)
        assert caught.value.code is ErrorCode.UNAUTHENTICATED
        lenient = Signing(SIGNING.keys)
        with pytest.raises(EnvelopeError) as caught:
            decode(data[:-1], topic=TOPIC, signing=lenient)
        assert caught.value.code is ErrorCode.INVALID_REQUEST

    def test_the_last_of_duplicate_keys_is_signed(self) -> None:
        """It is the one that counts."""
        data = json.dumps(signed(fresh())).encode()
        assert decode(data.replace(b"{", b'{"owner_key": "eve", ', 1), topic=TOPIC, signing=SIGNING).owner_key == "ada"
        error = refused(data[:-1] + b', "owner_key": "eve"}')
        assert (error.code, error.ids.owner_key) == (ErrorCode.UNAUTHENTICATED, "eve")

    def test_what_is_made_canonical_was_signed_as_it_was(self) -> None:
        """A NUL is replaced after the signature has been verified."""
        data = json.dumps(signed({**fresh(), "content": "a\0b 😀"})).encode()
        assert rb"a\u0000b \ud83d\ude00" in data
        assert decode(data, topic=TOPIC, signing=SIGNING).content == "a\ufffdb 😀"
        assert "does not belong" in refused(data.replace(rb"\u0000", rb"\ufffd")).message

    def test_half_a_surrogate_pair(self) -> None:
        """Taken where nothing is signed; no signature fits it."""
        data = json.dumps({**fresh(), "content": "\ud83d"}).encode()
        assert decode(data, topic=TOPIC, signing=LENIENT).content == "\ufffd"
        named = json.dumps({**signed(fresh()), "content": "\ud83d"}).encode()
        assert refused(named).message == (
            "metadata.signature: the message has no canonical form: half a surrogate pair"
        )

    @pytest.mark.parametrize("big", [2**53, -(2**64), 10**25, 10**4_300 - 2, 2 - 10**4_300], ids=range(5))
    def test_integers_of_any_size(self, big: int) -> None:
        """All that can be read can be signed, to the last digit."""
        message = Message.model_validate({**fresh(), "content": {"arguments": [big]}})
        data = encode(message, topic=TOPIC, signing=SIGNING)
        assert decode(data, topic=TOPIC, signing=SIGNING).content == message.content
        last, other = str(big)[-4:].encode(), str(big + 1)[-4:].encode()
        assert b"does not belong" in refused(data.replace(last + b"]", other + b"]")).message.encode()

    def test_what_waited_on_the_bus_is_not_stale(self) -> None:
        """A signature is judged by when the bus took the message, but never by a moment to come."""
        early = {**VALUE, "timestamp": (utc_now() - timedelta(hours=2)).isoformat()}
        late = {**VALUE, "timestamp": (utc_now() + timedelta(hours=2)).isoformat()}
        for value in (early, late):
            sent_ms = int(datetime.fromisoformat(value["timestamp"]).timestamp() * 1_000)
            data = json.dumps(signed(value)).encode()
            assert "300 s away" in refused(data).message
            if value is early:
                assert decode(data, topic=TOPIC, signing=SIGNING, sent_ms=sent_ms).id == "msg_1"
            else:
                with pytest.raises(EnvelopeError, match="300 s away"):
                    decode(data, topic=TOPIC, signing=SIGNING, sent_ms=sent_ms)


def test_the_example_of_the_contract() -> None:
    """Message, signed bytes and signature stand in docs/contract.md as the code makes them."""
    text = (
        (Path(__file__).parents[4] / "docs" / "contract.md").read_text(encoding="utf-8").partition("## Authenticity")[2]
    )
    message, signed_bytes = re.findall(r"```(?:json [a-z-]+)?\n(.*?)\n```", text, re.DOTALL)[:2]
    signature = re.search(r'"signature": "(v1,k1,.{44})"', text)
    value = json.loads(message)
    assert canonical(["v1", "llm.results", value["id"], value["timestamp"], value]).decode() == signed_bytes
    assert signature is not None
    signing = Signing({"k1": b"an example, not a secret"})
    assert signature_of(value, signing, "llm.results") == signature[1]
    assert independently("llm.results", signing.signed("llm.results", value), {"k1": b"an example, not a secret"})


def independently(topic: str, payload: bytes, secrets: dict[str, bytes]) -> bool:
    """A verifier written from docs/contract.md alone, with what any language has; for messages without floats."""
    message = json.loads(payload)
    version, key_id, code = message["metadata"].pop("signature").split(",")
    signed_value = [version, topic, message["id"], message["timestamp"], message]
    text = json.dumps(signed_value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    expected = hmac.new(secrets[key_id], text.encode(), hashlib.sha256).digest()
    return version == "v1" and hmac.compare_digest(base64.b64decode(code), expected)


@given(TEXTS, st.dictionaries(st.text("abcdefgé你_", max_size=8), st.integers() | TEXTS | st.none(), max_size=5))
def test_another_program_can_verify_it(topic: str, content: dict[str, Any]) -> None:
    """With the words of the contract and a JSON library."""
    message = Message(run_id="run_1", owner_key="ada", role=Role.AI, content=content)
    data = encode(message, topic=topic, signing=SIGNING)
    assert independently(topic, data, {"k1": FIRST})
    assert not independently(topic + "x", data, {"k1": FIRST})
    assert not independently(topic, data, {"k1": SECOND})
