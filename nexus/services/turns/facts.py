"""Moved."""

from nexus.services.history.run_facts import Said as Said
from nexus.services.history.run_facts import TurnFacts as TurnFacts
from nexus.services.history.run_facts import entries_of as entries_of
from nexus.services.history.run_facts import read_facts as read_facts

__all__ = ["Said", "TurnFacts", "entries_of", "read_facts"]
