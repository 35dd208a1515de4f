"""Transcripts of other systems, as rows of a session (contract §11). Pure.

- A message becomes the row that it would have become on the bus. Its form is found by itself.
- The id of a message is made of what it says and of the id before it: what was imported is stored once, also when the
  transcript has grown since. Instructions do not count, since they change from day to day.
- Ids, owners, runs and metadata of another system are not taken over.
- A run begins with each message of a human. Times are the transcript's own, where it has some; otherwise they go on
  from the message before. None is later than the import.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from nexus.core.models import LeftOut, Message, Role, Row, Why, new_row_id, parse_moment, role_of
from nexus.core.wire import MAX_DEPTH, compact, is_deeper
from nexus.services.history.forms import IMPORT, left_out_of, native
from nexus.services.history.parts import RESPONSES
from nexus.services.history.rows import recorded_row, row_of, storable
from nexus.services.history.tool_calls import given_arguments, read_tool_calls
from nexus.services.text.content import as_text

# Where a request or a response of each provider has its messages, who says what is no list there, and its instructions.
_LISTS: Final = {"messages": "user", "contents": "user", "input": "user", "output": "assistant"}
_INSTRUCTIONS: Final = ("system", "system_instruction", "systemInstruction", "instructions")
# Items of OpenAI's Responses API that have no role, beside those that `Role` knows.
_ITEMS: Final = ("_call", "_call_output")
_TIMES: Final = ("timestamp", "created_at", "created", "createTime", "date")
_STEP: Final = timedelta(milliseconds=1)
_EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SPACE: Final = re.compile(r"[ \t\r\n]*")


class Imported(NamedTuple):
    """A message of a transcript.

    Attributes:
        place: in the file, such as `message 3`.
        row: for the store; None where the message says nothing that is kept.
        said: its role and what it says, for people; `""` where it is not understood.
        repaired: what was changed in it.
        left_out: what of it no context shows.
    """

    place: str
    row: Row | None
    said: str
    repaired: Sequence[str] = ()
    left_out: Sequence[LeftOut] = ()


def messages_in(content: bytes) -> list[Any]:
    """The messages of a file: a JSON list, a request or a response of a provider, or several of these (JSON Lines).

    Raises:
        ValueError: it is no JSON; says where.
    """
    try:
        text = content.decode("utf-8-sig")
        values = [*_values_in(text)]
    except UnicodeDecodeError as fault:
        raise ValueError(f"not UTF-8 at byte {fault.start}") from None
    except json.JSONDecodeError as fault:
        raise ValueError(f"line {fault.lineno}: not JSON: {fault.msg} at column {fault.colno}") from None
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not values:
        raise ValueError("it is empty; a list of messages is needed, as JSON or JSON Lines")
    return [message for value in values for message in _messages_of(value)]


def _values_in(text: str) -> Iterator[Any]:
    # Not line by line: a text may hold what other programs take for a line end, and a value may take several lines.
    decoder, place = json.JSONDecoder(), _end_of_space(text, 0)
    while place < len(text):
        value, end = decoder.raw_decode(text, place)
        yield value
        place = _end_of_space(text, end)


def _end_of_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place


def _messages_of(value: Any) -> list[Any]:
    if isinstance(value, list):
        return [message for item in value for message in (_messages_of(item) if isinstance(item, dict) else [item])]
    if isinstance(value, dict) and value.get("type") == "constructor":
        # LangChain's `dumpd`.
        value = value.get("kwargs")
    if not isinstance(value, dict) or role_of(value):
        return [value]
    if isinstance(value.get("type"), str) and value["type"].endswith(_ITEMS):
        return [{"role": "assistant", "content": [value]}]
    system = [{"role": "system", "content": value[name]} for name in _INSTRUCTIONS if value.get(name)]
    if _has_list(value, RESPONSES):
        return [*system, {"role": "assistant", "content": value}]
    found = [message for name, speaker in _LISTS.items() for message in _of_speaker(value.get(name), speaker)]
    # Gemini's contents are the user's where they do not say.
    return [*system, *found] or [{"role": "user", **value} if _has_list(value, ["parts"]) else value]


def _of_speaker(value: Any, speaker: str) -> list[Any]:
    if isinstance(value, str):
        return [{"role": speaker, "content": value}]
    return _messages_of(value) if isinstance(value, list) else []


def _has_list(value: Mapping[str, Any], names: Sequence[str]) -> bool:
    return any(isinstance(value.get(name), list) for name in names)


def rows_of(messages: Sequence[Any], owner_key: str, session_id: str, now: datetime) -> Iterator[Imported]:
    """The messages as rows of the session, in their order; the last without a time is of `now`."""
    run_id, before = "", session_id
    moment = _start_of(messages, now) - _STEP
    for index, given in enumerate(messages):
        place = f"message {index + 1}"
        # What was not said has its moment too, so that none comes later than `now`.
        latest = now - _STEP * (len(messages) - 1 - index)
        moment = min(max(moment + _STEP, _time_of(given, now) or moment), latest)
        if not isinstance(given, Mapping) or not role_of(given) or is_deeper(given, MAX_DEPTH):
            yield Imported(place, None, "", left_out=[LeftOut("message", place, Why.UNREADABLE)])
            continue
        kept = storable(given)
        name = hashlib.sha256(compact([before, kept])).hexdigest()[:32]
        if not run_id or _is_input(kept):
            run_id = f"run_{name}"
        if role_of(kept) is not Role.SYSTEM:
            before = name
        names = {"id": f"msg_{name}", "run_id": run_id, "owner_key": owner_key, "timestamp": moment, "metadata": {}}
        message = Message.model_validate({**kept, **names})
        changed = [] if kept == given else ["half a character, or a number, that no store keeps"]
        yield _imported(message, session_id, place, changed)


def _imported(message: Message, session_id: str, place: str, changed: Sequence[str]) -> Imported:
    row = recorded_row(message, len(compact(message.content)))
    parts = native(row or row_of(message))
    calls = [call for part in parts for call in part["metadata"].get("tool_calls") or ()]
    named = [f"[{call.name}]" for call in read_tool_calls(calls)]
    role = row["role"] if row else message.role.value
    said = " ".join(filter(None, [role, *(as_text(part.get("content")) for part in parts), *named]))
    left_out = [entry for part in parts for entry in left_out_of(part, place)]
    if row is None:
        return Imported(place, None, said, left_out=left_out or [LeftOut("message", place, Why.EMPTY)])
    kept = {**row, "_id": new_row_id(), "session_id": session_id, "metadata": {**row["metadata"], "source": IMPORT}}
    return Imported(place, kept, said, [*changed, *_repairs(calls)], left_out)


def _repairs(calls: Sequence[Any]) -> Iterator[str]:
    for call in calls:
        given = given_arguments(call) if isinstance(call, Mapping) else None
        for read in read_tool_calls([call]):
            if given and not isinstance(given, Mapping) and read.raw_arguments != given:
                yield f"the arguments of {read.name} are no strict JSON object"


def _is_input(given: Mapping[str, Any]) -> bool:
    """Whether a person begins something: under a human's name come also results of tools, and what is added to them."""
    return all(part.get("role") == Role.HUMAN for part in native(given))


def _start_of(messages: Sequence[Any], now: datetime) -> datetime:
    """When the first message was said, as far as the later ones tell."""
    known = ((index, moment) for index, given in enumerate(messages) if (moment := _time_of(given, now)))
    index, moment = next(known, (len(messages) - 1, now))
    return moment - _STEP * index


def _time_of(given: Any, now: datetime) -> datetime | None:
    """When a message was said; None where it does not say, or says what cannot be."""
    content = given.get("content") if isinstance(given, Mapping) else None
    holders = [each for each in (given, content) if isinstance(each, Mapping)]
    times = (parse_moment(each.get(name)) for each in holders for name in _TIMES)
    return next((moment for moment in times if moment and _EARLIEST < moment <= now), None)
