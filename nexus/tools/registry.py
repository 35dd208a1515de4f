"""Moved."""

from nexus.services.tools.registry import (
    ToolFunction as ToolFunction,
    ToolRegistry as ToolRegistry,
    check_definition as check_definition,
    check_name as check_name,
)
