"""Moved."""

from nexus.services.memory.documents import (
    LOOKED_BACK as LOOKED_BACK,
    Caller as Caller,
    document_of as document_of,
    read_all as read_all,
    read_snapshot as read_snapshot,
)
