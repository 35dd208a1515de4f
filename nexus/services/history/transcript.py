"""The messages of a session or a run, in order, and as a strict provider accepts them (contract §2, §4.6, §5). Pure.

Rows of a session, or the later messages of a run, become a transcript, and behind the validity gate (`admit`) a list
that keeps these rules, whatever the rows were:

- Texts are escaped; the arguments of calls stay exact.
- The results of a message's calls stand directly after it, in the order of the calls, also when they came later.
- Every call is answered before anything else follows; for a lost or outstanding result stands a tool message that says
  so, or how far the call has come. A result answers a call of its own run, or else the one of its id in another run:
  some calls wait for an approval.
- Call ids are unique in the list, ids and function names have the characters and the length that every provider
  allows, no message has more than 128 calls, and none is empty.

Repairs are noted with the place, never with content (contract §8). Messages made for a part of a session stay the same
when the session goes on, unless a result comes late.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final, Self

from pydantic_core import from_json

from nexus.core.models import LeftOut, Message, Why
from nexus.services.history.forms import not_understood
from nexus.services.history.messages import HistoryMessage, in_order, messages_of, read_messages
from nexus.services.history.rows import MAIN, REVISION, Agent, count_others, is_whole_number, row_of
from nexus.services.history.tool_calls import ToolCall
from nexus.services.text.escape import canonical, escape_counted
from nexus.services.text.neighbours import Neighbours
from nexus.services.tools.definitions import shown_name


def transcript_of_run(later: Sequence[Message], agent: Agent = MAIN) -> list[HistoryMessage]:
    """The messages of a run after its input, as they came. SYSTEM and COMMAND messages are passed over."""
    return [item for item in messages_of(map(row_of, later)) if item.role and agent.sees(item.metadata)]


def transcript_of_rows(
    rows: Sequence[Any], agent: Agent = MAIN, *, current_run_id: str = ""
) -> tuple[list[HistoryMessage], int]:
    """The rows of a session, oldest first, and how many had to be repaired or left out.

    With the progress of calls, for the validity gate. Not counted are those of the current run, of SYSTEM and COMMAND,
    and those that are not for `agent`.
    """
    read = [
        item
        for item in read_messages(rows)
        if (not (item.role or item.state) or agent.sees(item.metadata))
        and not (current_run_id and item.run_id == current_run_id)
    ]
    return in_order([item for item in read if item.role or item.state]), sum(item.is_faulty for item in read)


def window_start(messages: Sequence[HistoryMessage]) -> int:
    """Where to begin what is only the end of a session: with a human, and for many builds with the same one.

    If it began with whatever the limit lets in, each build would begin one message later than the last, and no provider
    could use again what it had read. So it begins with one of the humans in the older half: the one whose id has the
    smallest hash, which stays the same until it is out of reach or a smaller one comes in. Where one run fills that
    half, it begins with one of the run's answers in the same way: half a run is more than none of it.
    """
    older = messages[: (len(messages) + 1) // 2]
    for role in ("user", "assistant"):
        if places := [index for index, item in enumerate(older) if item.role == role]:
            sources = {index: messages[index].source.encode("utf-8", "replace") for index in places}
            return min(places, key=lambda index: hashlib.sha256(sources[index]).digest())
    return 0


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a session that an agent is shown as it was said (contract §5).

    Attributes:
        messages: oldest first, before the validity gate; with the progress of calls, which is no message.
        runs: those whose human input is among the messages. Of a run that began before, only the end is shown.
        left_out: older messages that were at hand.
        cut: there are older ones, which were not read.
        fetched: rows that were read, without the current run's.
        faults: rows of them that had to be repaired or left out.
        unread: those of which nothing is understood.
    """

    messages: Sequence[HistoryMessage] = ()
    runs: frozenset[str] = frozenset()
    left_out: int = 0
    cut: bool = False
    fetched: int = 0
    faults: int = 0
    unread: Sequence[LeftOut] = ()

    @classmethod
    def of(cls, rows: Sequence[Any], agent: Agent = MAIN, *, cut: bool = False, current_run_id: str = "") -> Self:
        """What `agent` is shown of these rows of a session, in any order, without the current run's.

        `cut` says that the session has older rows.
        """
        messages, faults = transcript_of_rows(rows, agent, current_run_id=current_run_id)
        start = window_start(messages) if cut else 0
        fetched = count_others(rows, current_run_id)
        begun = _begun_from(messages, start)
        left_out = count_said(messages[:start])
        return cls(messages[start:], begun, left_out, cut, fetched, faults, not_understood(rows))


