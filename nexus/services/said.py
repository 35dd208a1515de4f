"""Moved."""

from nexus.services.history.rows import time_of as said_at
