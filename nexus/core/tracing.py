"""Spans by OpenTelemetry's API, and the trace context that messages carry (contract §16).

- A message that is received, and work in the background, begins a span; everything else is a child of the current one,
  and costs next to nothing where that is not recorded: without an SDK, or not sampled.
- `Key` has all attributes there are: numbers, names from closed sets and settings, and the ids that the log has, too.
  Of an exception its type is kept, not its text.
- A trace context that W3C's specification does not allow is passed over in silence: its message begins a trace.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Final, Literal

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Link, Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_TRACER: Final = trace.get_tracer("nexus")
_W3C: Final = TraceContextTextMapPropagator()
_PARENT, _STATE = "traceparent", "tracestate"
# Longer ones would be logged by what reads them.
_MOST_CHARS: Final = 512


class Key(StrEnum):
    """The attributes of spans: by OpenTelemetry's semantic conventions where they have one, else our own."""

    SYSTEM = "messaging.system"
    OPERATION = "messaging.operation.name"
    OPERATION_TYPE = "messaging.operation.type"
    TOPIC = "messaging.destination.name"  # without prefix and `reply_to`
    REQUEST_ID = "messaging.message.id"
    BODY_SIZE = "messaging.message.body.size"
    ERROR = "error.type"  # the code of an error answer, else the type of an exception
    MODEL_OPERATION = "gen_ai.operation.name"
    MODEL_PROVIDER = "gen_ai.provider.name"
    MODEL = "gen_ai.request.model"
    PROMPT_TOKENS = "gen_ai.usage.input_tokens"
    COMPLETION_TOKENS = "gen_ai.usage.output_tokens"
    RUN_ID = "nexus.run_id"
    BUS_MODE = "nexus.bus.mode"
    DELIVERIES = "nexus.deliveries"
    ATTEMPTS = "nexus.attempts"  # claims of the request, this one included
    LAYOUT = "nexus.layout"
    FORMAT = "nexus.format"
    OUTCOME = "nexus.outcome"  # as in the log; what the ledger says of a request that is not to be built here
    DEGRADED = "nexus.degraded"
    MESSAGES = "nexus.messages"  # of the context
    TOKENS = "nexus.tokens"  # of the context, where they were counted
    ANSWER_SIZE = "nexus.answer.size"  # in bytes
    ITEMS = "nexus.items"  # that a piece of work is about


Attributes = Mapping[Key, str | int | Sequence[str]]


@contextmanager
def span(name: str) -> Iterator[None]:
    """A child of the current span, around the work inside; nothing where that is not recorded. Also a decorator."""
    if not trace.get_current_span().is_recording():
        yield
        return
    with _current(_TRACER.start_span(name)):
        yield


@contextmanager
def model_call(operation: Literal["chat", "embeddings"], model: str, *, provider: str = "openai") -> Iterator[None]:
    """The same for a call of a model; `provider` is the one whose protocol is spoken."""
    if not trace.get_current_span().is_recording():
        yield
        return
    attributes = _by_name({Key.MODEL_OPERATION: operation, Key.MODEL_PROVIDER: provider, Key.MODEL: model})
    with _current(_TRACER.start_span(f"{operation} {model}", kind=SpanKind.CLIENT, attributes=attributes)):
        yield


@contextmanager
def processing(
    topic: str, trace_context: Mapping[str, str], arrived_at: float, decoded_at: float, attributes: Attributes
) -> Iterator[None]:
    """The span of a message from its arrival to the end of the work inside, in the trace that it `carried`.

    Both times are on the monotonic clock. Its reading, which came before the trace was known, is a child.
    """
    parent = _W3C.extract(trace_context, Context())
    to_wall_ns = time.time_ns() - time.monotonic_ns()
    begun = _TRACER.start_span(
        f"process {topic}",
        context=parent,
        kind=SpanKind.CONSUMER,
        start_time=to_wall_ns + int(arrived_at * 1e9),
        attributes=_by_name({Key.OPERATION: "process", Key.OPERATION_TYPE: "process", Key.TOPIC: topic, **attributes}),
    )
    with _current(begun):
        if begun.is_recording():
            decode = _TRACER.start_span("decode", start_time=to_wall_ns + int(arrived_at * 1e9))
            decode.end(to_wall_ns + int(decoded_at * 1e9))
        yield


@contextmanager
def background(name: str, attributes: Attributes, *, caused_by: object = None) -> Iterator[None]:
    """A span of work that no message waits for, in a trace of its own, around the work inside.

    `caused_by` holds the trace context of the request from which the work came, where that is known.
    """
    cause = trace.get_current_span(_W3C.extract(_readable(caused_by), Context())).get_span_context()
    links = [Link(cause)] if cause.is_valid else []
    with _current(_TRACER.start_span(name, context=Context(), links=links, attributes=_by_name(attributes))):
        yield


@contextmanager
def _current(begun: Span) -> Iterator[None]:
    with trace.use_span(begun, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield
        except BaseException as error:
            _fail(begun, type(error).__name__)
            raise


def describe(attributes: Attributes) -> None:
    """Set attributes of the current span; `Key.ERROR` marks it as failed."""
    current = trace.get_current_span()
    if current.is_recording():
        current.set_attributes(_by_name(attributes))
        if error := attributes.get(Key.ERROR):
            _fail(current, str(error))


def _by_name(attributes: Attributes) -> dict[str, str | int | Sequence[str]]:
    return {key.value: value for key, value in attributes.items()}


def _fail(begun: Span, kind: str) -> None:
    begun.set_attribute(Key.ERROR, kind)
    begun.set_status(StatusCode.ERROR)


def carrier() -> dict[str, str]:
    """The trace context of the current span, as the metadata of a message that is sent; empty where there is none."""
    if trace.get_current_span() is INVALID_SPAN:
        return {}
    fields: dict[str, str] = {}
    _W3C.inject(fields)
    return fields


def carried(message: object) -> dict[str, str]:
    """The trace context in a message's metadata, else in that of the run that it holds; empty where there is none."""
    content = getattr(message, "content", None)
    run = content.get("metadata") if isinstance(content, Mapping) else None
    return _readable(getattr(message, "metadata", None)) or _readable(run)


def _readable(metadata: Any) -> dict[str, str]:
    if not isinstance(metadata, Mapping) or _PARENT not in metadata:
        return {}
    given = ((name, metadata.get(name)) for name in (_PARENT, _STATE))
    return {name: value for name, value in given if isinstance(value, str) and len(value) <= _MOST_CHARS}
