"""Moved."""

from nexus.services.tools.memory_calls import (
    is_reserved as is_reserved,
    read_name as read_name,
)
