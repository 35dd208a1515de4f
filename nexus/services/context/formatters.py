"""The blocks of the dialogue layout (CONTRACT §4.3 to §4.5). Pure: the same arguments give the same bytes.

Each formatter has a method that returns the text alone, under the name that the contract gives it, and `render`, which
returns the `Block` with what the manifest says of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from nexus.services.context.annotations import annotate, read_tool_calls
from nexus.services.context.blocks import Block
from nexus.services.context.bodies import NO_TEXT, body_of, parts_of
from nexus.services.context.clock import at_offset, parse_moment, parse_offset
from nexus.services.context.entries import read_rows
from nexus.services.context.escape import CountingEscape, canonical, escape
from nexus.services.context.memory import ReadRows, Utterance, merge, newest

_NO_CONVERSATIONS: Final = "(No previous conversations yet)"
_UNKNOWN_TIME: Final = "Unknown time"


@dataclass(frozen=True, slots=True)
class MemoryBlock:
    """`[SHARED_MEMORY]` and how many messages went into it.

    Attributes:
        merged: messages after merging, before the limit.
        shown: messages in the block.
        repaired: rows that had to be repaired or left out.
    """

    block: Block
    merged: int
    shown: int
    repaired: int


class MemoryFormatter:
    """`[SHARED_MEMORY]`: the recent conversation, one message a human input and one a run's answer."""

    @staticmethod
    def format_shared_memory(
        history: Sequence[Any],
        limit: int = 20,
        *,
        current_run_id: str = "",
        truncate_chars: int = 500,
        timezone_offset: Any = 0,
    ) -> str:
        """The text of the block. Arguments as for `render`."""
        return MemoryFormatter.render(
            history,
            limit,
            current_run_id=current_run_id,
            truncate_chars=truncate_chars,
            timezone_offset=timezone_offset,
        ).block.text

    @staticmethod
    def render(
        history: Sequence[Any],
        limit: int = 20,
        *,
        current_run_id: str = "",
        truncate_chars: int = 500,
        timezone_offset: Any = 0,
    ) -> MemoryBlock:
        """The block over stored rows in any order (CONTRACT §4.3). Never raises for a malformed row.

        Args:
            history: rows as `PersistenceService.get_history` returns them.
            limit: messages shown at most, counted after merging; the newest are kept; none for 0 or less.
            current_run_id: the run whose rows are left out.
            truncate_chars: the length to which a longer message is cut.
            timezone_offset: minutes west of UTC of the clock on which times are shown; read as for `[THIS_MOMENT]`.
        """
        past = newest(history, limit, current_run_id=current_run_id)
        shown = past.utterances[::-1]
        offset = parse_offset(timezone_offset) or 0
        lines = [f"[SHARED_MEMORY count={len(shown)}]", "Recent conversation memory:", ""]
        said = _lines_of(history, shown, truncate_chars, offset)
        lines += [text for text, _, _, _ in said]
        block = Block(
            tag="SHARED_MEMORY",
            role="user",
            text="\n".join(lines if shown else [*lines, _NO_CONVERSATIONS]),
            sources=tuple([entry.id for utterance in shown for entry in utterance.entries if entry.id]),
            truncated=sum([was_cut for _, was_cut, _, _ in said]),
            dropped=past.merged - len(shown),
            escaped=sum([marked for _, _, marked, _ in said]),
        )
        return MemoryBlock(block, merged=past.merged, shown=len(shown), repaired=past.repaired)

    @staticmethod
    def _merge_messages_by_run_id(messages: Sequence[Any]) -> list[dict[str, Any]]:
        """The rows merged by run, newest first: humans as they are, the AI rows of a run as one row (CONTRACT §4.3)."""
        entries, _ = read_rows(messages)
        return [_as_row(utterance) for utterance in merge(entries)]

    @staticmethod
    def _extract_tool_call_annotation(tool_calls: Any) -> str:
        """`[tool_use:web_search, query:…]` for calls in either stored form; `""` for none."""
        return annotate(read_tool_calls(tool_calls), escape)


# A message as it is shown, whether it was cut, how many places were marked, and what it is made of.
_Line = tuple[str, bool, int, Utterance]


def _lines_of(history: Sequence[Any], shown: Sequence[Utterance], truncate_chars: int, offset: int) -> list[_Line]:
    """The messages as they are shown, in this order."""
    # What was read once does not change, nor does what is made of it. What a line is made of goes with it, so that
    # nothing else takes its identity.
    known: dict[Any, _Line] | None = history.lines if isinstance(history, ReadRows) else None
    lines: dict[Any, _Line] = {}
    before = ""
    for said in shown:
        how = (id(said), before, truncate_chars, offset)
        lines[how] = (known and known.get(how)) or _line(said, truncate_chars, before, offset)
        before = said.entries[0].role
    if isinstance(history, ReadRows):
        history.lines = lines
    return [*lines.values()]


