"""Where a recorded message is in a context, or why it is not there. Pure.

What is said of a build is concluded from its manifest and from what is stored now: it is certain where these leave no
other reason, and else the most likely one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from nexus.core.models import (
    DEFAULT_SESSION,
    LONG_AGO,
    Row,
    Why,
    is_object_id,
    named_agent,
    parse_moment,
    seconds_of,
)
from nexus.core.records import BuildRecord
from nexus.core.working_memory import Compaction
from nexus.services.history.messages import HistoryMessage, messages_of
from nexus.services.history.rows import text_or_empty
from nexus.services.records.explain import Explained, Omission, ShownBlock

Reason = Literal[
    "shown",  # in a block that shows messages
    "no_context",  # the request was refused
    "unknown",  # nothing is recorded under this id
    "left_out",  # the manifest says why
    "never_shown",  # of a role, or a form, that no context shows
    "internal",  # to a sub-agent
    "later",  # recorded after the context, or the first one of its run, was built
    "own_run",  # of the run itself, which brings its messages with the request
    "layout",  # the layout shows no such messages
    "other_session",
    "unread",  # the history could not be read in time
    "compacted",
    "no_room",
    "older",  # than the newest that the layout shows
    "unclear",
]

# Blocks that show messages; others are made from them.
_SHOWING: Final = ("INPUT", "THIS_MOMENT", "RUN", "HISTORY", "SHARED_MEMORY", "RECALL")
_PAST: Final = ("HISTORY", "SHARED_MEMORY")
_SUMMARY: Final = "CONVERSATION_SUMMARY"
_OF_MAIN_AGENT: Final = ("SYSTEM_PROMPT", "CORE_IDENTITY")
_LONGEST_NAME: Final = 256
_SECOND: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Finding:
    """Where a message is in a context, or why not.

    Attributes:
        text: a sentence about it, without the message's words.
        is_certain: there is no other reason.
        blocks: tags of those that show it, or are made from it.
    """

    reason: Reason
    text: str
    is_certain: bool = True
    blocks: tuple[str, ...] = ()

    @property
    def is_shown(self) -> bool:
        """Whether the context shows the message itself."""
        return self.reason == "shown"


@dataclass(frozen=True, slots=True)
class Stored:
    """What is stored of a message, and of what has to do with it.

    Attributes:
        message_id: as it was asked for.
        row: None where there is none.
        turn_id: of the turn of its run; `""` for none.
        compaction: the one that it is under now; None for none.
        oldest: the row of the oldest message that the context shows of the past; None for none.
        begun_at: when the first context of the context's run was answered, where this is a later one.
    """

    message_id: str
    row: Row | None
    turn_id: str = ""
    compaction: Compaction | None = None
    oldest: Row | None = None
    begun_at: datetime | None = None


def find_message(record: BuildRecord, explained: Explained, stored: Stored) -> Finding:
    """Where the message is in this context, or why it is not there."""
    if explained.error:
        return Finding("no_context", f"the request was answered with {explained.error[0]}, so there is no context")
    message_id = text_or_empty(stored.row.get("id")) if stored.row else stored.message_id
    blocks = [block for block in explained.blocks if message_id in block.sources]
    found = _shown(blocks, _entries(explained, message_id)) or _left_out(explained, message_id)
    if found is None:
        row = stored.row
        found = _absent(record, explained, stored, row) if row else Finding("unknown", _UNKNOWN)
    return _with_others(found, explained, blocks, stored.turn_id)


_UNKNOWN: Final = "no message of this owner has this id: it was never recorded, or has been removed since"


def _shown(blocks: Sequence[ShownBlock], entries: Sequence[Omission]) -> Finding | None:
    showing = [block for block in blocks if block.tag in _SHOWING]
    if not showing:
        return None
    text = f"it is shown in {_tags(showing)}"
    if entries:
        text += f", without {'; '.join(f'{each.what} ({each.why})' for each in entries)}"
    elif any(block.truncated for block in showing):
        text += ", where some texts are shortened"
    return Finding("shown", text, blocks=tuple(block.tag for block in showing))


def _entries(explained: Explained, message_id: str) -> list[Omission]:
    """The entries of `left_out` about this message."""
    return [each for each in explained.left_out if message_id and message_id == _without_place(each.where)]


def _without_place(where: str) -> str:
    """The id of a message in the place of an omission: that of the current input may follow its place in the run."""
    return where.partition("] ")[2] or where if where.startswith("run.history[") else where


def _left_out(explained: Explained, message_id: str) -> Finding | None:
    entries = _entries(explained, message_id)
    if not entries:
        return None
    return Finding("left_out", f"left out: {'; '.join(f'{each.what}: {each.why}' for each in entries)}")


def _with_others(found: Finding, explained: Explained, blocks: Sequence[ShownBlock], turn_id: str) -> Finding:
    """The finding with what else the context has of the message."""
    made = [block for block in blocks if block.tag not in found.blocks]
    turns = [block for block in explained.blocks if turn_id and turn_id in block.sources and block not in made]
    more = [f"{_tags(made)} is made from it"] if made else []
    more += [f"{_tags(turns)} tells of its run"] if turns and not found.is_shown else []
    tags = dict.fromkeys([*found.blocks, *(block.tag for block in [*made, *(turns if not found.is_shown else ())])])
    return replace(found, text="; ".join([found.text, *more]), blocks=tuple(tags))


def _tags(blocks: Sequence[ShownBlock]) -> str:
    return " and ".join(dict.fromkeys(f"[{block.tag}]" for block in blocks))


def _absent(record: BuildRecord, explained: Explained, stored: Stored, row: Row) -> Finding:
    """Why a recorded message that the manifest does not name is not there."""
    said = messages_of([row])
    return (
        _by_kind(explained, row, said)
        or _by_time(record, explained, stored, row)
        or _by_run(record, explained, row, said)
        or _by_layout(record, explained, row, said)
        or _by_compaction(record, explained, stored.compaction)
        or _by_age(explained, stored, row)
        or _unclear(record, explained, stored, row)
    )


def _unclear(record: BuildRecord, explained: Explained, stored: Stored, row: Row) -> Finding:
    recorded, is_exact = _recorded_at(row)
    if is_exact and recorded + _SECOND > (stored.begun_at or record.answered_at):
        return Finding("later", f"it was recorded at {_time(recorded)}, in the second of the build", is_certain=False)
    # A late result stands at its call, and runs that went on side by side one after the other.
    if no_room := _no_room(explained):
        return Finding(
            "no_room", f"there was no room for {', '.join(no_room)}, and it is one of them", is_certain=False
        )
    text = "it is among the messages that are shown by its age; its row may have been changed since"
    return Finding("unclear", text, is_certain=False)


def _brief(name: str) -> str:
    """A name in a sentence; another program may have written one of any length."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"


