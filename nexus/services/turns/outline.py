"""Moved."""

from nexus.services.text.digest import is_error as is_error
from nexus.services.text.digest import opened as opened
from nexus.services.text.digest import outline as outline

__all__ = ["is_error", "opened", "outline"]
