"""Moved."""

from nexus.services.turns.service import TurnMemory as TurnMemory

__all__ = ["TurnMemory"]
