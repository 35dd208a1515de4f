"""Moved."""

from nexus.services.context.budget import RUN as RUN
from nexus.services.context.run_prefix import RunPrefix as RunPrefix
