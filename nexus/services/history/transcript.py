"""What was said, in order: stored rows of a session, or the later messages of a run (contract §2, §4.6, §5). Pure.

- One malformed row never spoils the rest: it is repaired or left out, and counted.
- Everything is compared as moments, and nothing comes before the human input of its run: clocks differ.
- Texts are escaped here; the arguments of calls stay exact.
- Messages that a provider would not accept are left to the validity gate.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, Self

from nexus.core.models import Message, Role, parse_moment
from nexus.services.history.merge import places_in_run, stored_order
from nexus.services.history.rows import MAIN, Agent
from nexus.services.history.tool_calls import ToolCall, as_id, read_tool_calls
from nexus.services.text.content import as_text
from nexus.services.text.escape import escape_counted

Speaker = Literal["user", "assistant", "tool"]

# By the role of a message or row, in lower case.
SPEAKERS: Final[Mapping[str, Speaker]] = {"human": "user", "ai": "assistant", "tool": "tool"}
_PASSED_OVER: Final = {"system", "command"}
# Recorded for a tool that did not give its name.
_UNNAMED: Final = "unknown"


@dataclass(frozen=True, slots=True)
class TranscriptMessage:
    """One message before the validity gate.

    Attributes:
        text: escaped; `""` where nothing would be seen of it.
        escaped: places that were marked in it.
        source: id of the message or row; `""` when it has none.
        run_id: results answer calls of their own run.
        calls: those that an assistant message declares.
        call_id, tool_name: the call that a result names, and its tool; `""` when it names none.
    """

    role: Speaker
    text: str
    escaped: int = 0
    source: str = ""
    run_id: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    tool_name: str = ""


@dataclass(frozen=True, slots=True)
class _Row:
    """A row that can be shown, as `merge.PlacedRow` describes it."""

    index: int
    message: TranscriptMessage
    moment: datetime | None
    rank: int

    @property
    def is_human(self) -> bool:
        return self.message.role == "user"


def transcript_of_run(later: Sequence[Message], agent: Agent = MAIN) -> list[TranscriptMessage]:
    """The messages of a run after its input, as they came. SYSTEM and COMMAND messages are passed over."""
    messages = []
    for message in later:
        speaker = SPEAKERS.get(message.role.value.lower())
        if speaker is None or not agent.sees(message.metadata):
            continue
        content = message.content
        if message.role is Role.AI:
            answer = content if isinstance(content, Mapping) else {"content": content}
            calls = read_tool_calls(answer.get("tool_calls") or message.metadata.get("tool_calls"))
            item = _message(speaker, answer.get("content"), message.id, message.run_id, calls=calls)
        elif message.role is Role.TOOL:
            result = content if isinstance(content, Mapping) and "result" in content else {"result": content}
            known = {**result, **{key: value for key, value in message.metadata.items() if value}}
            item = _message(speaker, result["result"], message.id, message.run_id, answers=known)
        else:
            item = _message(speaker, content, message.id, message.run_id)
        messages.append(item)
    return messages


def transcript_of_rows(
    rows: Sequence[Any], agent: Agent = MAIN, *, current_run_id: str = ""
) -> tuple[list[TranscriptMessage], int]:
    """The rows of a session, oldest first, and how many had to be repaired or left out.

    Rows of the current run, of SYSTEM and COMMAND, and those that are not for `agent` are left out without being
    counted.
    """
    ranks = stored_order(rows)
    shown, faults = [], 0
    for index, row in enumerate(rows):
        if current_run_id and isinstance(row, Mapping) and row.get("run_id") == current_run_id:
            continue
        item, faulty = _read_row(row, agent)
        if item is not None:
            moment = parse_moment(row.get("timestamp"))
            shown.append(_Row(index, item, moment, ranks[index]))
            faulty |= moment is None
        faults += faulty
    return [row.message for row in _in_order(shown)], faults


def window_start(messages: Sequence[TranscriptMessage]) -> int:
    """Where to begin what is only the end of a session: with a human, and for many builds with the same one.

    If it began with whatever the limit lets in, each build would begin one message later than the last, and no provider
    could use again what it had read. So it begins with one of the humans in the older half: the one whose id has the
    smallest hash, which stays the same until it is out of reach or a smaller one comes in. Where one run fills that
    half, it begins with one of the run's answers in the same way: half a run is more than none of it.
    """
    older = messages[: (len(messages) + 1) // 2]
    for role in ("user", "assistant"):
        if places := [index for index, item in enumerate(older) if item.role == role]:
            return min(places, key=lambda index: _hash(messages[index].source))
    return 0


def _hash(source: str) -> bytes:
    return hashlib.sha256(source.encode("utf-8", "replace")).digest()


def _in_order(rows: list[_Row]) -> list[_Row]:
    runs: dict[str, list[_Row]] = {}
    for row in rows:
        # A row without a run is one by itself.
        runs.setdefault(row.message.run_id or f"\n{row.index}", []).append(row)
    places = {index: place for members in runs.values() for index, place in places_in_run(members).items()}
    return sorted(rows, key=lambda row: places[row.index])


def _read_row(row: Any, agent: Agent) -> tuple[TranscriptMessage | None, bool]:
    """What the row says, and whether something in it but its time was not as it is stored today."""
    if not isinstance(row, Mapping):
        return None, True
    role = row.get("role")
    lowered = role.lower() if isinstance(role, str) else ""
    speaker = SPEAKERS.get(lowered)
    metadata = row.get("metadata", {})
    if speaker is None or not agent.sees(metadata):
        return None, speaker is None and lowered not in _PASSED_OVER
    known = metadata if isinstance(metadata, Mapping) else {}
    row_id, run_id, content = row.get("id"), row.get("run_id"), row.get("content")
    calls = read_tool_calls(known.get("tool_calls")) if speaker == "assistant" else ()
    item = _message(
        speaker,
        content,
        row_id if isinstance(row_id, str) else "",
        run_id if isinstance(run_id, str) else "",
        calls=calls,
        answers=known if speaker == "tool" else {},
    )
    # A result may be any JSON, and older rows say None where a model only made calls.
    text_as_today = isinstance(content, str) or speaker == "tool" or (content is None and bool(calls))
    return item, not (isinstance(metadata, Mapping) and text_as_today)


def _message(
    role: Speaker,
    content: Any,
    source: str,
    run_id: str,
    *,
    calls: tuple[ToolCall, ...] = (),
    answers: Mapping[str, Any] | None = None,
) -> TranscriptMessage:
    text, escaped = escape_counted(as_text(content))
    if not text.strip():
        text, escaped = "", 0
    answers = answers or {}
    return TranscriptMessage(
        role, text, escaped, source, run_id, calls, call_id=as_id(answers.get("call_id")), tool_name=named_tool(answers)
    )


def named_tool(answers: Mapping[str, Any]) -> str:
    """The tool that gave a result with this metadata; `""` where it does not say."""
    name = answers.get("tool_name")
    return name if isinstance(name, str) and name != _UNNAMED else ""


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a session that an agent is shown as it was said (contract §5).

    Attributes:
        messages: oldest first, before the validity gate.
        runs: those whose human input is among the messages. Of a run that began before, only the end is shown.
        left_out: older messages that were at hand.
        cut: there are older ones, which were not read.
        fetched: rows that were read, without the current run's.
        faults: rows of them that had to be repaired or left out.
    """

    messages: Sequence[TranscriptMessage] = ()
    runs: frozenset[str] = frozenset()
    left_out: int = 0
    cut: bool = False
    fetched: int = 0
    faults: int = 0

    @classmethod
    def of(cls, rows: Sequence[Any], agent: Agent = MAIN, *, cut: bool = False, current_run_id: str = "") -> Self:
        """What `agent` is shown of these rows of a session, in any order, without the current run's.

        `cut` says that the session has older rows.
        """
        messages, faults = transcript_of_rows(rows, agent, current_run_id=current_run_id)
        start = window_start(messages) if cut else 0
        fetched = count_others(rows, current_run_id)
        return cls(messages[start:], _begun_from(messages, start), start, cut, fetched, faults)


def count_others(rows: Sequence[Any], run_id: str) -> int:
    """How many rows are not of this run.

    Whether the run's own input is among the rows depends on how fast it was recorded, which must not show.
    """
    return len([row for row in rows if not (run_id and isinstance(row, Mapping) and row.get("run_id") == run_id)])


def _begun_from(messages: Sequence[TranscriptMessage], start: int) -> frozenset[str]:
    begun: dict[str, int] = {}
    for index, item in enumerate(messages):
        if item.role == "user" and item.run_id:
            # What is empty is not shown.
            begun.setdefault(item.run_id, index if item.text else -1)
    return frozenset(run_id for run_id, index in begun.items() if index >= start)
