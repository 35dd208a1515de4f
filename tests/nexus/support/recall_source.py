"""A long-term memory that counts words, for those who look for something in it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from nexus.core.errors import StoreUnavailableError
from nexus.core.ports import Row
from nexus.core.recall import Found, Hit, Score
from nexus.services.recall.texts import text_of


def said(number: int, text: Any, role: str = "HUMAN", session: str = "s1", **changes: Any) -> Row:
    """A stored row of ada's, the later the greater its number."""
    return {
        "_id": f"{number:024x}",
        "id": f"m{number}",
        "run_id": f"run_of_{number}",
        "owner_key": "ada",
        "session_id": session,
        "role": role,
        "content": text,
        "timestamp": f"2025-05-{1 + number // 1440:02d}T{number // 60 % 24:02d}:{number % 60:02d}:00Z",
        "metadata": {},
    } | changes


def found(*hits: Sequence[Row], at: Sequence[int] = (), generation: str = "") -> Found:
    """Hits, best first, each given by the rows around it; `at`: which of them it is, by default the middle one."""
    which = [*at, *(len(around) // 2 for around in hits[len(at) :])]
    made = [Hit(around[index], Score({"t": 1.0}), around) for index, around in zip(which, hits, strict=True)]
    return Found(made, considered=40, formula=1, generation=generation)


@dataclass
class WordCounts:
    """Finds rows by how many of the question's words they have in them; of as many, the later ones first.

    Attributes:
        rows: of all owners, in order.
        away: it cannot be read.
        fault: an unexpected error.
        asked: the questions.
        without: the `_id`s that each of them left out.
    """

    rows: Sequence[Row] = ()
    away: bool = False
    fault: Exception | None = None
    asked: list[str] = field(default_factory=list)
    without: list[Collection[str]] = field(default_factory=list)

    async def search(
        self,
        owner_key: str,
        question: str,
        *,
        session_id: str | None = None,
        limit: int,
        without: Collection[str] = (),
        beside: int = 1,
        distinct: bool = False,  # noqa: ARG002  # as the port has it
    ) -> Found:
        """The best `limit` rows."""
        self.asked.append(question)
        self.without.append(without)
        if self.away:
            raise StoreUnavailableError("the index is away")
        if self.fault:
            raise self.fault
        owned = [row for row in self.rows if row["owner_key"] == owner_key and text_of(row)]
        rows = [row for row in owned if session_id in {None, row["session_id"]}]
        scored = {at: _score(row, question) for at, row in enumerate(rows) if row["_id"] not in without}
        best = sorted((at for at in scored if scored[at]), key=lambda at: (-len(scored[at]), -at))[:limit]
        hits = [Hit(rows[at], Score(scored[at]), self._around(rows, at, beside)) for at in best]
        return Found(hits, len(scored), formula=1)

    @staticmethod
    def _around(rows: Sequence[Row], at: int, beside: int) -> list[Row]:
        around = rows[max(at - beside, 0) : at + beside + 1]
        return [row for row in around if row["session_id"] == rows[at]["session_id"]]


def _score(row: Row, question: str) -> dict[str, float]:
    return {word: 1.0 for word in question.lower().split() if word in text_of(row).lower()}
