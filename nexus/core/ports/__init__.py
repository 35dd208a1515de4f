"""What the services need from the outside, each with its guarantees.

Adapters keep the guarantees; the tests under `tests/nexus/contract` check them on every adapter.
"""

from nexus.core.ports.bus import Bus, Delivery, Subscription, Work
from nexus.core.ports.conversation import Conversation, Cutoff, Past
from nexus.core.ports.ledger import Acquired, Announced, Answered, Busy, Claim, Conflict, RequestLedger
from nexus.core.ports.letters import DeadLetter, DeadLetters
from nexus.core.ports.memory import MemorySource, MemoryStore
from nexus.core.ports.model import LanguageModel
from nexus.core.ports.rows import Row
from nexus.core.ports.stores import DocumentStore, MessageStore, RunOrigin, SessionStateStore, Store
from nexus.core.ports.tokens import TokenCounter
from nexus.core.ports.turns import TurnSource, TurnStore

__all__ = [
    "Acquired",
    "Announced",
    "Answered",
    "Bus",
    "Busy",
    "Claim",
    "Conflict",
    "Conversation",
    "Cutoff",
    "DeadLetter",
    "DeadLetters",
    "Delivery",
    "DocumentStore",
    "LanguageModel",
    "MemorySource",
    "MemoryStore",
    "MessageStore",
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