def count_said(messages: Iterable[HistoryMessage]) -> int:
    """How many of these are messages, and not the progress of a call."""
    return sum(item.role is not None for item in messages)


def _begun_from(messages: Sequence[HistoryMessage], start: int) -> frozenset[str]:
    begun: dict[str, int] = {}
    for index, item in enumerate(messages):
        if item.role == "user" and item.run_id:
            # What is empty is not shown.
            begun.setdefault(item.run_id, index if canonical(item.text).strip() else -1)
    return frozenset(run_id for run_id, index in begun.items() if index >= start)


NO_RESULT: Final = "(no result was recorded for this call)"
NO_RESULT_YET: Final = "(no result has come yet)"
EMPTY_RESULT: Final = "(empty)"
FAILED_RESULT: Final = "(failed without a message)"
NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
CALL_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
_REFUSED = re.compile(r"[^A-Za-z0-9_-]")
_ID_CHARS: Final = 40
# In one message; what OpenAI allows (docs/decisions/0013-one-list-three-formats.md).
_CALLS: Final = 128


@dataclass(frozen=True, slots=True)
class Admitted:
    """Messages in the OpenAI form.

    Attributes:
        origins: for each message its source; that of progress shown in the place of a result has a `state`; None for a
            result that was lost.
        repairs: notes on what was changed or left out.
        left_out: what they do not show of the messages before the gate.
    """

    messages: list[dict[str, Any]]
    origins: list[HistoryMessage | None]
    repairs: list[str]
    left_out: list[LeftOut]


@dataclass(slots=True)
class _Call:
    """A declared call: id and name as given, to which a result may refer, and as a provider accepts them.

    `place` stands in the notes; `order` is the number of the step that declares it.
    """

    given_id: str
    given_name: str
    id: str
    name: str
    place: str
    order: int
    result: HistoryMessage | None = None
    progress: HistoryMessage | None = None


@dataclass(slots=True)
class _Step:
    """One message, and, if it declared calls, their results."""

    origin: HistoryMessage
    message: dict[str, Any]
    calls: list[_Call] = field(default_factory=list)


def admit(
    messages: Iterable[HistoryMessage],
    where: str,
    *,
    after: Sequence[Mapping[str, Any]] = (),
    going_on: bool = False,
) -> Admitted:
    """The given messages that may stand in a list after the messages `after`.

    - `where`: the list's name in the notes, such as `run.history`.
    - `after`: admitted messages; the ids of their calls are not used again, and structure begun there is not completed.
    - `going_on`: the runs may still be going on, so the last calls of each may yet be answered.
    """
    return _Gate(where, after, going_on=going_on).admit(messages)


def _escaped(item: HistoryMessage) -> HistoryMessage:
    """The message with its text escaped; `""` where nothing would be seen of it."""
    text, escaped = escape_counted(item.text)
    if not text.strip():
        text, escaped = "", 0
    return item if text == item.text else item._replace(text=text, escaped=escaped)


def answers_of(items: Sequence[HistoryMessage]) -> list[tuple[int, list[int | None]]]:
    """For each message with calls its place among the ordered `items`, and those of what answers its calls, in order.

    That is a result, or how far the call has come; None for neither. One with very many calls comes several times.
    """
    # The gate asks whether there is a text, and reads none.
    shown = [item._replace(text="…", rank=place) for place, item in enumerate(items) if item.role or item.state]
    admitted = admit(shown, "rows")
    found: list[tuple[int, list[int | None]]] = []
    for message, origin in zip(admitted.messages, admitted.origins, strict=True):
        if message["role"] == "tool":
            found[-1][1].append(origin.rank if origin else None)
        elif origin and origin.calls:
            found.append((origin.rank, []))
    return found


