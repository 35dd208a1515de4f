"""Layout `dialogue`: five messages, from the identity to this moment (contract §4). Pure.

The formatters have a method that returns the text alone, under the name that the contract gives it, and `render`, which
returns the `Block` with its entry for the manifest.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from nexus.core.metrics import Part
from nexus.core.models import DEFAULT_SESSION, LeftOut, is_internal, parse_moment
from nexus.services.context.blocks import Assembled, Block, Dropped, assemble, source_of
from nexus.services.context.bounds import Bounds
from nexus.services.context.budget import Budget
from nexus.services.context.fitting import Growing, Kept, fit, kept_aside, whole_blocks
from nexus.services.context.formats.rules import RULES
from nexus.services.context.formats.tools import first_tools
from nexus.services.context.gather import Build, DialogueSources
from nexus.services.context.person_blocks import NO_FACTS, KnownFacts, aside_blocks, mood_block
from nexus.services.context.prompts import describe_tools, identity_block
from nexus.services.context.run_prefix import RunPrefix
from nexus.services.history.forms import not_understood
from nexus.services.history.merge import Utterance, merge, newest, read_dialogue
from nexus.services.history.messages import HistoryMessage, in_order, read_messages
from nexus.services.history.rows import at_offset, count_others, parse_offset, text_or_empty
from nexus.services.history.tool_calls import annotate, annotate_results, read_tool_calls
from nexus.services.history.transcript import EMPTY_RESULT, answers_of
from nexus.services.text.cuts import cut
from nexus.services.text.escape import CountingEscape, canonical, escape
from nexus.services.text.tokens import Measure

# The next build of the same owner shares the identity and the tools; the memory moves on. Where the tools may not be
# all there, it shares the identity alone.
_STABLE: Final = 2
_STABLE_WITHOUT_TOOLS: Final = 1
_FACTS_OF_SHARE: Final = "window: facts take more than their share (memory.budget.facts); the latest are shown"
_NO_CONVERSATIONS: Final = "(No previous conversations yet)"
_UNKNOWN_TIME: Final = "Unknown time"
_NO_TEXT: Final = "[工具调用结果]"


@dataclass(frozen=True, slots=True)
class DialogueInput:
    """The content of the five messages.

    Attributes:
        tools: definitions, in the order in which they are shown.
        tools_complete: there are no others.
        history: stored rows, in any order.
        timestamp_utc: the run's own time, read or as it was sent; `""` for none.
        timezone_offset: minutes west of UTC.
        input_id: id of the input's message.
        show_tool_results: the memory has the beginnings of what tools gave, as far as their rows are in the history.
        cut: tags of the blocks of whose text only the beginning is given.
        facts: what is known of the person beside the profile.
        aside: `[CONSTRAINTS]`, `[RECALL]` and `[MOOD]`, as far as there are any.
    """

    tools: Sequence[Mapping[str, Any]]
    history: Sequence[Any]
    user_profile: Mapping[str, Any] | None
    current_input: str
    current_run_id: str = ""
    timestamp_utc: str | datetime = ""
    timezone_offset: int = 0
    history_size: int = 20
    truncate_chars: int = 500
    show_tool_results: bool = False
    default_profile: str = ""
    tools_complete: bool = True
    input_id: str = ""
    cut: frozenset[str] = frozenset()
    facts: KnownFacts = NO_FACTS
    aside: Sequence[Block] = ()


def dialogue_prefix(
    build: Build, gathered: DialogueSources, tools: list[dict[str, Any]], degraded: list[str]
) -> RunPrefix:
    """The messages of the layout, of what was read for a build; `degraded` names the missing parts."""
    request, settings = build.request, build.settings
    earlier = newest(gathered.rows, gathered.history_size, current_run_id=request.run_id) if settings.mood else None
    said = [entry for each in earlier.utterances for entry in each.entries] if earlier else None
    given = DialogueInput(
        tools=first_tools(tools, RULES[request.form])[0],
        history=gathered.rows,
        user_profile=gathered.profile,
        current_input=request.current_input,
        current_run_id=request.run_id,
        timestamp_utc=request.moment or "",
        timezone_offset=request.timezone_offset,
        history_size=gathered.history_size,
        truncate_chars=settings.truncate_chars,
        show_tool_results=settings.show_tool_results,
        default_profile=settings.default_profile,
        tools_complete=Part.TOOLS not in degraded,
        input_id=request.human.id,
        facts=gathered.facts,
        aside=aside_blocks(
            [*gathered.constraints, *request.constraints],
            gathered.recall.block if gathered.recall else None,
            None if said is None else mood_block(request, said),
        ),
    )
    assembled = fit_dialogue(given, build.budget_with(tools))
    assembled = gathered.recall.counted(assembled) if gathered.recall else assembled
    return RunPrefix(
        assembled.messages,
        assembled.manifest,
        tools,
        degraded,
        [*gathered.notes, *assembled.repairs],
        assembled.left_out,
        tuple(gathered.constraints),
    )


def fit_dialogue(given: DialogueInput, budget: Budget) -> Assembled:
    """The messages within the budget, as far as leaving out older messages of the memory, or a block, goes."""
    given = _bounded(given, budget.bounds) if budget.bounds else given

    def memory(measure: Measure, kept: int) -> int:
        return measure.text(_memory(replace(given, history_size=kept)).block.text)

    def assembled(kept: Kept, measure: Measure | None) -> Assembled:
        shorter = replace(
            given,
            history_size=kept.items["history"],
            facts=given.facts.latest(kept.items["facts"]),
            aside=kept_aside(given.aside, kept),
        )
        return assemble_dialogue(shorter, measure, kept.whole)

    blocks = {
        "history": Growing(given.history_size, memory),
        "facts": Growing(
            len(given.facts.shown), lambda measure, kept: measure.text(given.facts.latest(kept).text) if kept else 0
        ),
        **whole_blocks(given.aside),
    }
    return fit(budget, blocks, assembled)


def _memory(given: DialogueInput) -> "MemoryBlock":
    return MemoryFormatter.render(
        given.history,
        given.history_size,
        current_run_id=given.current_run_id,
        truncate_chars=given.truncate_chars,
        timezone_offset=given.timezone_offset,
        show_tool_results=given.show_tool_results,
    )


def _bounded(given: DialogueInput, bounds: Bounds) -> DialogueInput:
    """What is given, with no more of the profile's text than its share allows."""
    known = given.user_profile if isinstance(given.user_profile, Mapping) else {}
    text = _profile_text(known, given.default_profile)

    def with_text(shown: str) -> dict[str, Any]:
        return {**known, "prompt_overrides": {"friends_profile": shown}}

    def render(shown: str) -> str:
        return FriendsInfoFormatter.render(with_text(shown)).text

    if not text or (shown := bounds.cut("FRIENDS_INFO", text, render)) == text:
        return given
    return replace(given, user_profile=with_text(shown), cut=frozenset({"FRIENDS_INFO"}))


