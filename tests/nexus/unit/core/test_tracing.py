"""The trace context of messages, by OpenTelemetry's API alone, as without an SDK (contract §16)."""

from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry import trace

from nexus.core.models import Message, Role
from nexus.core.tracing import background, carried, carrier, describe, processing, span

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
VALID = f"00-{TRACE}-{PARENT}-01"


def of(metadata: Mapping[str, Any], content: Any = "") -> Message:
    """A message with this metadata."""
    return Message(run_id="r", owner_key="ada", role=Role.HUMAN, content=content, metadata=dict(metadata))


def passed_on(message: Message) -> dict[str, str]:
    """What an answer to the message carries."""
    with processing("context.build.request", carried(message), 0.0, 0.0, {}), span("claim"):
        describe({})
        return carrier()


@pytest.mark.parametrize("flags", ["01", "00"])
def test_without_an_sdk_it_is_passed_on(flags: str) -> None:
    """The answer has the trace of its request, sampled or not; its own state goes along."""
    sent = {"traceparent": f"00-{TRACE}-{PARENT}-{flags}", "tracestate": "vendor=a1,other=b2"}
    assert passed_on(of(sent)) == sent
    assert passed_on(of({}, {"metadata": sent})) == sent
    assert passed_on(of({"traceparent": VALID}, {"metadata": sent})) == {"traceparent": VALID}


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    """What the specification asks for: its first fields are those of version 00."""
    assert passed_on(of({"traceparent": f"cc-{TRACE}-{PARENT}-01-what-comes-then"})) == {"traceparent": VALID}


HOSTILE: list[Any] = [
    None,
    7,
    True,
    ["00"],
    {"traceparent": VALID},
    "",
    " ",
    "00",
    f"00-{TRACE}-{PARENT}",
    f"00-{'0' * 32}-{PARENT}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"ff-{TRACE}-{PARENT}-01",
    f"00-{TRACE}-{PARENT}-01-more",
    f"00-{TRACE.upper()}-{PARENT}-01",
    f"00-{TRACE}-{PARENT}-zz",
    f"00-{TRACE[:-1]}g-{PARENT}-01",
    VALID.translate(str.maketrans("0123456789", "０１２３４５６７８９")),
    f"{VALID}\0",
    VALID + "0" * 1_000_000,
    f"cc-{TRACE}-{PARENT}-01-" + "x" * 1_000_000,
    "\ud800",
]


@pytest.mark.parametrize("given", HOSTILE, ids=[str(number) for number in range(len(HOSTILE))])
def test_what_is_none_is_passed_over(given: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever stands there, nothing is raised, logged or passed on."""
    assert passed_on(of({"traceparent": given, "tracestate": given})) == {}
    assert passed_on(of({}, {"metadata": {"traceparent": given}})) == {}
    with background("index words", {}, caused_by={"traceparent": given}):
        assert carrier() == {}
    assert caplog.records == []


@pytest.mark.parametrize("state", ["a=" + "b" * 1_000, 7, "no state at all", "=", ",,,"])
def test_a_wrong_state_goes_alone(state: Any) -> None:
    """The trace holds without it."""
    assert passed_on(of({"traceparent": VALID, "tracestate": state})) == {"traceparent": VALID}


@pytest.mark.parametrize("content", [None, 7, "text", [], {"metadata": None}, {"metadata": [VALID]}, {"metadata": "x"}])
def test_contents_that_hold_no_run(content: Any) -> None:
    """Of no trace."""
    assert carried(of({}, content)) == {}
    assert carried(None) == {}


def test_nothing_is_current_afterwards() -> None:
    """Errors pass through, and leave nothing behind."""
    with pytest.raises(ValueError, match="as raised"), processing("t", {"traceparent": VALID}, 0.0, 0.0, {}):
        raise ValueError("as raised")
    assert trace.get_current_span() is trace.INVALID_SPAN
    assert carrier() == {}
