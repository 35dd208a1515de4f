"""Moved."""

from nexus.services.history.transcript import Window as Window
from nexus.services.history.transcript import count_others as count_others
