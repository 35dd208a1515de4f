"""Moved."""

from nexus.services.history.run_origins import RunOrigins as RunOrigins
