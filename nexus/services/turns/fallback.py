"""A summary by rules alone, from what a turn holds: the same facts give the same words (CONTRACT §6). Pure."""

from nexus.core.turns import Summaries
from nexus.services.turns.facts import TurnFacts


def summarise_by_rules(facts: TurnFacts) -> Summaries:
    """The three depths. They keep names, numbers, parameters and outcomes."""
    raise NotImplementedError
