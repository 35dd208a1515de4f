"""Where spans go, as settings say (contract §16); what is sent is in e2e/test_traces.py."""

import re
import sys

import pytest
from pydantic import SecretStr

from nexus.config import Settings, TracingSettings
from nexus.connections import open_tracing
from nexus.core.errors import ConfigError

WANTED = Settings(tracing=TracingSettings(otlp_endpoint=SecretStr("http://127.0.0.1:1")))


async def test_without_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install; where nothing is to be sent, nothing is needed."""
    monkeypatch.delitem(sys.modules, "nexus.adapters.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    said = re.escape('tracing.otlp_endpoint: needs packages: pip install "nexus-context[otlp]"')
    with pytest.raises(ConfigError, match=said):
        async with open_tracing(WANTED, "r1", "1"):
            pass
    async with open_tracing(Settings(), "r1", "1"):
        pass


@pytest.mark.parametrize(("name", "value"), [("OTEL_BSP_MAX_QUEUE_SIZE", "0"), ("OTEL_SPAN_EVENT_COUNT_LIMIT", "many")])
async def test_variables_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """A wrong one stops the start with its words."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"tracing\.otlp_endpoint: OpenTelemetry's variables cannot be used"):
        async with open_tracing(WANTED, "r1", "1"):
            pass
