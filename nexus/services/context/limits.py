"""Moved."""

from nexus.services.context.budget import WindowSettings as WindowSettings
