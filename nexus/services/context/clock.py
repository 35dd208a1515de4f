"""Moved."""

from nexus.services.history.rows import LONG_AGO as LONG_AGO
from nexus.services.history.rows import at_offset as at_offset
from nexus.services.history.rows import parse_moment as parse_moment
from nexus.services.history.rows import parse_offset as parse_offset
