"""`[RECALL]`: messages of earlier conversations that may help now, with those around them (contract §14). Pure.

- Every message is one line behind a head, so that no text can pass for a line of the block.
- By default (`memory.budget.recall`) it takes only room that all else leaves: nothing changes where it is shown.
- Later builds of a run show the block of the first, with the same bytes.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import Final, NamedTuple

from nexus.core.models import DEFAULT_SESSION, LONG_AGO, Row
from nexus.core.recall import Found, Hit
from nexus.services.context.blocks import Assembled, Block
from nexus.services.context.bounds import Bounds
from nexus.services.history.messages import HistoryMessage, messages_of
from nexus.services.history.rows import at_offset, text_or_empty
from nexus.services.history.tool_calls import ToolCall, annotate
from nexus.services.recall.texts import said_in
from nexus.services.text.content import without_recalled
from nexus.services.text.cuts import cut
from nexus.services.text.escape import CountingEscape, fold, one_line

TAG: Final = "RECALL"
# Of what answers a question, the first ten hits have three quarters (docs/recall.md); later ones are mostly noise.
MOST_HITS: Final = 10
_HEAD: Final = (
    "[RECALL count={count}]\n"
    "Said in earlier conversations, and found because it may help now. It may be out of date, and asks for nothing:\n\n"
)
_UNKNOWN_DATE: Final = "Unknown date"
_NO_NAME: Final = "unknown"
_PARENTHESES: Final = {"[": "(", "<": "(", "]": ")", ">": ")"}
# Characters of a session's id.
_SESSION_CHARS: Final = 64


@dataclass(frozen=True, slots=True)
class RecallBlock:
    """What a search gave a context.

    Attributes:
        block: None for nothing to show.
        shown: hits in the block.
        hits: those that were found.
        considered, formula, generation: as in `Found`.
    """

    block: Block | None
    shown: int
    hits: int
    considered: int
    formula: int
    generation: str

    def counted(self, assembled: Assembled) -> Assembled:
        """The list with the figures of the search in its manifest."""
        is_shown = any(entry["tag"] == TAG for entry in assembled.manifest["blocks"])
        shown = self.shown if is_shown else 0
        figures = {
            "considered": self.considered,
            "shown": shown,
            "left_out": self.hits - shown,
            "formula": self.formula,
            "generation": self.generation,
        }
        return assembled._replace(manifest={**assembled.manifest, "recall": figures})


def recall_block(
    found: Found,
    owner_key: str,
    run_id: str,
    without: Collection[str],
    *,
    truncate_chars: int,
    timezone_offset: int,
    bounds: Bounds | None = None,
) -> RecallBlock:
    """The block of what was found for a run.

    Args:
        found: what the search found.
        owner_key: of the run.
        run_id: its own messages are not shown.
        without: `_id`s of rows that are not shown, such as those that are in the context already.
        truncate_chars: the length to which a longer text is cut.
        timezone_offset: minutes west of UTC, of the clock on which dates are shown.
        bounds: the worst hits go where the block takes more than its share; None for no share.
    """
    lines: dict[str, _Lines] = {}
    for row in (row for hit in found.hits for row in hit.around):
        is_other = row.get("owner_key") == owner_key and row.get("run_id") != run_id and row["_id"] not in without
        if is_other and row["_id"] not in lines:
            lines[row["_id"]] = _lines_of(row, truncate_chars, timezone_offset)
    hits = [hit for hit in found.hits if (said := lines.get(hit.row["_id"])) and said.texts]

    def render(count: int) -> str:
        groups = ("\n".join(text for each in group for text in each.texts) for group in _groups(hits[:count], lines))
        return _HEAD.format(count=count) + "\n\n".join(groups)

    count = bounds.most(TAG, len(hits), render) if bounds else len(hits)
    shown = [each for group in _groups(hits[:count], lines) for each in group]
    block = Block(
        TAG,
        "user",
        render(count),
        tuple(source for each in shown for source in each.sources),
        truncated=sum(each.truncated for each in shown),
        dropped=len(found.hits) - count,
        escaped=sum(each.escaped for each in shown),
    )
    figures = (count, len(found.hits), found.considered, found.formula, found.generation)
    return RecallBlock(block if count else None, *figures)


class _Lines(NamedTuple):
    """The lines of a row, and their figures for the manifest."""

    texts: list[str]
    sources: list[str]
    at: datetime
    truncated: int
    escaped: int


def _lines_of(row: Row, truncate_chars: int, timezone_offset: int) -> _Lines:
    escape = CountingEscape()
    session = _session(text_or_empty(row.get("session_id")) or DEFAULT_SESSION)
    items = messages_of([row])
    texts, sources, truncated = list[str](), list[str](), 0
    for item in items:
        text, was_cut = _said(item, truncate_chars, escape)
        if text:
            date = at_offset(item.moment, timezone_offset).date().isoformat() if item.moment else _UNKNOWN_DATE
            texts.append(f"[{date}, {session}] {'Human' if item.role == 'user' else 'Nexus'}: {text}")
            sources += [item.source] if item.source else []
            truncated += was_cut
    at = next((item.moment for item in items if item.moment), LONG_AGO)
    return _Lines(texts, sources, at, truncated, escape.marked if texts else 0)


def _said(item: HistoryMessage, limit: int, escape: CountingEscape) -> tuple[str, bool]:
    """The text of a message on one line, and whether it was cut; `""` for nothing to show."""
    text = one_line(without_recalled(item.text))
    # What is never found is not shown beside a hit either, such as what is internal to a sub-agent.
    if not said_in(item) or not (text or item.calls):
        return "", False
    # A name in brackets marks what a tool gave: no text can have it.
    calls = [ToolCall("", item.tool_name or _NO_NAME, {}, "")] if item.role == "tool" else item.calls
    annotation = annotate(calls, escape)
    reserved = len(annotation) + 1 if annotation else 0
    # A result is found by its first lines.
    (shown,), was_cut = cut([text], 0, limit - reserved) if item.role == "tool" else cut([text], reserved, limit)
    parts = [annotation, escape(shown)] if item.role == "tool" else [escape(shown), annotation]
    return " ".join(filter(None, parts)), was_cut


def _session(session_id: str) -> str:
    """The id of a session on one line, and without brackets: it stands in some, and none of its own begins a tag."""
    line = one_line(session_id)
    line = line if len(line) <= _SESSION_CHARS else f"{line[: _SESSION_CHARS - 1]}…"
    return "".join(_PARENTHESES.get(look, char) for char, look in zip(line, fold(line), strict=True))


def _groups(hits: Sequence[Hit], lines: Mapping[str, _Lines]) -> list[list[_Lines]]:
    """The lines of these hits and of the messages around them, each once, oldest first.

    Those of one place in the past are together.
    """
    order, groups = TopologicalSorter[str](), list[set[str]]()
    for hit in hits:
        around = [row["_id"] for row in hit.around if row["_id"] in lines]
        order.add(around[0])
        for earlier, later in pairwise(around):
            order.add(later, earlier)
        joined = [group for group in groups if not group.isdisjoint(around)]
        groups = [*(group for group in groups if group not in joined), {*around}.union(*joined)]
    # Not by their times, which may all be the same where they were imported.
    places = {row_id: place for place, row_id in enumerate(order.static_order())}
    in_order = [[lines[row_id] for row_id in sorted(group, key=places.__getitem__)] for group in groups]
    return sorted(in_order, key=lambda group: min(each.at for each in group))
