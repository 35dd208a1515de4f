"""Moved."""

from nexus.services.memory.search import place_of as place_of
from nexus.services.memory.search import texts_of as texts_of
from nexus.services.memory.search import tool_of as tool_of

__all__ = ["place_of", "texts_of", "tool_of"]
