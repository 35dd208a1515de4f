"""Bringing compactions about (CONTRACT §7).

Rules of this module:

- A compaction comes about by being stored under its number, and each number is stored once. Whoever finds it taken
  begins again with what is left then. So no row is under two compactions, whatever the number of replicas.
- Archives are stored before their compaction. What an attempt leaves of one that did not come about is harmless, and
  another attempt that has the same words uses it.
- A tail that is too long to be held is compacted in several steps, each of which holds by itself: from the oldest part
  goes everything that is over, whatever was asked for.
- What takes long is done in a thread.
"""

from functools import partial
from itertools import count
from typing import Final

from anyio import to_thread

from nexus.core.errors import StoreUnavailableError
from nexus.core.models import utc_now
from nexus.core.ports import MemoryStore, MessageStore, Row, TokenCounter
from nexus.core.tasks import Pauses
from nexus.core.working_memory import REFINE, WHOLE, Compaction, Wish
from nexus.services.memory.drafting import CompactionSettings, Draft, draft
from nexus.services.memory.kept import document_of, read_all
from nexus.services.memory.planning import cut_runs
from nexus.services.memory.reading import MOST_ROWS, read_tail, runs_over
from nexus.services.turns.documents import to_milliseconds

__all__ = ["CompactionSettings", "Compactor"]

# How often the number may be taken: somebody else compacts with each time, so there is soon nothing left to do.
_MOST_ATTEMPTS: Final = 20
_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.1
# How many compactions are read at once, to find the one that a message has asked for.
_PAGE: Final = 50
# Of how many runs all rows are read, to see whether they are over: others are once they have been silent for long.
_MOST_CUT: Final = 100
_NOTHING_DUE: Final = {"work": None, "due_at": None}


class Compactor:
    """Compacts sessions.

    Args:
        store: where compactions are kept.
        messages: where the rows are.
        counter: counts tokens.

    Attributes:
        settings: may be replaced at any time.
    """

    def __init__(
        self,
        store: MemoryStore,
        messages: MessageStore,
        counter: TokenCounter,
        settings: CompactionSettings | None = None,
    ) -> None:
        self._store = store
        self._messages = messages
        self._counter = counter
        self.settings = settings or CompactionSettings()

    async def compact(self, wish: Wish) -> Compaction | None:
        """Bring the compaction about, and return the last that was made for it, or by others meanwhile.

        What one message asks for is done once: asked again, it gets the compaction that it got before. None where there
        is nothing to compact.

        Raises:
            StoreUnavailableError: the store did not answer. It may have been brought about or not.
        """
        made: Compaction | None = None
        attempts, most_rows, pauses = 0, MOST_ROWS, Pauses(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            latest = await self._latest(wish)
            if latest and (earlier := await self._made_before(wish, latest)):
                return earlier
            found = await read_tail(
                self._messages, wish.owner_key, wish.session_id, latest.tail if latest else WHOLE, most_rows=most_rows
            )
            now = to_milliseconds(utc_now())
            cut = cut_runs(found.rows, now=now, idle=self.settings.idle)[:_MOST_CUT]
            over = await runs_over(self._messages, wish.owner_key, cut)
            # Whoever asks may stop waiting, and the thread changes nothing.
            drafted = await to_thread.run_sync(
                partial(draft, wish, found, latest, now, counter=self._counter, settings=self.settings, over=over),
                abandon_on_cancel=True,
            )
            if drafted is None and found.goes_on:
                # So many rows of runs in progress come first.
                most_rows *= 2
            elif drafted is None:
                return made or (latest if attempts else None)
            elif compaction := await self._keep(drafted, wish):
                made, attempts, most_rows = compaction, 0, MOST_ROWS
                if not found.goes_on:
                    return made
            elif (attempts := attempts + 1) == _MOST_ATTEMPTS:
                raise StoreUnavailableError("others compact the session all the time")
            else:
                await pauses.wait()

    async def _latest(self, wish: Wish) -> Compaction | None:
        """The newest compaction.

        Raises:
            StoreUnavailableError: the store did not answer, or with one that cannot be read. What follows it cannot be
                known then, and begins with no compaction.
        """
        session = (wish.owner_key, wish.session_id)
        document = await self._store.latest_compaction(*session)
        found = read_all(Compaction, session, [document])
        if document is not None and not found:
            raise StoreUnavailableError("the newest compaction of the session cannot be read")
        return next(iter(found), None)

    async def _made_before(self, wish: Wish, latest: Compaction) -> Compaction | None:
        """What the same message has brought about."""
        session = (wish.owner_key, wish.session_id)
        before = latest.number + 1
        while wish.call_id and before > 1:
            documents = await self._store.compactions(*session, limit=_PAGE, before=before)
            same = (found for found in read_all(Compaction, session, documents) if found.call_id == wish.call_id)
            if found := next(same, None):
                return found
            before = min((document["number"] for document in documents), default=1)
        return None

    async def _keep(self, drafted: Draft, wish: Wish) -> Compaction | None:
        """Store the compaction, after its archive; None where its number is taken."""
        session, compaction = (wish.owner_key, wish.session_id), drafted.compaction
        if compaction.strategy == "archive":
            compaction = compaction.model_copy(update={"details": await self._keep_archive(drafted, session)})
        document = {"owner_key": wish.owner_key, "session_id": wish.session_id, **compaction.model_dump()}
        work = {"work": REFINE, "due_at": compaction.created_at} if self.settings.refine else _NOTHING_DUE
        return compaction if await self._store.insert_compaction({**document, **work}) else None

    async def _keep_archive(self, drafted: Draft, session: tuple[str, str]) -> tuple[str, ...]:
        """Store the rows word for word. Returns the names of the details."""
        for again in count(1):
            details = await to_thread.run_sync(
                partial(drafted.archive, self.settings.detail_max_bytes, again), abandon_on_cancel=True
            )
            if await self._keep_details([document_of(detail, session) for detail in details], session):
                return tuple(detail.name for detail in details)
        raise AssertionError

    async def _keep_details(self, left: list[Row], session: tuple[str, str]) -> bool:
        """Whether all are stored, by this attempt or by another with the same words."""
        while left:
            left = left[await self._store.insert_details(left) :]
            if left:
                there = await self._store.find_detail(*session, left[0]["name"], version=1)
                if there is None or there.get("content") != left[0]["content"]:
                    return False
                left = left[1:]
        return True
