"""What the services need from the outside, each with its guarantees.

Adapters keep the guarantees; the tests under `tests/nexus/contract` check them on every adapter.
"""

from nexus.core.models import Row
from nexus.core.ports.bus import (
    Acquired,
    Announced,
    Answered,
    Bus,
    Busy,
    Claim,
    Conflict,
    DeadLetter,
    DeadLetters,
    Delivery,
    Outbox,
    OutboxRow,
    RequestLedger,
    Subscription,
    Work,
)
from nexus.core.ports.memory import MemorySource, MemoryStore, TurnSource, TurnStore
from nexus.core.ports.model import LanguageModel, TokenCounter
from nexus.core.ports.store import (
    Cutoff,
    DocumentStore,
    MessageStore,
    Past,
    RunOrigin,
    SessionStateStore,
    Store,
)

__all__ = [
    "Acquired",
    "Announced",
    "Answered",
    "Bus",
    "Busy",
    "Claim",
    "Conflict",
    "Cutoff",
    "DeadLetter",
    "DeadLetters",
    "Delivery",
    "DocumentStore",
    "LanguageModel",
    "MemorySource",
    "MemoryStore",
    "MessageStore",
    "Outbox",
    "OutboxRow",
    "Past",
    "RequestLedger",
    "Row",
    "RunOrigin",
    "SessionStateStore",
    "Store",
    "Subscription",
    "TokenCounter",
    "TurnSource",
    "TurnStore",
    "Work",
]
