"""Moved."""

from nexus.services.due_work import WorkSignal as Bell
from nexus.services.due_work import WorkClaim as Claimed
from nexus.services.due_work import claim_due as take
from nexus.services.due_work import run_due_work as work_off

__all__ = ["Bell", "Claimed", "take", "work_off"]