def _by_kind(explained: Explained, row: Row, said: Sequence[HistoryMessage]) -> Finding | None:
    if not any(item.role or item.state for item in said):
        role = text_or_empty(row.get("role")) or "none"
        return Finding("never_shown", f"no context shows messages with the role {_brief(role)}")
    if not any(item.text.strip() or item.calls or item.role == "tool" for item in said):
        return Finding("never_shown", "it has no text and no call that is understood")
    agent = named_agent(row.get("metadata"))
    if agent is None:
        return None
    named = f"sub-agent {_brief(agent)}" if agent else "a sub-agent"
    if _is_for_main_agent(explained):
        return Finding("internal", f"it is internal to {named}, and this context is not for a sub-agent")
    return Finding("internal", f"it is internal to {named}, and this context may be for another", is_certain=False)


def _is_for_main_agent(explained: Explained) -> bool:
    return explained.layout != "agent" or not explained.tags.isdisjoint(_OF_MAIN_AGENT)


def _by_time(record: BuildRecord, explained: Explained, stored: Stored, row: Row) -> Finding | None:
    recorded, is_certain = _recorded_at(row)
    if recorded > record.answered_at:
        text = f"it was recorded at {_time(recorded)}, after this context was built"
    elif stored.begun_at and recorded > stored.begun_at:
        text = f"it was recorded at {_time(recorded)}, after the first context of this run, whose past all of them show"
        # A run may go on with another past after a compaction, with other constraints, and as another agent.
        is_certain = (
            is_certain and _is_for_main_agent(explained) and explained.tags.isdisjoint((_SUMMARY, "CONSTRAINTS"))
        )
    else:
        return None
    return Finding("later", text, is_certain=is_certain)


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def _recorded_at(row: Row) -> tuple[datetime, bool]:
    """When a row was recorded, to the second by the clock of a replica, and whether that is known.

    Rows of other writers may only say when they were sent.
    """
    row_id = str(row.get("_id", ""))
    if is_object_id(row_id):
        return datetime.fromtimestamp(seconds_of(row_id), UTC), True
    return parse_moment(row.get("timestamp")) or LONG_AGO, False


