"""Moved."""

from nexus.services.text.decisions import DECISION as DECISION
from nexus.services.text.decisions import NEXT_STEP as NEXT_STEP
from nexus.services.text.decisions import sentences_with_cue as announced

__all__ = ["DECISION", "NEXT_STEP", "announced"]
