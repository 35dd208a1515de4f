"""What several readers of streams hand to one subscriber."""

import anyio
import pytest

from nexus.adapters.redis.client import open_redis
from nexus.adapters.redis.stream_subscription import StreamSubscription
from nexus.core.ports import Delivery


@pytest.mark.parametrize("readers", [1, 3])
async def test_all_readers_that_wait_for_room_go_on(readers: int) -> None:
    """However many there are; in the end everything has come, in the order of each."""
    async with open_redis("redis://127.0.0.1:1/0") as client:
        subscription = StreamSubscription(client, "", (), 1)
        came: list[tuple[str, str]] = []

        async def read(topic: str) -> None:
            for number in range(3_000):
                await subscription.deliver(Delivery(topic, b"", str(number)))

        async def take() -> None:
            came.extend([(delivery.topic, delivery.entry) async for delivery in subscription])

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(take)
                async with anyio.create_task_group() as reading:
                    for number in range(readers):
                        reading.start_soon(read, str(number))
                await subscription.stop()
        subscription.close()
    for number in range(readers):
        assert [entry for topic, entry in came if topic == str(number)] == [str(each) for each in range(3_000)]
