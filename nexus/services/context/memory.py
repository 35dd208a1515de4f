"""The past as it is shown: stored rows read leniently, merged by run, cut to length (CONTRACT §4.3).

Rules of this module:

- One malformed row never spoils the rest: it is repaired or left out, and counted.
- All AI rows of a run become one message; humans stay as they are; rows without a run id are never merged.
- Everything is compared as moments. At equal moments humans come before the AI of their run, then stored order counts.
- An annotation stands where the call was declared, and is never cut.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from nexus.services.context.annotations import ToolCall, read_tool_calls
from nexus.services.context.clock import parse_moment

_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
_OBJECT_ID = re.compile(r"[0-9a-f]{24}")
# However long the annotations are, this much of the answer is shown.
_SMALLEST: Final = 20


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored row that can be shown.

    Attributes:
        index: the row's place in the list that was read.
        rank: its place in stored order, oldest first.
        moment: None when the row has no readable time.
        repaired: something in the row was not as it is stored today.
    """

    index: int
    id: str
    run_id: str
    role: Literal["human", "ai"]
    text: str
    moment: datetime | None
    tool_calls: tuple[ToolCall, ...]
    rank: int
    repaired: bool


@dataclass(frozen=True, slots=True)
class Utterance:
    """What one side said: a human row, or the AI rows of a run together, in the order of time.

    Attributes:
        merged: several rows may stand behind it (it is the AI's side of a run).
        order: the sort key; ascending is oldest first.
    """

    id: str
    run_id: str
    role: Literal["human", "ai"]
    entries: tuple[Entry, ...]
    moment: datetime | None
    merged: bool
    order: tuple[datetime, int, int, int]


def read_rows(rows: Sequence[Any], *, current_run_id: str = "") -> tuple[list[Entry], int]:
    """The rows that can be shown, and how many had to be repaired or left out.

    Rows of other roles (tools, system, commands) and of the current run are left out without being counted.
    """
    ranks = _stored_order(rows)
    entries, faults = [], 0
    for index, row in enumerate(rows):
        entry = _read_row(row, index, ranks[index]) if isinstance(row, Mapping) else None
        if entry is None:
            faults += not _is_of_other_role(row)
        elif not (current_run_id and entry.run_id == current_run_id):
            entries.append(entry)
            faults += entry.repaired
    return entries, faults


def merge(entries: Iterable[Entry]) -> list[Utterance]:
    """The entries as utterances, newest first."""
    runs: dict[str, list[Entry]] = {}
    single: list[Entry] = []
    for entry in entries:
        if entry.run_id:
            runs.setdefault(entry.run_id, []).append(entry)
        else:
            single.append(entry)
    utterances = [_alone(entry, entry.moment, entry.rank) for entry in single]
    for members in runs.values():
        utterances += _utterances_of_run(members)
    return sorted(utterances, key=lambda utterance: utterance.order, reverse=True)


def _utterances_of_run(members: list[Entry]) -> list[Utterance]:
    rank = min(entry.rank for entry in members)
    known = [entry.moment for entry in members if entry.moment is not None]
    first, last = (min(known), max(known)) if known else (None, None)
    humans = [_alone(entry, entry.moment or first, rank) for entry in members if entry.role == "human"]
    spoken = sorted(
        (entry for entry in members if entry.role == "ai"), key=lambda e: (e.moment or first or _LONG_AGO, e.rank)
    )
    if not spoken:
        return humans
    moment = max((entry.moment for entry in spoken if entry.moment is not None), default=None)
    run_id = members[0].run_id
    order = (moment or last or _LONG_AGO, rank, 1, spoken[-1].rank)
    return [*humans, Utterance(f"merged_ai_{run_id}", run_id, "ai", tuple(spoken), moment, True, order)]


def _alone(entry: Entry, sorted_at: datetime | None, rank: int) -> Utterance:
    order = (sorted_at or _LONG_AGO, rank, int(entry.role == "ai"), entry.rank)
    return Utterance(entry.id, entry.run_id, entry.role, (entry,), entry.moment, False, order)


