"""Moved."""

from nexus.services.text.model_prompt import LEAST_ROOM as LEAST_ROOM
from nexus.services.text.model_prompt import in_language as in_language
from nexus.services.text.model_prompt import retry_note as anew

__all__ = ["LEAST_ROOM", "anew", "in_language"]
