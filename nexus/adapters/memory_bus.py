"""Moved."""

from nexus.adapters.in_memory.bus import MemoryBus as MemoryBus
from nexus.adapters.in_memory.bus import MemorySubscription as MemorySubscription
from nexus.adapters.in_memory.ledger import MemoryLedger as MemoryLedger
