"""Transcripts of other systems, as rows of a session (contract §11). Pure.

- A message becomes the row that it would have become on the bus, so that there is one way in.
- Ids are made of a message's place and content: what was imported before is stored once, also when the transcript has
  grown since.
- A run begins with each message of a human. Times are the transcript's own, where it has some; otherwise they go on
  from the message before.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, get_args

from pydantic import ValidationError

from nexus.core.models import LeftOut, Message, Role, Row, Why, new_row_id, parse_moment, role_of
from nexus.core.wire import compact, explain
from nexus.services.history.forms import left_out_of, native
from nexus.services.history.rows import recorded_row
from nexus.services.history.tool_calls import given_arguments, read_tool_calls
from nexus.services.text.content import as_text

Source = Literal["openai", "anthropic", "gemini", "langchain"]
SOURCES: Final = get_args(Source)

# Where a request or a response of each provider has its messages, and its instructions.
_LISTS: Final = ("messages", "contents", "input", "output")
_INSTRUCTIONS: Final = ("system", "system_instruction", "systemInstruction", "instructions")
_RESPONSES: Final = ("choices", "candidates")
_TIMES: Final = ("timestamp", "created_at", "created", "createTime", "date")
_STEP: Final = timedelta(milliseconds=1)


class Imported(NamedTuple):
    """A message of a transcript.

    Attributes:
        place: in the file, such as `message 3`.
        row: for the store; None where the message says nothing that is kept.
        said: its role and the beginning of its text, for people.
        repaired: what was changed in it.
        left_out: what of it no context shows.
    """

    place: str
    row: Row | None
    said: str
    repaired: Sequence[str] = ()
    left_out: Sequence[LeftOut] = ()


def messages_in(content: bytes) -> list[Any]:
    """The messages of a file: a JSON list, a request or a response of a provider, or one of these a line (JSON Lines).

    Raises:
        ValueError: it is none of these; says where and what is needed.
    """
    text = content.decode("utf-8-sig")
    try:
        return _messages_of(json.loads(text))
    except json.JSONDecodeError as fault:
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        if len(lines) < 2:  # noqa: PLR2004  # JSON Lines have several
            raise ValueError(f"line {fault.lineno}: not JSON: {fault.msg}") from None
    messages = []
    for number, line in lines:
        try:
            messages += _messages_of(json.loads(line))
        except json.JSONDecodeError as fault:
            raise ValueError(f"line {number}: not JSON: {fault.msg}") from None
    return messages


def _messages_of(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    if not isinstance(value, dict):
        raise ValueError("a list of messages, or an object with one, is needed")  # a fault of the file
    if role_of(value) or not any(isinstance(value.get(name), list) for name in (*_LISTS, *_RESPONSES)):
        return [value]
    system = [{"role": "system", "content": value[name]} for name in _INSTRUCTIONS if value.get(name)]
    if any(isinstance(value.get(name), list) for name in _RESPONSES):
        return [*system, {"role": "assistant", "content": value}]
    return [*system, *(item for name in _LISTS if isinstance(value.get(name), list) for item in value[name])]


def rows_of(messages: Sequence[Any], owner_key: str, session_id: str, now: datetime) -> Iterator[Imported]:
    """The messages as rows of the session, in their order; the last without a time is of `now`."""
    run_id = ""
    moment = now - _STEP * len(messages)
    for index, given in enumerate(messages):
        place = f"message {index + 1}"
        role = _role_in(given)
        if role is None:
            yield Imported(place, None, "?", left_out=[LeftOut("message", place, Why.UNREADABLE)])
            continue
        moment = max(moment + _STEP, _time_of(given) or moment + _STEP)
        name = hashlib.sha256(compact([session_id, index, given])).hexdigest()[:32]
        if not run_id or _is_input(role, given):
            run_id = f"run_{name}"
        yield _imported(
            _with_role(given, role),
            {"id": f"msg_{name}", "run_id": run_id, "owner_key": owner_key, "timestamp": moment},
            session_id,
            place,
        )


def _imported(given: Mapping[str, Any], names: Mapping[str, Any], session_id: str, place: str) -> Imported:
    metadata = given.get("metadata")
    fields = {**given, **names, "metadata": metadata if isinstance(metadata, dict) else {}}
    try:
        message = Message.model_validate(fields)
    except ValidationError as error:
        raise ValueError(f"{place}: {explain(error)}") from None
    row = recorded_row(message, len(compact(message.content)))
    parts = native(row) if row else []
    said = [as_text(part.get("content")) for part in parts]
    calls = [call for part in parts for call in part["metadata"].get("tool_calls") or ()]
    left_out = [entry for part in native({**fields, **row} if row else fields) for entry in left_out_of(part, place)]
    if row is None:
        return Imported(place, None, message.role.value, left_out=left_out or [LeftOut("message", place, Why.EMPTY)])
    named = [f"[{call.name}]" for call in read_tool_calls(calls)]
    kept = {**row, "_id": new_row_id(), "session_id": session_id, "metadata": {**row["metadata"], "source": "import"}}
    shown = " ".join(filter(None, [message.role.value, *said, *named]))
    return Imported(place, kept, shown, [*_repairs(calls)], left_out)


def _repairs(calls: Sequence[Any]) -> Iterator[str]:
    for call in calls:
        given = given_arguments(call) if isinstance(call, Mapping) else None
        for read in read_tool_calls([call]):
            if isinstance(given, str) and given.strip() and read.raw_arguments != given:
                yield f"the arguments of {read.name} are no strict JSON object"


def _role_in(given: Any) -> Role | None:
    if not isinstance(given, Mapping):
        return None
    if role := role_of(given):
        return role
    # Gemini's contents are the user's where they do not say, and whole responses the model's.
    if isinstance(given.get("parts"), list):
        return Role.HUMAN
    return Role.AI if any(isinstance(given.get(name), list) for name in (*_RESPONSES, "output")) else None


def _is_input(role: Role, given: Mapping[str, Any]) -> bool:
    """Whether a person speaks: results of tools may come under a human's name."""
    return role is Role.HUMAN and any(part.get("role") == Role.HUMAN for part in native(_with_role(given, role)))


def _with_role(given: Mapping[str, Any], role: Role) -> Mapping[str, Any]:
    # An item of OpenAI's Responses API is known by its having none.
    return given if role_of(given) else {**given, "role": role.value}


def _time_of(given: Mapping[str, Any]) -> datetime | None:
    times = (parse_moment(given.get(name)) for name in _TIMES)
    return next(filter(None, times), None)
