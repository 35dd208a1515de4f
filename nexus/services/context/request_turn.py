"""Moved."""

from nexus.services.context.request import MAX_GOAL_CHARS as MAX_GOAL_CHARS
