"""Moved."""

from nexus.services.due_work import after_delay as delayed
from nexus.services.due_work import after_unusable_reply as refused

__all__ = ["delayed", "refused"]
