"""Moved."""

from nexus.core.signing import canonical as canonical
from nexus.core.signing import parsed as parsed