def _by_run(record: BuildRecord, explained: Explained, row: Row, said: Sequence[HistoryMessage]) -> Finding | None:
    if row.get("run_id") != record.run_id:
        return None
    is_input, has_goal = any(item.role == "user" for item in said), "TASK_CONTEXT" in explained.tags
    if explained.layout == "thinking" and is_input and has_goal:
        return Finding("shown", "it is the goal itself, which [TASK_CONTEXT] shows", is_certain=False)
    text = "it is of the run itself, whose messages come with the request, and this one did not"
    return Finding("own_run", text, is_certain=False)


def _by_layout(record: BuildRecord, explained: Explained, row: Row, said: Sequence[HistoryMessage]) -> Finding | None:
    if explained.layout == "thinking":
        return Finding("layout", "the layout thinking shows no messages of earlier runs, only what turns tell of them")
    session = text_or_empty(row.get("session_id")) or DEFAULT_SESSION
    if explained.layout == "agent" and session != record.session_id:
        text = f"it is of session {_brief(session)}, and the layout agent shows one session, here {record.session_id}"
        return Finding("other_session", text)
    if explained.layout == "dialogue" and all(item.role not in {"user", "assistant"} for item in said):
        text = "the layout dialogue shows inputs and answers; of results of tools their beginnings at most"
        return Finding("layout", f"{text} (memory.show_tool_results)")
    if "history" in explained.degraded:
        return Finding("unread", "the history could not be read in time, so none of it is shown (degraded: history)")
    return None


def _by_compaction(record: BuildRecord, explained: Explained, compaction: Compaction | None) -> Finding | None:
    if compaction is None or explained.layout != "agent" or compaction.created_at > record.answered_at:
        return None
    text = f"it is under compaction {compaction.number} of {_time(compaction.created_at)}"
    if _SUMMARY in explained.tags:
        return Finding("compacted", f"{text}, for which [{_SUMMARY}] stands", blocks=(_SUMMARY,))
    return Finding("compacted", f"{text}, for whose summary there was no room")


def _by_age(explained: Explained, stored: Stored, row: Row) -> Finding | None:
    """Whether it is older than all that is shown of the past, and why no more of that is."""
    tag = "SHARED_MEMORY" if explained.layout == "dialogue" else "HISTORY"
    no_room = _no_room(explained)
    if stored.oldest is None:
        if no_room:
            return Finding("no_room", f"there was no room for any message of the past in the context window ({tag})")
        return Finding("older", f"no message of the past is shown ({tag})", is_certain=False)
    if not _is_older(row, stored.oldest, explained.layout):
        return None
    if no_room:
        text = f"it is older than all that [{tag}] shows, and there was no room for {', '.join(no_room)}"
        return Finding("no_room", text)
    shown = explained.history.get("shown")
    newest = f"the newest {shown} messages" if isinstance(shown, int) else "the newest messages"
    of_all = " of all sessions" if explained.layout == "dialogue" else ""
    return Finding("older", f"it is older than {newest}{of_all}, which [{tag}] shows")


def _no_room(explained: Explained) -> list[str]:
    """What of the past was left out because there was no room."""
    return [each.what for each in explained.left_out if each.where in _PAST and each.why == Why.NO_ROOM]


def _is_older(row: Row, than: Row, layout: str) -> bool:
    """An agent's session is in the order in which it was stored, a dialogue in that in which it was said."""
    ids = [str(each.get("_id", "")) for each in (row, than)]
    if layout == "agent" and all(map(is_object_id, ids)):
        return ids[0] < ids[1]
    moments = [parse_moment(each.get("timestamp")) or LONG_AGO for each in (row, than)]
    return moments[0] < moments[1]


def oldest_shown(explained: Explained) -> str | None:
    """The id of the oldest message that the context shows of the past; None where it shows none."""
    return next((block.sources[0] for block in explained.blocks if block.tag in _PAST and block.sources), None)


def is_continuation(explained: Explained) -> bool:
    """Whether the context is not the first of its run."""
    return "RUN" in explained.tags
