"""Holding what was claimed, for as long as it takes (CONTRACT §1.5)."""

import asyncio

import anyio

from nexus.adapters.in_memory import MemoryBus, MemoryLedger
from nexus.core.ports import Acquired, Busy
from nexus.services.requests.envelope import RequestSettings
from nexus.services.requests.leases import Leases
from tests.nexus.support.virtual_time import VirtualLoop
from tests.nexus.unit.services.serving import SettlingBus, SettlingLedger

_SETTINGS = RequestSettings(lease_ms=2_000)


async def claimed(ledger: MemoryLedger, key: str = "k") -> Acquired:
    """The claim on a request that is free."""
    claim = await ledger.claim(key, "f", _SETTINGS.granted_ms)
    assert isinstance(claim, Acquired)
    return claim


def test_they_are_renewed_for_as_long_as_they_are_held() -> None:
    """Also when Redis was away for once; a lease that nobody holds any more runs out."""

    async def scene() -> None:
        bus = SettlingBus()
        ledger = SettlingLedger(bus)
        loop = asyncio.get_running_loop()
        # The ledger's time is that of the loop.
        start = ledger.clock.now - loop.time()
        leases = Leases(ledger, _SETTINGS)

        async def pass_time(seconds: float) -> None:
            for _ in range(round(seconds / 0.05)):
                await anyio.sleep(0.05)
                ledger.clock.now = start + loop.time()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(leases.run)
            claims = [await claimed(ledger, key) for key in ("a", "b")]
            async with leases.held(claims[0]):
                async with leases.held(claims[1]):
                    ledger.failures["renew"] = 1
                    await pass_time(10)
                    for key in ("a", "b"):
                        assert await ledger.claim(key, "f", 1_000) == Busy()
                await pass_time(2)
                assert await ledger.claim("a", "f", 1_000) == Busy()
                assert isinstance(await ledger.claim("b", "f", 1_000), Acquired)
            tasks.cancel_scope.cancel()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scene())


async def test_a_service_that_stops_gives_it_back() -> None:
    """At once, and the attempt does not count; nothing is given back of what ended otherwise."""
    ledger = MemoryLedger(MemoryBus())
    leases = Leases(ledger, _SETTINGS)
    claim = await claimed(ledger)
    with anyio.CancelScope() as scope:
        async with leases.held(claim):
            scope.cancel()
            await anyio.lowlevel.checkpoint()
    again = await claimed(ledger)
    assert again.attempts == 1
    async with leases.held(again):
        pass
    assert await ledger.claim("k", "f", 1_000) == Busy()
