"""What the builder measures and counts of a build."""

import pytest

from nexus.core.metrics import Part, Stage
from nexus.core.models import Message
from nexus.services.context.builder import BuilderSettings, ContextBuilder
from nexus.tools.registry import ToolRegistry
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.metrics import RecordingMetrics
from tests.nexus.unit.services.parts import opened, request, within


async def built(*messages: Message, settings: BuilderSettings | None = None, down: bool = False) -> RecordingMetrics:
    """What is reported of these builds, one after another."""
    store, metrics = FakeStore(), RecordingMetrics()
    async with opened(store) as parts:
        store.down = down
        registry = ToolRegistry()
        builder = ContextBuilder(parts.persistence, store, registry, parts.ledger, settings, metrics=metrics)
        registry.complete = not down
        for message in messages:
            await builder.build(message, within(0.2 if down else 5.0))
        store.down = False
    return metrics


async def test_the_stages_of_a_build() -> None:
    """A first build gathers and assembles; a later one of the run has both from the first."""
    later = [{"role": "AI", "content": "on it"}]
    metrics = await built(request(), request(request_id="msg_2", later=later))
    assert metrics.stages == [Stage.GATHER, Stage.ASSEMBLE, Stage.BUILD, Stage.BUILD]
    assert not metrics.counted


async def test_missing_parts_are_counted() -> None:
    """Each by its name, once a build."""
    metrics = await built(request(), down=True)
    assert metrics.counted == {Part.HISTORY: 1, Part.PROFILE: 1, Part.TOOLS: 1}
    assert metrics.stages == [Stage.GATHER, Stage.ASSEMBLE, Stage.BUILD]


@pytest.mark.parametrize("text", ["hello", ""])
async def test_a_build_that_fails_is_measured_as_far_as_it_came(text: str) -> None:
    """Without its history where that is demanded, it has gathered; refused before it begins, it has not."""
    metrics = await built(request(text), settings=BuilderSettings(on_history_failure="error"), down=True)
    assert metrics.stages == ([Stage.GATHER, Stage.BUILD] if text else [])
    assert metrics.counted[Part.HISTORY] == (1 if text else 0)
