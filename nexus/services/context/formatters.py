"""The blocks of the dialogue layout (CONTRACT §4.3 to §4.5). Pure: the same arguments give the same bytes.

Each formatter has a method that returns the text alone, under the name that the contract gives it, and `render`, which
returns the `Block` with what the manifest says of it.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain
from operator import eq
from typing import Any, Final, NamedTuple

from nexus.services.context.annotations import annotate_stored
from nexus.services.context.blocks import Block
from nexus.services.context.bodies import NO_TEXT, Body, body_of, parts_of
from nexus.services.context.clock import at_offset, parse_moment, parse_offset
from nexus.services.context.entries import read_rows
from nexus.services.context.escape import CountingEscape, are_plain, canonical, escape
from nexus.services.context.memory import ReadRows, Utterance, merge, newest

_NO_CONVERSATIONS: Final = "(No previous conversations yet)"
_UNKNOWN_TIME: Final = "Unknown time"
_FOUR_DIGITS: Final = 1_000
_TWO_DIGITS: Final = [f"{number:02d}" for number in range(60)]


class MemoryBlock(NamedTuple):
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
        _, texts, cut, marked, sources = _lines_of(history, shown, truncate_chars, parse_offset(timezone_offset) or 0)
        head = f"[SHARED_MEMORY count={len(shown)}]", "Recent conversation memory:", ""
        block = Block(
            tag="SHARED_MEMORY",
            role="user",
            text="\n".join([*head, *texts] if shown else [*head, _NO_CONVERSATIONS]),
            sources=tuple(chain.from_iterable(sources)),
            truncated=sum(cut),
            dropped=past.merged - len(shown),
            escaped=sum(marked),
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
        return annotate_stored(tool_calls, escape)


class _Lines(NamedTuple):
    """Messages as they are shown, oldest first: each has one place in all of these.

    Attributes:
        said: the messages.
        texts: what is shown of each.
        cut: whether that is not all of it.
        marked: how many places in it were marked.
        sources: the ids of its rows.
    """

    said: list[Utterance]
    texts: list[str]
    cut: list[bool]
    marked: list[int]
    sources: list[list[str]]


def _lines_of(history: Sequence[Any], shown: Sequence[Utterance], truncate_chars: int, offset: int) -> _Lines:
    """The messages as they are shown, in this order."""
    shift = timedelta(minutes=-offset)
    if not isinstance(history, ReadRows):
        return _continued(_Lines([], [], [], [], []), shown, truncate_chars, shift)
    # What was read once does not change, nor does what is made of it: the next build of the owner shows the same, but
    # for a message or two at either end.
    way = truncate_chars, offset
    known: _Lines | None = history.lines.get(way)
    still = _still(known, shown) if known else _Lines([], [], [], [], [])
    if still.said and shown[0].is_answer:
        # It may have stood behind a question, where it has no time of its own.
        still.texts[0], _, _ = _line(shown[0], truncate_chars, shift, asked=False)
    lines = _continued(still, shown, truncate_chars, shift)
    history.lines = {way: lines}
    return lines


def _still(known: _Lines, shown: Sequence[Utterance]) -> _Lines:
    """Those of the lines that `shown` begins with."""
    start = known.said.index(shown[0]) if shown and shown[0] in known.said else len(known.said)
    same = [*map(eq, known.said[start:], shown)]
    end = start + (same.index(False) if False in same else len(same))
    return _Lines._make([kept[start:end] for kept in known])


def _continued(lines: _Lines, shown: Sequence[Utterance], truncate_chars: int, shift: timedelta) -> _Lines:
    """These lines, and after them those of the other messages."""
    said, texts, cut, marked, sources = lines
    asked = bool(said) and not said[-1].is_answer
    more = shown[len(said) :]
    # Of what is cut nobody needs to look at all.
    plain = are_plain([each.text for one in more for each in one.entries if len(each.text) <= truncate_chars])
    for each in more:
        entries = each.entries
        text, was_cut, places = _line(each, truncate_chars, shift, asked=asked, plain=plain)
        texts.append(text)
        cut.append(was_cut)
        marked.append(places)
        # Of most there is one, for which a comprehension takes as long as all else here.
        one = entries[0].id if len(entries) == 1 else ""
        sources.append([one] if one else [entry.id for entry in entries if entry.id])
        asked = not each.is_answer
    said += more
    return lines


def _line(said: Utterance, truncate_chars: int, shift: timedelta, *, asked: bool, plain: bool = False) -> Body:
    """What is shown of a message, on a clock that is shifted from UTC; `asked` by what was said before it."""
    entries, is_answer = said.entries, said.is_answer
    text, was_cut, marked = body_of(entries, truncate_chars, plain=plain)
    if is_answer and asked:
        return f"  Nexus: {text}", was_cut, marked
    moment = entries[0].moment if len(entries) == 1 else said.moment
    return f"[{_shown_time(moment, shift)}] {'Nexus' if is_answer else 'Human'}: {text}", was_cut, marked


def _shown_time(moment: datetime | None, shift: timedelta) -> str:
    if moment is None:
        return _UNKNOWN_TIME
    try:
        # In a third of the time that another zone takes.
        local = moment + shift
    except OverflowError:
        local = moment
    # Not strftime, which does not pad the years before 1000; and in half the time in which numbers are formatted.
    two, year = _TWO_DIGITS, local.year
    shown = year if year >= _FOUR_DIGITS else f"{year:04d}"
    return f"{shown}-{two[local.month]}-{two[local.day]} {two[local.hour]}:{two[local.minute]}"


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
            offset = parse_offset(timezone_offset)
            local = at_offset(moment, offset) if offset else moment
            lines.append(f"<current_time>{local.isoformat(' ', 'seconds')}</current_time>")
        lines += ["<human_input>", counted(current_input), "</human_input>"]
        return Block(tag="THIS_MOMENT", role="user", text="\n".join(lines), sources=sources, escaped=counted.marked)
