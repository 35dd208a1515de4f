"""Versions of a message: which of two is the later, and whether one says what the other does not (contract §11). Pure.

A stored row may have been read in part (`nexus.core.ports.store`): what was not read is not compared.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from nexus.core.models import CONDENSED, HANDLE
from nexus.core.ports import Row
from nexus.core.ports.store import ARGUMENTS_LEFT_OUT, CALLS_LEFT_OUT, LONGEST_CONTENT, VALUE_LEFT_OUT
from nexus.core.ports.store import LEFT_OUT as LEFT_OUT_MARK
from nexus.services.history.forms import LEFT_OUT, RAW, UNKNOWN, success_of
from nexus.services.history.progress import PROGRESS, how_far
from nexus.services.history.rows import BEFORE_ALL, REVISION, is_whole_number
from nexus.services.history.tool_calls import read_tool_calls
from nexus.services.text.content import as_text, compact_json

_MIDDLE: Final = re.compile(re.escape(LEFT_OUT_MARK).replace(r"\{\}", "([0-9]+)"))


def grown(row: Row, stored: Row) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """How a stored message becomes its later version: fields to change, and those that must not have changed meanwhile.

    None where this row is no later version: one with a higher `metadata.revision`, or where both have the same or none,
    one that begins with the stored one and has more text or more calls; of two of a call's progress the one that is
    further on.
    """
    given, known = row["metadata"], stored.get("metadata")
    if row["role"] != stored.get("role") or not isinstance(known, dict):
        return None
    new, old = _revision(given), _revision(known)
    if PROGRESS in given:
        return _progressed(row, stored)
    is_later = new > old if new != old else _goes_on(row, stored)
    if not is_later:
        return None
    # How the stand-in ended says nothing of the message.
    silent = _silent(given) - ({"status", "execution_success"} if old == BEFORE_ALL else set())
    changes = {name: value for name, value in given.items() if name not in silent}
    # They were about the earlier version.
    changes |= {name: None for name in (RAW, LEFT_OUT, CONDENSED, HANDLE) if name in known and name not in changes}
    if new != old:
        changes[REVISION], seen = new, {f"metadata.{REVISION}": known.get(REVISION)}
    else:
        seen = {"content": row["content"][: _whole_length(stored["content"])]}
        is_read = not _calls_unread(known) and all(call[2] is not None for call in _calls_of(known))
        seen |= {"metadata.tool_calls": known.get("tool_calls")} if is_read else {}
    return {"content": row["content"], **{f"metadata.{name}": value for name, value in changes.items()}}, seen


def _revision(metadata: Mapping[str, Any]) -> int:
    return int(metadata[REVISION]) if is_whole_number(metadata.get(REVISION)) else 0


def _progressed(row: Row, stored: Row) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """As `grown`, for the progress of a call."""
    given, known = row["metadata"], stored["metadata"]
    ways = [(_revision(each), how_far(each.get(PROGRESS))) for each in (given, known)]
    if ways[0] <= ways[1]:
        return None
    changed = (PROGRESS, REVISION)
    return (
        {"timestamp": row["timestamp"], **{f"metadata.{name}": given[name] for name in changed}},
        {f"metadata.{name}": known.get(name) for name in changed},
    )


def _goes_on(row: Row, stored: Row) -> bool:
    """Whether the row has all that the stored one has, as far as it was read, and more."""
    text, before = row["content"], stored.get("content")
    if not isinstance(text, str) or not isinstance(before, str):
        return False
    length, half = _whole_length(before), LONGEST_CONTENT // 2
    begun = text[:length]
    is_same = (
        begun == before if length == len(before) else (begun[:half], begun[-half:]) == (before[:half], before[-half:])
    )
    calls, earlier = (_calls_of(each["metadata"]) for each in (row, stored))
    is_more = len(text) > length or len(calls) > len(earlier) + _calls_unread(stored["metadata"])
    return is_same and is_more and (not calls or [*map(_is_same_call, calls, earlier)] == [True] * len(earlier))


def is_another(row: Row, stored: Row) -> bool:
    """Whether a row that is no later version of the stored one says what that does not say: it must not be lost.

    The same said in another form, or read in part, is not another.
    """
    known = stored.get("metadata")
    # What another writer stored in a form of its own is not compared; an earlier revision has been replaced.
    if not isinstance(known, dict) or _revision(row["metadata"]) < _revision(known):
        return False
    if not _begins_with(stored.get("content"), row["content"]):
        return True
    stored_calls = _calls_of(known)
    whole, in_part = {*stored_calls}, {call[:2] for call in stored_calls if call[2] is None}
    new = [call for call in _calls_of(row["metadata"]) if call not in whole and call[:2] not in in_part]
    return len(new) > _calls_unread(known)


def _begins_with(content: Any, beginning: Any) -> bool:
    if content == beginning or (not isinstance(beginning, str) and _is_left_out(content, VALUE_LEFT_OUT)):
        return True
    # Objects are recorded as text in a large message. Of a long text the middle was not read.
    half = LONGEST_CONTENT // 2
    return as_text(content)[:half].startswith(as_text(beginning)[:half])


# Id, name and arguments as JSON; None for arguments that were not read.
_CallKey = tuple[str, str, str | None]


def _calls_of(metadata: Mapping[str, Any]) -> list[_CallKey]:
    """What the calls of a row say; other writers have anything there."""
    return [
        (
            call.id,
            call.name,
            None if _is_left_out(call.raw_arguments, ARGUMENTS_LEFT_OUT) else compact_json(call.arguments),
        )
        for call in read_tool_calls(metadata.get("tool_calls"))
    ]


def _calls_unread(metadata: Mapping[str, Any]) -> int:
    """How many calls of a stored row were not read."""
    count = metadata.get(CALLS_LEFT_OUT)
    return count if isinstance(count, int) else 0


def _is_same_call(call: _CallKey, stored: _CallKey) -> bool:
    return call == stored or (stored[2] is None and call[:2] == stored[:2])


def _is_left_out(value: Any, mark: str) -> bool:
    """Whether a value is what stands for one that was not read."""
    before, after = mark.format("\0").split("\0")
    return isinstance(value, str) and value.startswith(before) and value.endswith(after)


def _whole_length(content: str) -> int:
    """The characters of a stored content, which may have been read without its middle."""
    half = LONGEST_CONTENT // 2
    cut = _MIDDLE.fullmatch(content[half:-half]) if len(content) > LONGEST_CONTENT else None
    return LONGEST_CONTENT + int(cut[1]) if cut else len(content)


def _silent(metadata: Mapping[str, Any]) -> set[str]:
    """Of a later version's metadata, what says nothing: calls, tool and status need not be repeated."""
    silent = {name for name, value in metadata.items() if value in (None, "", UNKNOWN, [])}
    silent |= {"has_tool_calls"} if "tool_calls" in silent else set()
    return silent | ({"execution_success"} if success_of(metadata) is None else set())
