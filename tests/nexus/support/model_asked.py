"""A model behind the adapter at a server, and its replies."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

import pytest

from nexus.adapters.llm import ModelLimits, OpenAiModel, open_llm
from nexus.core.errors import ModelUnavailableError
from tests.nexus.support.model_behaviours import Behaviour
from tests.nexus.support.model_server import ModelServer, model_server
from tests.nexus.support.waiting import PATIENCE_S

KEY: Final = "sk-canary-0123456789"
LIMITS: Final = ModelLimits(timeout_s=PATIENCE_S, retries=2, breaker_failures=100)
# For calls that are to take too long.
SHORT: Final = replace(LIMITS, timeout_s=0.2, retries=0)
SCHEMA: Final = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
WELL: Final = '{"ok": true}'


@asynccontextmanager
async def asked(
    *script: Behaviour, limits: ModelLimits = LIMITS, key: str = KEY, then: Behaviour | None = None
) -> AsyncIterator[tuple[OpenAiModel, ModelServer]]:
    """A model, and its server, which goes through the script and then behaves like `then`."""
    async with model_server(then) as server, open_llm(server.base_url, key, "m", limits) as model:
        server.script.extend(script)
        yield model, server


async def ask(model: OpenAiModel) -> str:
    """The model's reply."""
    return (await model.complete("Answer with JSON.", "?", schema=SCHEMA, schema_name="answer")).text


async def refusal(model: OpenAiModel) -> str:
    """The reason why the model gives no reply."""
    with pytest.raises(ModelUnavailableError) as refused:
        await ask(model)
    return str(refused.value)
