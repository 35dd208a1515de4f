"""Moved."""

from nexus.services.history.cutoff import UntilShown as UntilShown
from nexus.services.history.cutoff import UntilStored as UntilStored
