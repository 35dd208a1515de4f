"""How late the event loop is, is measured and logged."""

import asyncio

import anyio
import structlog

from nexus.bootstrap import watch_loop
from tests.nexus.support.metrics import RecordingMetrics
from tests.nexus.support.virtual_time import VirtualLoop


def test_a_step_that_takes_long_is_seen() -> None:
    """As late as every other task was called; in the log from half a second on."""
    metrics = RecordingMetrics()

    async def work() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch_loop, metrics)
            for step_s in (0.01, 0.3, 1.5):
                await anyio.sleep(1)
                loop.pass_time(step_s)
                await anyio.sleep(1)
            tasks.cancel_scope.cancel()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner, structlog.testing.capture_logs() as lines:
        runner.run(work())
    late = [stall for stall in metrics.stalls if stall > 0.05]
    # A step begins at any moment between two looks.
    assert [round(stall, 1) for stall in late] == [0.3, 1.5]
    assert [(line["event"], round(line["seconds"], 1)) for line in lines] == [("loop_stalled", 1.5)]
