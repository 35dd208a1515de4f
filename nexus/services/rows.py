"""Moved."""

from nexus.services.history.rows import PHASE as PHASE
from nexus.services.history.rows import THINKING as THINKING
from nexus.services.history.rows import USAGE as USAGE
from nexus.services.history.rows import clamp_timestamp as said_at
from nexus.services.history.rows import human_row as human_row
from nexus.services.history.rows import llm_row as llm_row
from nexus.services.history.rows import of_run as of_run
from nexus.services.history.rows import storable as storable
from nexus.services.history.rows import tool_row as tool_row

__all__ = [
    "PHASE",
    "THINKING",
    "USAGE",
    "human_row",
    "llm_row",
    "of_run",
    "said_at",
    "storable",
    "tool_row",
]
