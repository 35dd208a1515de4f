"""Moved."""

from nexus.services.context.build import Build as Build
from nexus.services.context.build import BuilderSettings as BuilderSettings
