"""Moved."""

from nexus.services.turns.worker import TurnWorker as TurnWork
from nexus.services.turns.worker import TurnSettings as WorkSettings

__all__ = ["TurnWork", "WorkSettings"]
