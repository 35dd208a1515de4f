"""Moved."""

from nexus.services.text.digest import digest as digest
from nexus.services.text.digest import excerpt as excerpt
from nexus.services.text.digest import figures as figures
from nexus.services.text.digest import has_figure as has_figure

__all__ = ["digest", "excerpt", "figures", "has_figure"]
