"""The past as messages: rows merged by run, and their order (contract §2, §4.3). Pure.

- All AI rows of a run become one message; humans stay as they are; rows without a run id are never merged.
- Everything is compared as moments. At equal moments humans come before the AI of their run, then stored order counts.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from nexus.core.models import LONG_AGO, is_internal
from nexus.services.history.messages import HistoryMessage, assumed_moments, read_messages


class Utterance(NamedTuple):
    """What one side said: a human row, or the AI rows of a run together. Ascending is oldest first.

    Attributes:
        at: the moment that decides on its place.
        first: the rank, in stored order, of the first row of its run.
        is_answer: at the same moment humans come first.
        rank: the rank of its last row; no other utterance has the same.
        entries: in the order of time.
    """

    at: datetime
    first: int
    is_answer: bool
    rank: int
    entries: tuple[HistoryMessage, ...]

    @property
    def id(self) -> str:
        """That of the row, or `merged_ai_<run_id>`."""
        return f"merged_ai_{self.run_id}" if self.is_merged else self.entries[0].source

    @property
    def run_id(self) -> str:
        """That of its rows; `""` for none."""
        return self.entries[0].run_id

    @property
    def moment(self) -> datetime | None:
        """The latest of its rows'; None when none has a readable time."""
        return max([entry.moment for entry in self.entries if entry.moment], default=None)

    @property
    def is_merged(self) -> bool:
        """Whether several rows may stand behind it: it is the AI's side of a run."""
        return self.is_answer and self.run_id != ""


class Newest(NamedTuple):
    """The newest utterances.

    Attributes:
        utterances: newest first.
        total: how many there are in all.
        repaired: rows that had to be repaired or left out.
    """

    utterances: list[Utterance]
    total: int
    repaired: int


def read_dialogue(rows: Sequence[Any], *, current_run_id: str = "") -> tuple[list[HistoryMessage], int]:
    """What humans and the model said, in stored order, and how many rows had to be repaired or left out.

    Rows of other roles (tools, system, commands), those internal to a sub-agent and those of the current run are not
    shown, and not counted.
    """
    read = [
        item
        for item in read_messages(rows)
        if item.role != "tool"
        and not is_internal(item.metadata)
        and not (current_run_id and item.run_id == current_run_id)
    ]
    said = [item for item in read if item.role == "assistant" or (item.role and item.row.get("content") is not None)]
    return said, sum(item.is_faulty for item in read)


def merge(messages: Sequence[HistoryMessage]) -> list[Utterance]:
    """The messages, which come in stored order, as utterances, newest first."""
    utterances: list[Utterance] = []
    runs: dict[str, list[HistoryMessage]] = {}
    for item in messages:
        if item.run_id:
            runs.setdefault(item.run_id, []).append(item)
        else:
            moment = item.moment or LONG_AGO
            utterances.append(Utterance(moment, item.rank, item.role == "assistant", item.rank, (item,)))
    for members in runs.values():
        utterances += _utterances_of_run(members)
    # No two have the same rank, so that messages are never compared.
    utterances.sort(reverse=True)
    return utterances


def newest(rows: Sequence[Any], count: int, *, current_run_id: str = "") -> Newest:
    """The newest `count` utterances of these rows, those of the current run left out; none for 0 or less."""
    messages, repaired = read_dialogue(rows, current_run_id=current_run_id)
    utterances = merge(messages)
    return Newest(utterances[: max(count, 0)], len(utterances), repaired)


def _utterances_of_run(members: Sequence[HistoryMessage]) -> list[Utterance]:
    """What the two sides said in a run; its messages come in stored order."""
    first = members[0].rank
    utterances: list[Utterance] = []
    answers: list[tuple[datetime, int, HistoryMessage]] = []
    for item, moment in zip(members, assumed_moments([item.moment for item in members]), strict=True):
        if item.role == "user":
            utterances.append(Utterance(moment, first, False, item.rank, (item,)))
        else:
            answers.append((moment, item.rank, item))
    if answers:
        answers.sort()
        at, rank, _ = answers[-1]
        # Clocks differ: an answer that claims to be older than its question still comes after it.
        at = max(at, min([human.at for human in utterances], default=at))
        utterances.append(Utterance(at, first, True, rank, tuple([item for _, _, item in answers])))
    return utterances