def assemble_dialogue(given: DialogueInput, measure: Measure | None = None, whole: Dropped = None) -> Assembled:
    """The five messages, and those of blocks that not every context has; with a measure the manifest has tokens."""
    memory = _memory(given)
    sections = [
        identity_block(),
        _capabilities(given.tools),
        memory.block,
        FriendsInfoFormatter.render(given.user_profile, given.default_profile, given.facts),
        *given.aside,
        MomentFormatter.render(
            given.current_input, given.timestamp_utc, given.timezone_offset, sources=source_of(given.input_id)
        ),
    ]
    return assemble(
        "dialogue",
        sections,
        rows={
            "fetched": count_others(given.history, given.current_run_id),
            "merged": memory.total,
            "shown": memory.shown,
            "repaired": memory.repaired,
        },
        stable=_STABLE if given.tools_complete else _STABLE_WITHOUT_TOOLS,
        repairs=[_FACTS_OF_SHARE] if given.facts.dropped else [],
        left_out=memory.left_out,
        whole=whole,
        cut=given.cut,
        measure=measure,
    )


def _capabilities(tools: Sequence[Mapping[str, Any]]) -> Block:
    counting = CountingEscape()
    return Block("CAPABILITIES", "user", describe_tools(tools, counting), escaped=counting.marked)


