"""Moved."""

from nexus.services.memory.refiner import RefiningSettings as RefiningSettings
from nexus.services.memory.refiner import SummaryRefiner as Refining

__all__ = ["RefiningSettings", "Refining"]
