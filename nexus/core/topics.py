"""Moved."""

from nexus.core.models import Topics as Topics