@dataclass(frozen=True, slots=True)
class MemoryBlock:
    """`[SHARED_MEMORY]` and the numbers of its messages.

    Attributes:
        total: messages after merging, before the limit.
        shown: messages in the block.
        repaired: rows that had to be repaired or left out.
        left_out: what the shown messages say besides, and rows of which nothing is understood.
    """

    block: Block
    total: int
    shown: int
    repaired: int
    left_out: Sequence[LeftOut] = ()


class MemoryFormatter:
    """`[SHARED_MEMORY]`: the recent conversation, one message a human input and one a run's answer."""

    @staticmethod
    def format_shared_memory(history: Sequence[Any], limit: int = 20, **options: Any) -> str:
        """The text of the block. Arguments as for `render`."""
        return MemoryFormatter.render(history, limit, **options).block.text

    @staticmethod
    def render(
        history: Sequence[Any],
        limit: int = 20,
        *,
        current_run_id: str = "",
        truncate_chars: int = 500,
        timezone_offset: Any = 0,
        show_tool_results: bool = False,
    ) -> MemoryBlock:
        """The block over stored rows in any order. Never raises for a malformed row.

        Args:
            history: rows as `PersistenceService.get_history` returns them.
            limit: the newest messages that are shown, counted after merging; none for 0 or less.
            current_run_id: the run whose rows are left out.
            truncate_chars: the length to which a longer message is cut.
            timezone_offset: of the clock on which times are shown; read as for `[THIS_MOMENT]`.
            show_tool_results: a line behind the calls of a message has the beginnings of their results.
        """
        past = newest(history, limit, current_run_id=current_run_id)
        shown = past.utterances[::-1]
        offset = parse_offset(timezone_offset) or 0
        counting = CountingEscape()
        results = _results(history, current_run_id) if show_tool_results else {}
        lines, truncated, after_human = [], 0, False
        for message in shown:
            text, was_cut = _body(message.entries, truncate_chars, counting, results)
            lines.append(f"{_line_head(message, offset, after_human=after_human)}{text}")
            truncated += was_cut
            after_human = not message.is_answer
        head = f"[SHARED_MEMORY count={len(shown)}]\nRecent conversation memory:\n\n"
        block = Block(
            tag="SHARED_MEMORY",
            role="user",
            text=head + ("\n".join(lines) if shown else _NO_CONVERSATIONS),
            sources=tuple(entry.source for message in shown for entry in message.entries if entry.source),
            truncated=truncated,
            dropped=past.total - len(shown),
            escaped=counting.marked,
        )
        left_out = [each for message in shown for entry in message.entries for each in entry.left_out]
        left_out += not_understood(history)
        return MemoryBlock(block, past.total, len(shown), past.repaired, left_out)

    @staticmethod
    def _merge_messages_by_run_id(messages: Sequence[Any]) -> list[dict[str, Any]]:
        """The rows merged by run, newest first: humans as they are, the AI rows of a run as one row (contract §4.3)."""
        return [_as_row(message) for message in merge(read_dialogue(messages)[0])]

    @staticmethod
    def _extract_tool_call_annotation(tool_calls: Any) -> str:
        """`[tool_use:web_search, query:…]` for calls in either stored form; `""` for none."""
        return annotate(read_tool_calls(tool_calls), escape)


