"""Moved."""

from nexus.services.context.budget import shortened as shortened
