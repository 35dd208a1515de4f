"""Checks that every message of a session is in the next context or under exactly one compaction (contract §7).

It counts the rows that compactions name, one by one, and not the boundary that they leave. Rows internal to a sub-agent
are not counted: that sub-agent is shown them, and they are never compacted.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final

from nexus.core.models import is_internal
from nexus.core.ports import MemoryStore, MessageStore
from nexus.core.working_memory import WHOLE, Compaction, Tail
from nexus.services.memory.documents import read_all

_ROWS_AT_ONCE: Final = 1_000
_COMPACTIONS_AT_ONCE: Final = 20


@dataclass(frozen=True, slots=True)
class Audit:
    """Numbers of messages of a session; the others add up to `messages`.

    Attributes:
        in_context: in the next context.
        summarised: under one compaction.
        lost: neither.
        twice: under several, or under one and in the context.
    """

    messages: int = 0
    in_context: int = 0
    summarised: int = 0
    lost: int = 0
    twice: int = 0

    @property
    def is_right(self) -> bool:
        """Whether none is lost and none is there twice."""
        return not (self.lost or self.twice)


async def audit(store: MemoryStore, messages: MessageStore, owner_key: str, session_id: str) -> Audit:
    """Count the messages of a session.

    Raises:
        StoreUnavailableError: the store did not answer.
    """
    under, tail = await _compacted(store, owner_key, session_id)
    counts: Counter[str] = Counter()
    seen: set[str] = set()
    while True:
        page = await messages.tail_messages(
            owner_key, session_id, WHOLE, limit=_ROWS_AT_ONCE, skip=len(seen), oldest_first=True
        )
        for row in page:
            if row["_id"] not in seen and not is_internal(row.get("metadata")):
                counts[_where(under[row["_id"]], in_context=tail.includes(row["_id"]))] += 1
            seen.add(row["_id"])
        if len(page) < _ROWS_AT_ONCE:
            return Audit(messages=counts.total(), **counts)


async def _compacted(store: MemoryStore, owner_key: str, session_id: str) -> tuple[Counter[str], Tail]:
    session = (owner_key, session_id)
    under: Counter[str] = Counter()
    tail, before = WHOLE, None
    while True:
        documents = await store.compactions(*session, limit=_COMPACTIONS_AT_ONCE, before=before, whole=True)
        for compaction in read_all(Compaction, session, documents):
            under.update(compaction.rows)
            tail = compaction.tail if before is None and tail is WHOLE else tail
        if len(documents) < _COMPACTIONS_AT_ONCE:
            return under, tail
        before = min(document["number"] for document in documents)


def _where(compactions: int, *, in_context: bool) -> str:
    if compactions + in_context > 1:
        return "twice"
    return "summarised" if compactions else "in_context" if in_context else "lost"
