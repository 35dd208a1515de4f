"""What is kept of a session, as blocks: overview and list of details, and what is compacted (CONTRACT §7). Pure.

    [WORKING_MEMORY revision=3 bytes=412 details=1]
    - flights (note, 1204 bytes)

    # Working memory
    ...

    [CONVERSATION_SUMMARY compactions=2 messages=148]
    - 2026-03-01 10:02 Asked: Which trains go to Porto? ...

Rules of this module:

- The list of details comes first, so that nothing in the overview can pass for an item of it: names of details are
  plain, on one line, and the head says how many there are. If it says more than are ever listed, the last line does.
- The template is shown where there is no overview yet, and is never kept: it is no content.
"""

from collections.abc import Sequence

from nexus.core.working_memory import Detail, Snapshot
from nexus.services.context.blocks import Block
from nexus.services.memory.documents import MOST_ARCHIVES as MOST_ARCHIVES
from nexus.services.memory.documents import MOST_NOTES as MOST_NOTES
from nexus.services.memory.documents import TEMPLATE as TEMPLATE
from nexus.services.text.escape import CountingEscape, one_line


def working_memory_block(snapshot: Snapshot) -> Block:
    """`[WORKING_MEMORY]`: the overview, or the template, and the names of the details."""
    counting = CountingEscape()
    overview, details = snapshot.overview, snapshot.details
    content = overview.content if overview else TEMPLATE
    shown = [*_latest(details, "note", MOST_NOTES), *_latest(details, "archive", MOST_ARCHIVES)]
    listed = [_item(detail, counting) for detail in sorted(shown, key=lambda detail: detail.name)]
    others = snapshot.detail_count - len(shown)
    if others:
        listed.append(f"- ({others} older ones, which search_memory finds)")
    revision, size = (overview.revision, len(content.encode("utf-8", "replace"))) if overview else (0, 0)
    head = f"[WORKING_MEMORY revision={revision} bytes={size} details={snapshot.detail_count}]"
    text = "\n\n".join(filter(None, ("\n".join([head, *listed]), counting(content).strip("\n"))))
    return Block("WORKING_MEMORY", "system", text, dropped=others, escaped=counting.marked)


def summary_block(snapshot: Snapshot) -> list[Block]:
    """`[CONVERSATION_SUMMARY]`, if something is compacted."""
    compaction = snapshot.compaction
    if compaction is None:
        return []
    counting = CountingEscape()
    head = f"[CONVERSATION_SUMMARY compactions={compaction.number} messages={compaction.total}]"
    text = f"{head}\n{counting(compaction.summary).strip()}"
    return [Block("CONVERSATION_SUMMARY", "user", text, escaped=counting.marked)]


def _latest(details: Sequence[Detail], kind: str, most: int) -> list[Detail]:
    of_kind = (detail for detail in details if detail.kind == kind)
    return sorted(of_kind, key=lambda detail: detail.updated_at)[-most:]


def _item(detail: Detail, escape: CountingEscape) -> str:
    return f"- {escape(one_line(detail.name))} ({detail.kind}, {detail.bytes} bytes)"
