"""Moved."""

from nexus.services.requests.dead_letters import DeadLetterWriter as Burying

__all__ = ["Burying"]
