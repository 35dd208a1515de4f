"""Moved."""

from nexus.services.memory.service import Outcome as Outcome
from nexus.services.memory.service import WorkingMemory as WorkingMemory

__all__ = ["Outcome", "WorkingMemory"]
