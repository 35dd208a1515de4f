"""Constraints on a store, as tests want them."""

from nexus.core.metrics import Metrics
from nexus.core.ports import Store
from nexus.services.context.person_blocks import constraints_text
from nexus.services.person.constraints import Constraints
from tests.nexus.support.fake_counter import FakeCounter
from tests.nexus.support.tombstones import NO_TOMBSTONES


def constraints_on(store: Store, most_tokens: int = 10_000, metrics: Metrics | None = None) -> Constraints:
    """Constraints on that store, measured by the text that contexts show."""
    return Constraints(store.constraints, NO_TOMBSTONES, constraints_text, FakeCounter(), most_tokens, metrics)