class FriendsInfoFormatter:
    """`[FRIENDS_INFO]`: the profile of the person, and facts."""

    @staticmethod
    def format_friends_info(user_profile: Any, default_profile: str = "") -> str:
        """The text of the block. Arguments as for `render`."""
        return FriendsInfoFormatter.render(user_profile, default_profile).text

    @staticmethod
    def render(user_profile: Any, default_profile: str = "", facts: KnownFacts = NO_FACTS) -> Block:
        """The block over a profile as stored (contract §4.4), and facts. Never raises.

        Args:
            user_profile: `{public_key, config_overrides, prompt_overrides, created_at}`; None and `{}` are no profile.
            default_profile: the profile text of people without one of their own.
            facts: what is shown behind the profile.
        """
        counted = CountingEscape()
        lines = ["[FRIENDS_INFO]", "About this friend:", "", *_known(user_profile, default_profile, counted)]
        lines += ["", facts.text] if facts.shown else []
        return Block(
            tag="FRIENDS_INFO",
            role="user",
            text="\n".join(lines),
            sources=facts.sources,
            dropped=facts.dropped,
            escaped=counted.marked + facts.escaped,
        )


class MomentFormatter:
    """`[THIS_MOMENT]`: the current input and its time."""

    @staticmethod
    def format_this_moment(current_input: str, timestamp_utc: Any = "", timezone_offset: Any = 0) -> str:
        """The text of the block. Arguments as for `render`."""
        return MomentFormatter.render(current_input, timestamp_utc, timezone_offset).text

    @staticmethod
    def render(
        current_input: str, timestamp_utc: Any = "", timezone_offset: Any = 0, *, sources: tuple[str, ...] = ()
    ) -> Block:
        """The block (contract §4.5).

        Args:
            current_input: the person's text.
            timestamp_utc: ISO 8601 text or datetime; unreadable or empty gives no `<current_time>`.
            timezone_offset: minutes west of UTC, number or text; unreadable or beyond 14 hours counts as 0.
            sources: ids of the input's messages.
        """
        counted = CountingEscape()
        moment = parse_moment(timestamp_utc)
        lines = ["[THIS_MOMENT]"]
        if moment:
            local = at_offset(moment, parse_offset(timezone_offset) or 0)
            lines.append(f"<current_time>{local.isoformat(' ', 'seconds')}</current_time>")
        lines += ["<human_input>", counted(current_input), "</human_input>"]
        return Block(tag="THIS_MOMENT", role="user", text="\n".join(lines), sources=sources, escaped=counted.marked)


def _known(profile: Any, default_profile: str, escaped: CountingEscape) -> list[str]:
    known = profile if isinstance(profile, Mapping) else {}
    if text := _profile_text(known, default_profile):
        return [escaped(text)]
    if not known:
        return ["(New friend, getting to know each other)"]
    since = parse_moment(known.get("created_at"))
    learning = "(Still learning about this friend's preferences)"
    return [f"Member since: {since.date().isoformat()}", learning] if since else [learning]


def _profile_text(profile: Mapping[str, Any], default_profile: str) -> str:
    """What is written of the person; `""` for nothing."""
    prompts = profile.get("prompt_overrides")
    overrides = prompts if isinstance(prompts, Mapping) else {}
    for given in (overrides.get("friends_profile"), overrides.get("learning"), default_profile):
        # Canonical first: an invisible character at either end would keep the blanks behind it.
        if isinstance(given, str) and (text := canonical(given).strip()):
            return text
    return ""


def _line_head(message: Utterance, minutes_west: int, *, after_human: bool) -> str:
    if message.is_answer and after_human:
        return "  Nexus: "
    # Not strftime, which does not pad the years before 1000. To the minute, without the offset.
    time = at_offset(message.moment, minutes_west).isoformat(" ")[:16] if message.moment else _UNKNOWN_TIME
    return f"[{time}] {'Nexus' if message.is_answer else 'Human'}: "


# Of the calls of a message with this rank, the tools and texts of those that have a result, or are reported on.
_Results = Mapping[int, list[tuple[str, str]]]


