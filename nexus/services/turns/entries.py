"""Moved."""

from nexus.services.text.model_prompt import BETWEEN as BETWEEN
from nexus.services.text.model_prompt import Entry as Entry
from nexus.services.text.model_prompt import packed as packed
from nexus.services.history.run_facts import entries_of as entries_of

__all__ = ["BETWEEN", "Entry", "entries_of", "packed"]
