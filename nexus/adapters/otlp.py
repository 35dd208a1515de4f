"""Where spans go: OpenTelemetry's SDK, and its exporter over OTLP and HTTP, for one process (contract §16).

- Spans wait in a bounded queue (OTEL_BSP_MAX_QUEUE_SIZE), which a thread sends off. What finds no room, or cannot be
  sent within OTEL_EXPORTER_OTLP_TIMEOUT, is lost, and holds up nothing.
- One log line says that the collector is unavailable and one that it is back.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import anyio
import structlog
from anyio import to_thread
from opentelemetry import trace

from nexus.core.errors import ConfigError

try:
    import requests
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
except ModuleNotFoundError as error:
    raise ConfigError('tracing.otlp_endpoint: needs packages: pip install "nexus-context[otlp]"') from error

_log = structlog.get_logger(__name__)

_PATH: Final = "/v1/traces"


@asynccontextmanager
async def exporting(
    endpoint: str, sample_ratio: float, about: Mapping[str, str], *, flush_s: float
) -> AsyncIterator[None]:
    """Send the spans of this process to the collector at `endpoint`; at the end those that are left, in `flush_s`.

    `about` describes the process. OpenTelemetry's variables may say more, and otherwise.
    """
    try:
        resource = Resource.create(about).merge(OTELResourceDetector().detect())
        sampler = ParentBasedTraceIdRatio(sample_ratio)
        provider = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
        exporter = _Reporting(endpoint.rstrip("/").removesuffix(_PATH) + _PATH)
        provider.add_span_processor(BatchSpanProcessor(exporter))
    except (ValueError, OSError) as error:
        raise ConfigError(f"tracing.otlp_endpoint: OpenTelemetry's variables cannot be used: {error}") from error
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        with anyio.move_on_after(flush_s, shield=True) as scope:
            await to_thread.run_sync(provider.shutdown, abandon_on_cancel=True)
        if scope.cancelled_caught:
            _log.warning("traces_unsent", reason=f"the collector did not take the last ones within {flush_s:g} s")


class _Reporting(SpanExporter):
    """An exporter that logs when the collector goes away, and when it is back."""

    def __init__(self, url: str) -> None:
        session = requests.Session()
        session.hooks["response"].append(self._answered)
        self._exporter = OTLPSpanExporter(endpoint=url, session=session)
        self._status = 0
        self._unavailable = False

    def _answered(self, response: requests.Response, **_: object) -> None:
        self._status = response.status_code

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans. Called by one thread at a time."""
        self._status = 0
        try:
            result = self._exporter.export(spans)
        except Exception:  # noqa: BLE001  # the outermost handler of the SDK's thread
            result = SpanExportResult.FAILURE
        unavailable = result is not SpanExportResult.SUCCESS
        if unavailable and not self._unavailable:
            _log.warning("collector_unavailable", reason=f"status {self._status}" if self._status else "no answer")
        elif self._unavailable and not unavailable:
            _log.info("collector_available")
        self._unavailable = unavailable
        return result

    def shutdown(self) -> None:
        """End."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # it says no types
