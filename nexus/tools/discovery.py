"""Moved."""

from nexus.services.tools.registry import (
    discover as discover,
)
