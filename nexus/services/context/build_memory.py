"""Moved."""

from nexus.services.context.build import taken_besides as taken_besides