def _said_at(progress: HistoryMessage) -> int:
    revision = progress.metadata.get(REVISION)
    return int(revision) if revision is not None and is_whole_number(revision) else 0


class _Gate:
    def __init__(self, where: str, after: Sequence[Mapping[str, Any]], *, going_on: bool) -> None:
        self._where = where
        self._after = after
        self._going_on = going_on
        self._steps: list[_Step] = []
        self._latest_step: dict[str, _Step] = {}
        self._repairs: list[str] = []
        self._left_out: list[LeftOut] = []
        self._ids: set[str] = {call["id"] for message in after for call in message.get("tool_calls") or ()}
        self._latest: dict[str, list[_Call]] = {}
        self._declared: dict[tuple[str, str], list[_Call]] = {}
        self._of_any_run: dict[str, list[_Call]] = {}

    def admit(self, messages: Iterable[HistoryMessage]) -> Admitted:
        unmatched: list[tuple[int, HistoryMessage]] = []
        progress: list[HistoryMessage] = []
        for item in map(_escaped, messages):
            self._left_out += item.left_out
            if item.state:
                progress.append(item)
            elif item.role == "tool":
                call = self._call_of_id(item) if item.call_id else self._call_of_name(item)
                if call is None:
                    unmatched.append((len(self._steps), item))
                else:
                    call.result = item
            elif item.calls:
                self._declare_all(item)
            elif item.text:
                self._add(_Step(item, {"role": item.role, "content": item.text}))
            else:
                self._leave_out("message", item, Why.EMPTY)
        for came, item in unmatched:
            self._place_early(came, item)
        # A call may have been reported on in several runs.
        for item in sorted(progress, key=_said_at):
            self._note_progress(item)
        shown = [pair for step in self._steps for pair in self._shown(step)]
        parted = Neighbours(self._after).parted([message for message, _ in shown])
        return Admitted(parted, [origin for _, origin in shown], self._repairs, self._left_out)

    def _add(self, step: _Step) -> None:
        self._steps.append(step)
        self._latest_step[step.origin.run_id] = step

    def _declare_all(self, item: HistoryMessage) -> None:
        """Declare the calls of `item`: in several messages, each answered before the next, where one is not enough."""
        order = len(self._steps)
        calls = [self._declare(call, f"{item.source}[{index}]", order) for index, call in enumerate(item.calls)]
        declared = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": source.raw_arguments}}
            for call, source in zip(calls, item.calls, strict=True)
        ]
        for start in range(0, len(calls), _CALLS):
            part = slice(start, start + _CALLS)
            content = (item.text or None) if start == 0 else None
            message = {"role": "assistant", "content": content, "tool_calls": declared[part]}
            self._add(_Step(item, message, calls[part]))
        self._latest[item.run_id] = calls
        for call in calls:
            if call.given_id:
                self._declared.setdefault((item.run_id, call.given_id), []).append(call)
                self._of_any_run.setdefault(call.given_id, []).append(call)

    def _declare(self, source: ToolCall, place: str, order: int) -> _Call:
        name, shown_id = shown_name(source.name), _REFUSED.sub("_", source.id)[:_ID_CHARS]
        if name != source.name:
            self._note(f"the tool name of call {place} is not one that providers accept, and was changed")
        if shown_id != source.id:
            self._note(f"the id of call {place} is not one that providers accept, and was changed")
        call_id, number = shown_id, len(self._ids)
        while not call_id or call_id in self._ids:
            call_id, number = f"call_{number}", number + 1
        if shown_id and call_id != shown_id:
            self._note(f"the id of call {place} was used before and is shown as {call_id}")
        self._ids.add(call_id)
        return _Call(source.id, source.name, call_id, name, place, order)

    def _call_of_id(self, item: HistoryMessage) -> _Call | None:
        """The open call of that id in the newest message that declared one: an id may be used again."""
        same = self._declared.get((item.run_id, item.call_id), [])
        newest = takewhile(lambda call: call.order == same[-1].order, reversed(same))
        return next((call for call in reversed(list(newest)) if call.result is None), None)

    def _call_of_name(self, item: HistoryMessage) -> _Call | None:
        """Of the calls declared last in the run and still open, the first of that name.

        Where it names no tool the first of all; where it names another, the only one.
        """
        unanswered = [call for call in self._latest.get(item.run_id, ()) if call.result is None]
        same = [call for call in unanswered if call.given_name == item.tool_name]
        others = unanswered if len(unanswered) == 1 or not item.tool_name else []
        return next(iter(same or others), None)

    def _place_early(self, came: int, item: HistoryMessage) -> None:
        """Give a result whose clock is ahead of its call's, or that came in another run, to that call.

        Leave it out if there is none.
        """
        same = self._declared.get((item.run_id, item.call_id), []) if item.call_id else []
        later = [call for call in same if call.order >= came]
        elsewhere = [] if same else reversed(self._of_any_run.get(item.call_id, []))
        call = next((call for call in (*later, *elsewhere) if call.result is None), None)
        if call is not None:
            call.result = item
        else:
            self._leave_out("tool result", item, Why.UNMATCHED)

    def _note_progress(self, item: HistoryMessage) -> None:
        """Have the call that is named, if it has no result, show how far it has come."""
        same = self._declared.get((item.run_id, item.call_id)) or self._of_any_run.get(item.call_id, [])
        if call := next((call for call in reversed(same) if call.result is None), None):
            call.progress = item

    def _shown(self, step: _Step) -> list[tuple[dict[str, Any], HistoryMessage | None]]:
        shown: list[tuple[dict[str, Any], HistoryMessage | None]] = [(step.message, step.origin)]
        for call in step.calls:
            answer = call.result or call.progress
            if answer is None:
                yet = self._going_on and self._latest_step[step.origin.run_id].origin is step.origin
                self._note(f"call {call.place} has no result{' yet' if yet else ''}")
                text = NO_RESULT_YET if yet else NO_RESULT
            else:
                text = answer.text or (FAILED_RESULT if answer.success is False else EMPTY_RESULT)
            failed = {"failed": True} if answer and answer.success is False else {}
            shown.append(({"role": "tool", "tool_call_id": call.id, "content": text, **failed}, answer))
        return shown

    def _note(self, repair: str) -> None:
        self._repairs.append(f"{self._where}: {repair}")

    def _leave_out(self, what: str, item: HistoryMessage, why: Why) -> None:
        self._left_out.append(LeftOut(what, item.source or self._where, why))