def _results(history: Sequence[Any], current_run_id: str) -> _Results:
    """What came of calls, each result matched to its call as in a session's messages."""
    sessions: defaultdict[str, list[HistoryMessage]] = defaultdict(list)
    for item in read_messages(history):
        is_current = current_run_id != "" and item.run_id == current_run_id
        if not is_current and not is_internal(item.metadata):
            sessions[text_or_empty(item.row.get("session_id")) or DEFAULT_SESSION].append(item)
    found: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
    for items in map(in_order, sessions.values()):
        calls = {place: iter(item.calls) for place, item in enumerate(items)}
        for place, answers in answers_of(items):
            # The rest of very many calls comes later.
            answered = zip(answers, calls[place], strict=False)
            found[items[place].rank] += [
                (call.name, _outcome(items[answer])) for answer, call in answered if answer is not None
            ]
    return found


def _outcome(item: HistoryMessage) -> str:
    if item.state:
        return item.text[1:-1]
    if item.success is False:
        return f"failed: {item.text}" if item.text.strip() else "failed"
    return item.text if item.text.strip() else EMPTY_RESULT


def _body(entries: Sequence[HistoryMessage], limit: int, escape: CountingEscape, results: _Results) -> tuple[str, bool]:
    """The shown text of a message of these rows, `limit` characters before escaping at most; whether it was cut."""
    texts, annotations = _parts_of(entries, escape, results)
    if not texts and not annotations:
        return (_NO_TEXT if entries[0].role == "assistant" else ""), False
    shortened, was_cut = cut(texts, sum([len(annotation) + 1 for _, annotation in annotations]), limit)
    return _in_order(shortened, annotations, lambda together: _escaped_together(together, escape)), was_cut


def _in_order(
    texts: Sequence[str], annotations: Sequence[tuple[int, str]], joined: Callable[[Sequence[str]], Sequence[str]]
) -> str:
    lines: list[str] = []
    start = 0
    for end, annotation in annotations:
        lines += [*joined(texts[start:end]), annotation]
        start = end
    return "\n".join([*lines, *joined(texts[start:])])


def _escaped_together(texts: Sequence[str], escape: CountingEscape) -> list[str]:
    """Texts that follow each other, escaped as one, so that no tag comes about where they meet; `[]` for no text."""
    if len(texts) > 1:
        # Each becomes canonical by itself: a carriage return at the end of one stays a line end of its own.
        texts = list(filter(None, map(canonical, texts)))
    escaped = escape("\n".join(texts))
    return [escaped] if escaped else []


def _parts_of(
    entries: Iterable[HistoryMessage], escape: CountingEscape, results: _Results = MappingProxyType({})
) -> tuple[list[str], list[tuple[int, str]]]:
    """The texts of a message, and its annotations, each with the number of texts before it.

    A text of blanks alone is none.
    """
    texts: list[str] = []
    annotations: list[tuple[int, str]] = []
    for entry in entries:
        if entry.text and not entry.text.isspace():
            texts.append(entry.text)
        if entry.calls:
            shown = (annotate(entry.calls, escape), annotate_results(results.get(entry.rank, ()), escape))
            annotations += [(len(texts), annotation) for annotation in shown if annotation]
    return texts, annotations


def _as_row(message: Utterance) -> dict[str, Any]:
    if not message.is_merged:
        return dict(message.entries[0].stored)
    latest = next(entry for entry in reversed(message.entries) if entry.moment == message.moment)
    text = _in_order(*_parts_of(message.entries, CountingEscape()), list)
    return {
        "id": message.id,
        "run_id": message.run_id,
        "role": "ai",
        "content": text or _NO_TEXT,
        "timestamp": latest.row.get("timestamp"),
        "metadata": {
            "source": "merged",
            "original_count": len(message.entries),
            "has_tool_calls": any(entry.calls for entry in message.entries),
        },
    }
