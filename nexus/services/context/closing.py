"""Moved."""

from nexus.services.context.budget import close as close
