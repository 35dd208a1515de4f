"""Moved."""

from nexus.services.context.gather import INCOMPLETE as INCOMPLETE