def _line(said: Utterance, truncate_chars: int, before: str, offset: int) -> _Line:
    text, was_cut, marked = body_of(said.entries, truncate_chars)
    if said.is_answer and before == "human":
        return f"  Nexus: {text}", was_cut, marked, said
    head = f"[{_shown_time(said.moment, offset)}] {'Nexus' if said.is_answer else 'Human'}: "
    return head + text, was_cut, marked, said


def _shown_time(moment: datetime | None, offset: int) -> str:
    if moment is None:
        return _UNKNOWN_TIME
    local = at_offset(moment, offset) if offset else moment
    # Not strftime, which does not pad the years before 1000; and in half the time of isoformat or an f-string.
    numbers = local.year, local.month, local.day, local.hour, local.minute
    return "%04d-%02d-%02d %02d:%02d" % numbers  # noqa: UP031  # see above


def _as_row(utterance: Utterance) -> dict[str, Any]:
    if not utterance.merged:
        return dict(utterance.entries[0].row)
    latest = next(entry for entry in reversed(utterance.entries) if entry.moment == utterance.moment)
    texts = [text for text, _ in parts_of(utterance.entries, CountingEscape())]
    return {
        "id": utterance.id,
        "run_id": utterance.run_id,
        "role": "ai",
        "content": "\n".join(texts) or NO_TEXT,
        "timestamp": latest.row.get("timestamp"),
        "metadata": {
            "source": "merged",
            "original_count": len(utterance.entries),
            "has_tool_calls": any(entry.tool_calls for entry in utterance.entries),
        },
    }


class FriendsInfoFormatter:
    """`[FRIENDS_INFO]`: what is known of the person."""

    @staticmethod
    def format_friends_info(user_profile: Any, default_profile: str = "") -> str:
        """The text of the block. Arguments as for `render`."""
        return FriendsInfoFormatter.render(user_profile, default_profile).text

    @staticmethod
    def render(user_profile: Any, default_profile: str = "") -> Block:
        """The block over a profile as stored (CONTRACT §4.4). Never raises.

        Args:
            user_profile: `{public_key, config_overrides, prompt_overrides, created_at}`; None and `{}` are no profile.
            default_profile: the profile text of people who have none of their own.
        """
        counted = CountingEscape()
        lines = ["[FRIENDS_INFO]", "About this friend:", "", *_known(user_profile, default_profile, counted)]
        return Block(tag="FRIENDS_INFO", role="user", text="\n".join(lines), escaped=counted.marked)


def _known(profile: Any, default_profile: str, escaped: CountingEscape) -> list[str]:
    known = profile if isinstance(profile, Mapping) else {}
    prompts = known.get("prompt_overrides")
    overrides = prompts if isinstance(prompts, Mapping) else {}
    for given in (overrides.get("friends_profile"), overrides.get("learning"), default_profile):
        # Canonical first: an invisible character at either end would keep the blanks behind it.
        if isinstance(given, str) and (text := canonical(given).strip()):
            return [escaped(text)]
    if not known:
        return ["(New friend, getting to know each other)"]
    since = parse_moment(known.get("created_at"))
    learning = "(Still learning about this friend's preferences)"
    return [f"Member since: {since.date().isoformat()}", learning] if since else [learning]


class MomentFormatter:
    """`[THIS_MOMENT]`: what is asked now, and when."""

    @staticmethod
    def format_this_moment(current_input: str, timestamp_utc: Any = "", timezone_offset: Any = 0) -> str:
        """The text of the block. Arguments as for `render`."""
        return MomentFormatter.render(current_input, timestamp_utc, timezone_offset).text

    @staticmethod
    def render(
        current_input: str, timestamp_utc: Any = "", timezone_offset: Any = 0, *, sources: tuple[str, ...] = ()
    ) -> Block:
        """The block (CONTRACT §4.5).

        Args:
            current_input: the text of the person.
            timestamp_utc: ISO 8601 text or datetime; unreadable or empty gives no `<current_time>`.
            timezone_offset: minutes west of UTC, number or text; unreadable or beyond 14 hours counts as 0.
            sources: ids of the messages that the input came in.
        """
        counted = CountingEscape()
        moment = parse_moment(timestamp_utc)
        lines = ["[THIS_MOMENT]"]
        if moment:
            local = at_offset(moment, parse_offset(timezone_offset) or 0)
            lines.append(f"<current_time>{local.replace(microsecond=0).isoformat(' ')}</current_time>")
        lines += ["<human_input>", counted(current_input), "</human_input>"]
        return Block(tag="THIS_MOMENT", role="user", text="\n".join(lines), sources=sources, escaped=counted.marked)
