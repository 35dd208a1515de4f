"""Moved."""

from nexus.core.wire import compact as compact
