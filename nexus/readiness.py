"""Whether a service is ready, for those who ask (CONTRACT §10)."""

import math
from dataclasses import dataclass
from typing import Final

from nexus.connections import try_claim
from nexus.core.ports import DocumentStore, RequestLedger, Subscription
from nexus.http.health import CachedCheck, Check

# A bus that has not been heard for so many heartbeats is not there.
_SILENT_BEATS: Final = 3
_LEDGER_TRIED_EVERY_S: Final = 3.0


@dataclass(slots=True)
class Life:
    """What changes in the life of a service.

    Attributes:
        subscription: to the bus; None until there is one.
        draining: it stops.
    """

    subscription: Subscription | None = None
    draining: bool = False


def checks(life: Life, store: DocumentStore, probe: RequestLedger, heartbeat_s: float) -> dict[str, Check]:
    """What must be well for the service to be ready (CONTRACT §10).

    Args:
        life: the service's.
        store: its store.
        probe: a ledger that gives up soon.
        heartbeat_s: how often its subscription hears itself.
    """
    longest_s = heartbeat_s * _SILENT_BEATS

    async def bus() -> str | None:
        subscription = life.subscription
        if subscription is None:
            return "not connected yet"
        if subscription.silent_s == math.inf:
            return "not connected"
        return None if subscription.silent_s <= longest_s else f"silent for more than {longest_s:g} s"

    async def ledger() -> str | None:
        # A bus that is heard may yet take no writes, and then nothing is answered.
        await try_claim(probe)
        return None

    async def database() -> str | None:
        await store.ping()
        return None

    async def running() -> str | None:
        return "the service is stopping" if life.draining else None

    return {
        "bus": bus,
        "ledger": CachedCheck(ledger, keep_s=_LEDGER_TRIED_EVERY_S),
        "database": CachedCheck(database),
        "running": running,
    }
