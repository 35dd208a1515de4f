"""Moved."""

from nexus.services.tools.catalogue import (
    ToolCatalog as ToolCatalog,
)
