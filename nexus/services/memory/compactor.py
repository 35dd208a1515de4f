"""Bringing compactions about (CONTRACT §7).

Rules of this module:

- A compaction comes about by being stored under its number, and each number is stored once. Whoever finds it taken
  begins again with what is left then. So no row is under two compactions, whatever the number of replicas.
- Archives are stored before their compaction. What an attempt leaves of one that did not come about is harmless, and
  another attempt that has the same words uses it.
- A tail that is too long to be held is compacted in several steps, each of which holds by itself and covers nothing
  that is to be kept. All are marked with the message that asked for them, and all but the last as steps: when whoever
  was at it dies, whoever hears the message again does the rest.
- What takes long is done in a thread.
"""

from functools import partial
from itertools import count
from typing import Final

from anyio import to_thread

from nexus.core.errors import CallRefusedError, StoreUnavailableError
from nexus.core.models import utc_now
from nexus.core.ports import MemoryStore, MessageStore, Row, TokenCounter
from nexus.core.tasks import Pauses
from nexus.core.working_memory import REFINE, WHOLE, Compaction, Detail, Wish
from nexus.services.memory.disowning import disowned
from nexus.services.memory.documents import LOOKED_BACK, document_of, read_all
from nexus.services.memory.drafting import CompactionSettings, Draft, draft
from nexus.services.memory.reading import MOST_ROWS, Found, look_at_runs, read_tail
from nexus.services.turns.documents import to_milliseconds

__all__ = ["CompactionSettings", "Compactor"]

# How often the number may be taken: somebody else compacts with each time, so there is soon nothing left to do.
_MOST_ATTEMPTS: Final = 20
_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.1
_NO_GAIN: Final = (
    "Nothing would be gained: what is to be compacted takes {} tokens, and the summary would grow by {}. Nothing was "
    "changed"
)
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
            CallRefusedError: a model asks for a summary that would be no shorter than what it stands for.
            StoreUnavailableError: the store did not answer. It may have been brought about or not.
        """
        made: Compaction | None = None
        attempts, most_rows, pauses = 0, MOST_ROWS, Pauses(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            latest = await self._latest(wish)
            made = made or await self._made_before(wish, latest)
            if made and not made.is_step:
                return made
            found, drafted = await self._draft(wish, latest, most_rows)
            if drafted is None and found.goes_on:
                # So many rows that stay come first.
                most_rows *= 2
            elif drafted is None or (made and not _is_worth_it(wish, drafted)):
                return await self._finished(wish, made) if made else (latest if attempts else None)
            elif not _is_worth_it(wish, drafted):
                told = drafted.compaction
                raise CallRefusedError(_NO_GAIN.format(told.tokens_before, told.tokens_after - told.tokens_carried))
            elif compaction := await self._keep(drafted, wish, latest):
                made, attempts = compaction, 0
                # Where some of the oldest rows are not meant, they come first again.
                most_rows = MOST_ROWS if wish.target == "all" else 2 * most_rows
            elif (attempts := attempts + 1) == _MOST_ATTEMPTS:
                raise StoreUnavailableError("others compact the session all the time")
            else:
                await pauses.wait()

    async def _draft(self, wish: Wish, latest: Compaction | None, most_rows: int) -> tuple[Found, Draft | None]:
        """What could be compacted next."""
        tail = latest.tail if latest else WHOLE
        found = await read_tail(self._messages, wish.owner_key, wish.session_id, tail, most_rows=most_rows)
        now, settings = to_milliseconds(utc_now()), self.settings
        known = await look_at_runs(self._messages, wish.owner_key, found, now=now, idle=settings.idle)
        make = partial(draft, wish, found, latest, now, counter=self._counter, settings=settings, known=known)
        # Whoever asks may stop waiting, and the thread changes nothing.
        return found, await to_thread.run_sync(make, abandon_on_cancel=True)

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

    async def _made_before(self, wish: Wish, latest: Compaction | None) -> Compaction | None:
        """The last that the same message has brought about."""
        if latest is None or not wish.call_id or latest.call_id == wish.call_id:
            return latest if wish.call_id else None
        session = (wish.owner_key, wish.session_id)
        documents = await self._store.compactions(*session, limit=LOOKED_BACK, before=latest.number)
        same = (found for found in read_all(Compaction, session, documents) if found.call_id == wish.call_id)
        return next(same, None)

    async def _finished(self, wish: Wish, made: Compaction) -> Compaction:
        """The last step, when nothing is left that was asked for."""
        session = (wish.owner_key, wish.session_id)
        await self._store.update_compaction(*session, made.number, {"is_step": False}, seen={"is_step": True})
        return made.model_copy(update={"is_step": False})

    async def _keep(self, drafted: Draft, wish: Wish, latest: Compaction | None) -> Compaction | None:
        """Store the compaction, after its archive; None where its number is taken."""
        session, compaction = (wish.owner_key, wish.session_id), drafted.compaction
        if compaction.strategy == "archive":
            compaction = compaction.model_copy(update={"details": await self._keep_archive(drafted, session)})
        listed = read_all(Detail, session, await self._store.list_details(*session))
        compaction = compaction.model_copy(update={"disowned": disowned(listed, compaction, latest)})
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


def _is_worth_it(wish: Wish, drafted: Draft) -> bool:
    """Whether it is made: what a model wants to be shorter has to become so. An archive may be wanted for itself."""
    return wish.trigger != "tool" or wish.strategy == "archive" or drafted.compaction.is_step or drafted.gains