def faults(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """The reasons for which a strict provider would refuse a list in the OpenAI form; `[]` for a valid one.

    The last check of every list before it is sent. Lists are valid by construction; this finds a fault in that.
    """
    found: list[str] = []
    known: set[str] = set()
    awaited: list[str] = []
    for index, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if role == "tool":
            if not awaited or message.get("tool_call_id") != awaited.pop(0):
                found.append(f"messages[{index}]: a result that answers no call directly before it")
        elif awaited:
            found.append(f"messages[{index}]: comes before every call is answered")
            awaited = []
        calls = message.get("tool_calls") or ()
        if not (isinstance(content, str) and content.strip()) and not (content is None and calls):
            found.append(f"messages[{index}]: is empty")
        if len(calls) > _CALLS:
            found.append(f"messages[{index}]: {len(calls)} calls in one message")
        for call in calls:
            if call["id"] in known or not CALL_ID.fullmatch(call["id"]) or not NAME.fullmatch(call["function"]["name"]):
                found.append(f"messages[{index}]: a call without a valid id or name of its own")
            if not _is_object(call["function"]["arguments"]):
                found.append(f"messages[{index}]: arguments that are no JSON object")
            known.add(call["id"])
            awaited.append(call["id"])
    return [*found, "the last calls are not answered"] if awaited else found


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(from_json(arguments, allow_inf_nan=False), dict)
    except ValueError:
        return False
