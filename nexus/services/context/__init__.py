"""The context: what a model is given to read. `builder`, `gather` and `session` read; all else is pure."""

from nexus.services.context.builder import BuilderSettings, ContextBuilder
from nexus.services.context.dialogue import FriendsInfoFormatter, MemoryFormatter, MomentFormatter
from nexus.services.context.prompts import PromptManager

__all__ = [
    "BuilderSettings",
    "ContextBuilder",
    "FriendsInfoFormatter",
    "MemoryFormatter",
    "MomentFormatter",
    "PromptManager",
]
