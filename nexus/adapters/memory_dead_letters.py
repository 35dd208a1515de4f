"""Moved."""

from nexus.adapters.in_memory.bus import MemoryDeadLetters as MemoryDeadLetters
