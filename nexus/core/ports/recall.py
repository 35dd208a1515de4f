"""The index of long-term memory, and what gives texts a meaning (contract §14)."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Protocol

from nexus.core.models import Row
from nexus.core.recall import Entry, Found, IndexStatus, Place, Postings


class RecallIndex(Protocol):
    """Keeps what finds messages, beside the messages themselves.

    - A message is stored with its work due (`WORDS`), in one write, so that none is forgotten.
    - Every write may be repeated, and done by many at once, with the same effect.
    - Every read names an owner and finds messages of that owner only.
    - Errors: as for `MessageStore`.
    """

    async def claim(self, work: str, now: datetime, until: datetime, *, limit: int) -> list[Row]:
        """Claim up to `limit` messages on which this work has been due the longest by `now`; it is then due at `until`.

        Callers at the same time get different ones. Rows come as `MessageStore` gives them, and with the text of
        `add_key` as `recall_key`, where there is one.
        """

    async def give_places(self, rows: Sequence[Row]) -> dict[str, Place]:
        """By `_id`, the places of these rows; one that has none gets the next of its session, for ever.

        Rows that are there no more are left out, and get none.
        """

    async def write(self, entries: Sequence[Entry]) -> None:
        """Keep these entries. What is there of a place and a term is replaced, everything else stays."""

    async def finish(self, rows: Sequence[Row], *, next_work: str | None = None, generation: str | None = None) -> None:
        """Nothing is due on these rows any more, but for `next_work`, at once; `generation` is that of their codes.

        What became due on a row after it was claimed stays due, here and for the two that follow.
        """

    async def fail(self, row: Row, reason: str) -> None:
        """Nothing is due on the row any more, for this reason."""

    async def add_key(self, owner_key: str, message_id: str, text: str) -> None:
        """Have the message with this `id` found by the words of this text, too, in place of an earlier one."""

    async def put_off(self, rows: Sequence[Row], until: datetime) -> None:
        """The work that is due on these rows is due at `until`."""

    async def mark(self, owner_key: str, *, limit: int, again: bool = False, skip: int = 0) -> tuple[int, int]:
        """Have messages of the owner indexed that nothing was ever to be done on; with `again`, all of them.

        Looks at up to `limit` rows after the oldest `skip`. Returns how many were marked, and how many it looked at.
        """

    async def mark_outdated(self, generation: str, *, limit: int) -> int:
        """Have up to `limit` indexed messages embedded that have no codes of this generation; how many there were."""

    async def forget(self, entries: Sequence[Entry]) -> None:
        """Remove these terms, flags and codes of these places, and the codes of the generation that their rows have."""

    async def postings(
        self,
        owner_key: str,
        terms: Collection[str],
        flags: Collection[str],
        *,
        session_id: str | None = None,
        generation: str | None = None,
    ) -> Postings:
        """What the index has of these terms and flags, and the codes of a generation; of one session or of all."""

    async def places_of(self, owner_key: str, row_ids: Collection[str]) -> set[Place]:
        """The places of the rows with these `_id`s, of those that have one."""

    async def rows_at(self, owner_key: str, places: Collection[Place]) -> dict[Place, Row]:
        """The rows at these places, as `claim` gives them; places without a row are left out."""

    async def status(self, owner_key: str | None = None) -> IndexStatus:
        """The states of an owner's messages, or of all."""

    async def newest_status(self, owner_key: str, *, newest: int) -> IndexStatus:
        """The states of the owner's newest messages, up to so many; it takes no longer where there are more."""


class Embedder(Protocol):
    """Gives texts vectors whose signs tell how near their meanings are.

    - Texts may be of any length; of a long one the beginning counts.
    - `generation` names the model, its version and all else on which vectors depend; vectors of different ones are
      never compared.
    - Errors: `ModelUnavailableError` where it cannot be asked now; `ValueError` for a text it will never take,
      also among others.
    """

    @property
    def generation(self) -> str:
        """Of letters, digits, `.`, `_` and `-`, at most 64."""

    async def codes_of_texts(self, texts: Sequence[str]) -> list[bytes]:
        """Of each text, one bit a dimension of its vector."""

    async def code_of_question(self, question: str) -> bytes:
        """The same for a question."""


class RecallSource(Protocol):
    """Long-term memory as those use it who look for something."""

    async def search(
        self,
        owner_key: str,
        question: str,
        *,
        session_id: str | None = None,
        limit: int,
        without: Collection[str] = (),
        beside: int = 1,
        distinct: bool = False,
    ) -> Found:
        """The best `limit` messages for a question, of one session or of all of the owner's.

        Rows with an `_id` in `without` are not found. `beside`: how many messages on each side come with a hit.
        `distinct`: of those that say the same, whatever the case and the blanks, the best alone.

        Raises:
            StoreUnavailableError: the index cannot be read now.
        """
