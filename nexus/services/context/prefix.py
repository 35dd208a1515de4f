"""Moved."""

from nexus.services.context.run_prefix import RUN as RUN
from nexus.services.context.run_prefix import RunPrefix as RunPrefix
