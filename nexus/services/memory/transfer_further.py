"""Whether something that is there is what an export holds, as it was or further on (CONTRACT §7). Pure.

No import takes back how far something has come. What is in the making when a session is exported goes on in the
session: a turn is closed, and a model writes summaries in place of those by rules.
"""

from nexus.core.turns import Turn
from nexus.core.working_memory import Compaction, Detail, Overview


def turn_is_further(turn: Turn, given: Turn) -> bool:
    """Whether this is the turn that was given, which had summaries by rules: as long as it is open, it has no other.

    In an export all turns are over.
    """
    return given.summaries.source == "fallback" and (turn.id, turn.run_id) == (given.id, given.run_id)


def compaction_is_further(compaction: Compaction, given: Compaction) -> bool:
    """Whether this is the compaction that was given, with a summary by a model in place of that by rules."""
    written = {name: getattr(compaction, name) for name in ("summary", "source", "tokens_after")}
    return given.source == "fallback" and given.model_copy(update=written) == compaction


def is_same(there: Overview | Detail, wanted: Overview | Detail | None) -> bool:
    """Whether it is that one; what was edited has come at another time with each import."""
    if wanted is None:
        return False
    return there == wanted or (
        there.model_copy(update={"updated_at": wanted.updated_at}) == wanted
        and getattr(wanted, "author", "import") == "import"
    )