def _stored_order(rows: Sequence[Any]) -> list[int]:
    """For each row its rank in stored order, oldest lowest.

    By `_id` where every row has an ObjectId, which grows with time. Otherwise by place: stores answer newest first, so
    the last row is the oldest, unless the times at both ends say that the list runs the other way.
    """
    ids = [row.get("_id") if isinstance(row, Mapping) else None for row in rows]
    if rows and all(isinstance(item, str) and _OBJECT_ID.fullmatch(item) for item in ids):
        ranks = [0] * len(rows)
        for rank, index in enumerate(sorted(range(len(rows)), key=lambda i: (str(ids[i]), -i))):
            ranks[index] = rank
        return ranks
    moments = [moment for row in rows if isinstance(row, Mapping) and (moment := parse_moment(row.get("timestamp")))]
    oldest_first = bool(moments) and moments[0] < moments[-1]
    return list(range(len(rows))) if oldest_first else list(range(len(rows) - 1, -1, -1))


def _is_of_other_role(row: Any) -> bool:
    role = row.get("role") if isinstance(row, Mapping) else None
    return isinstance(role, str) and role.lower() in {"tool", "system", "command"}


def _read_row(row: Mapping[str, Any], index: int, rank: int) -> Entry | None:
    role = row.get("role")
    lowered = role.lower() if isinstance(role, str) else ""
    if lowered not in {"human", "ai"}:
        return None
    metadata = row.get("metadata", {})
    calls = read_tool_calls(metadata.get("tool_calls")) if isinstance(metadata, Mapping) else ()
    text, text_repaired = _read_text(row.get("content"))
    if text is None:
        if lowered == "human":
            return None
        text, text_repaired = "", not calls
    moment = parse_moment(row.get("timestamp"))
    row_id, run_id = row.get("id"), row.get("run_id")
    return Entry(
        index=index,
        id=row_id if isinstance(row_id, str) else "",
        run_id=run_id if isinstance(run_id, str) else "",
        role="human" if lowered == "human" else "ai",
        text=text,
        moment=moment,
        tool_calls=calls if lowered == "ai" else (),
        rank=rank,
        repaired=text_repaired or moment is None or not isinstance(metadata, Mapping),
    )


def _read_text(content: Any) -> tuple[str | None, bool]:
    """The text of a content, and whether it had to be made from something else than a text."""
    if isinstance(content, str):
        return content, False
    if content is None:
        return None, True
    return text_of_parts(content) or json.dumps(content, ensure_ascii=False, default=str), True


def text_of_parts(content: Any) -> str | None:
    """The joined texts of content parts (`{"type": "text", "text": …}` or plain texts); None for anything else."""
    if not isinstance(content, list | tuple) or not content:
        return None
    found = (part.get("text") if isinstance(part, Mapping) else part for part in content)
    texts = [text for text in found if isinstance(text, str)]
    return "\n".join(texts) if len(texts) == len(content) else None


def cut(texts: Sequence[str], reserved: int, limit: int) -> tuple[list[str], bool]:
    """The texts of one message cut so that they and `reserved` characters (annotations) fit into `limit`.

    A message of one text and nothing reserved keeps its beginning and ends in `...`. Otherwise the last text is the
    answer: the texts before it give way first, and if it is too long by itself its end is kept, after `...`.

    Looks at no more than `limit` characters from either end of a text, so that a store may leave out the middle of one
    that is longer than twice the limit.

    Returns:
        The texts, as many as were given, and whether any was cut.
    """
    breaks = max(len(texts) - 1, 0)
    if sum(map(len, texts)) + breaks + reserved <= limit:
        return list(texts), False
    if len(texts) == 1 and not reserved:
        return [_head(texts[0], limit)], True
    room = max(limit - reserved - breaks, 0)
    *preamble, answer = texts
    # Every text that gives way still says so.
    kept = _tail(answer, max(room - 3 * len(preamble), _SMALLEST))
    return [*_share(preamble, room - len(kept)), kept], True


def _head(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: max(limit - 3, 0)]}..."


def _tail(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"...{text[len(text) - max(limit - 3, 0) :]}"


def _share(texts: Sequence[str], room: int) -> list[str]:
    """Each text cut to an equal share of `room`; what short texts leave over goes to the longer ones."""
    shares = [0] * len(texts)
    left = max(room, 0)
    for position, index in enumerate(sorted(range(len(texts)), key=lambda i: min(len(texts[i]), room))):
        shares[index] = min(len(texts[index]), left // (len(texts) - position))
        left -= shares[index]
    return [_head(text, max(share, 3)) for text, share in zip(texts, shares, strict=True)]
