"""Moved."""

from nexus.services.history.agents import invalid_request as invalid
from nexus.services.history.agents import owner_mismatch as mismatch
from nexus.services.history.agents import unknown_value as unknown

__all__ = [
    "invalid",
    "mismatch",
    "unknown",
]
