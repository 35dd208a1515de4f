"""Moved."""

from nexus.services.memory.audit import Audit as Account
from nexus.services.memory.audit import audit as account

__all__ = ["Account", "account"]
