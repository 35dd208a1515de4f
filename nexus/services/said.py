"""Moved."""

from nexus.services.history.rows import time_of as said_at

__all__ = [
    "said_at",
]
