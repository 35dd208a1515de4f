"""The validity gate: a list has only what a strict provider accepts (contract §5, validity). Pure.

Rules that every list keeps, whatever the rows were:

- The results of a message's calls stand directly after it, in the order of the calls, also when they came later.
- Every call is answered before anything else follows; for a lost or outstanding result stands a tool message that says
  so. Every result answers a call of its own run.
- Call ids are unique in the list, ids and function names have the characters and the length that every provider
  allows, and no message is empty.

Repairs are noted with the place, never with content (contract §8). Messages made for a part of a session stay the same
when the session goes on, unless a result comes late.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final

from pydantic_core import from_json

from nexus.services.history.tool_calls import ToolCall
from nexus.services.history.transcript import TranscriptMessage

NO_RESULT: Final = "(no result was recorded for this call)"
NO_RESULT_YET: Final = "(no result has come yet)"
EMPTY_RESULT: Final = "(empty)"
NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
CALL_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
_REFUSED = re.compile(r"[^A-Za-z0-9_-]")
_NAME_CHARS: Final = 64
_ID_CHARS: Final = 40


@dataclass(frozen=True, slots=True)
class Admitted:
    """Messages in the OpenAI form.

    Attributes:
        origins: for each message its source; None for a result that was lost.
        repairs: notes on what was changed or left out.
    """

    messages: list[dict[str, Any]]
    origins: list[TranscriptMessage | None]
    repairs: list[str]


@dataclass(slots=True)
class _Call:
    """A declared call.

    Attributes:
        given_id, given_name: as declared; a result may refer to either.
        id, name: as a provider accepts them.
        place: of the declaration, for the notes.
        order: of the declaration.
    """

    given_id: str
    given_name: str
    id: str
    name: str
    place: str
    order: int
    result: TranscriptMessage | None = None


@dataclass(slots=True)
class _Step:
    """One message, and, if it declared calls, their results."""

    origin: TranscriptMessage
    message: dict[str, Any]
    calls: list[_Call] = field(default_factory=list)


def admit(
    messages: Iterable[TranscriptMessage],
    where: str,
    *,
    after: Sequence[Mapping[str, Any]] = (),
    going_on: bool = False,
) -> Admitted:
    """The given messages that may stand in a list after the messages `after`.

    - `where`: the list's name in the notes, such as `run.history`.
    - `after`: admitted messages; the ids of their calls are not used again.
    - `going_on`: the runs may still be going on, so the last calls of each may yet be answered.
    """
    return _Gate(where, after, going_on=going_on).admit(messages)


class _Gate:
    def __init__(self, where: str, after: Sequence[Mapping[str, Any]], *, going_on: bool) -> None:
        self._where = where
        self._going_on = going_on
        self._steps: list[_Step] = []
        self._latest_step: dict[str, _Step] = {}
        self._repairs: list[str] = []
        self._ids: set[str] = {call["id"] for message in after for call in message.get("tool_calls") or ()}
        self._latest: dict[str, list[_Call]] = {}
        self._declared: dict[tuple[str, str], list[_Call]] = {}

    def admit(self, messages: Iterable[TranscriptMessage]) -> Admitted:
        unmatched: list[tuple[int, TranscriptMessage]] = []
        for item in messages:
            if item.role == "tool":
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
                self._note(f"message {item.source} is empty and was left out")
        for came, item in unmatched:
            self._place_early(came, item)
        shown = [pair for step in self._steps for pair in self._shown(step)]
        return Admitted([message for message, _ in shown], [origin for _, origin in shown], self._repairs)

    def _add(self, step: _Step) -> None:
        self._steps.append(step)
        self._latest_step[step.origin.run_id] = step

    def _declare_all(self, item: TranscriptMessage) -> None:
        calls = [self._declare(call, f"{item.source}[{index}]") for index, call in enumerate(item.calls)]
        declared = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": source.raw_arguments}}
            for call, source in zip(calls, item.calls, strict=True)
        ]
        message = {"role": "assistant", "content": item.text or None, "tool_calls": declared}
        self._add(_Step(item, message, calls))
        self._latest[item.run_id] = calls
        for call in calls:
            if call.given_id:
                self._declared.setdefault((item.run_id, call.given_id), []).append(call)

    def _declare(self, source: ToolCall, place: str) -> _Call:
        name, shown_id = (_REFUSED.sub("_", text) for text in (source.name, source.id))
        name, shown_id = name[:_NAME_CHARS], shown_id[:_ID_CHARS]
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
        return _Call(source.id, source.name, call_id, name, place, len(self._steps))

    def _call_of_id(self, item: TranscriptMessage) -> _Call | None:
        """The open call of that id in the newest message that declared one: an id may be used again."""
        same = self._declared.get((item.run_id, item.call_id), [])
        newest = takewhile(lambda call: call.order == same[-1].order, reversed(same))
        return next((call for call in reversed(list(newest)) if call.result is None), None)

    def _call_of_name(self, item: TranscriptMessage) -> _Call | None:
        """Of the calls declared last in the run and still open, the first of that name, else the only one."""
        unanswered = [call for call in self._latest.get(item.run_id, ()) if call.result is None]
        same = [call for call in unanswered if call.given_name == item.tool_name]
        alone = unanswered if len(unanswered) == 1 else []
        return next(iter(same or alone), None)

    def _place_early(self, came: int, item: TranscriptMessage) -> None:
        """Give a result whose clock is ahead of its call's to that call; leave it out if there is none."""
        same = self._declared.get((item.run_id, item.call_id), []) if item.call_id else []
        call = next((call for call in same if call.order >= came and call.result is None), None)
        if call is not None:
            call.result = item
        else:
            self._note(f"the tool result {item.source} answers no open call and was left out")

    def _shown(self, step: _Step) -> list[tuple[dict[str, Any], TranscriptMessage | None]]:
        shown: list[tuple[dict[str, Any], TranscriptMessage | None]] = [(step.message, step.origin)]
        for call in step.calls:
            if call.result is None:
                yet = self._going_on and self._latest_step[step.origin.run_id] is step
                self._note(f"call {call.place} has no result{' yet' if yet else ''}")
                text = NO_RESULT_YET if yet else NO_RESULT
            else:
                text = call.result.text or EMPTY_RESULT
            shown.append(({"role": "tool", "tool_call_id": call.id, "content": text}, call.result))
        return shown

    def _note(self, repair: str) -> None:
        self._repairs.append(f"{self._where}: {repair}")


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
