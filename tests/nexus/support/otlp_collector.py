"""A collector of spans on loopback: takes OTLP in protobuf over HTTP, and behaves as a test says."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

HOST: Final = "127.0.0.1"


@dataclass(frozen=True)
class Sent:
    """A span as it came; `resource` are the attributes of its process."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    began: int
    ended: int
    failed: bool
    message: str
    events: int
    links: tuple[str, ...]
    attributes: dict[str, Any]
    resource: dict[str, Any]

    @property
    def traceparent(self) -> str:
        """As a message carries it."""
        return f"00-{self.trace_id}-{self.span_id}-01"


@dataclass
class OtlpCollector:
    """What came; `behave` is called before each answer, and returns its status."""

    port: int = 0
    spans: list[Sent] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    behave: Callable[[], int] = lambda: 200

    @property
    def endpoint(self) -> str:
        """The value for `tracing.otlp_endpoint`."""
        return f"http://{HOST}:{self.port}"

    def take(self, path: str, body: bytes, headers: dict[str, str]) -> int:
        """Take one post; returns the status."""
        self.bodies.append(body)
        self.headers.append(headers)
        if path != "/v1/traces" or headers.get("content-type") != "application/x-protobuf":
            return 404
        if (status := self.behave()) == 200:
            self.spans += _spans_in(ExportTraceServiceRequest.FromString(body))
        return status

    def of(self, trace_id: str) -> list[Sent]:
        """The spans of a trace, by their beginning."""
        return sorted((sent for sent in self.spans if sent.trace_id == trace_id), key=lambda sent: sent.began)


@contextmanager
def otlp_collector() -> Iterator[OtlpCollector]:
    """A collector that listens."""
    collector = OtlpCollector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = collector.take(self.path, body, {name.lower(): value for name, value in self.headers.items()})
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_args: Any) -> None:
            pass

    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        # Whoever waits for an answer may be gone by then.
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # as above
        collector.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


def tree(spans: list[Sent]) -> list[str]:
    """The spans as lines, children indented below their parent, in the order of their beginnings."""
    known = {sent.span_id for sent in spans}

    def lines(parent: Sent | None, depth: int) -> Iterator[str]:
        for sent in sorted(spans, key=lambda sent: (sent.began, sent.ended)):
            if sent.parent_id == parent.span_id if parent else sent.parent_id not in known:
                yield "  " * depth + sent.name
                yield from lines(sent, depth + 1)

    return [*lines(None, 0)]


def _spans_in(posted: ExportTraceServiceRequest) -> Iterator[Sent]:
    for group in posted.resource_spans:
        resource = _values(group.resource.attributes)
        for scope in group.scope_spans:
            for each in scope.spans:
                yield Sent(
                    each.name,
                    each.kind,
                    each.trace_id.hex(),
                    each.span_id.hex(),
                    each.parent_span_id.hex(),
                    each.start_time_unix_nano,
                    each.end_time_unix_nano,
                    each.status.code == each.status.STATUS_CODE_ERROR,
                    each.status.message,
                    len(each.events),
                    tuple(link.trace_id.hex() for link in each.links),
                    _values(each.attributes),
                    resource,
                )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)
