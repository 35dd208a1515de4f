"""What is known of a turn from the rows of its run: what was said, what tools did, and whether it is over. Pure.

Texts are as they were recorded: nothing is escaped, shortened or left out here but what is malformed, what is recorded
twice, and what is a sub-agent's own business.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from nexus.core.turns import ThinkingRound, TokenUsage, ToolOutcome
from nexus.services.context.agents import is_internal
from nexus.services.context.annotations import ToolCall, as_id, read_tool_calls
from nexus.services.context.clock import parse_moment
from nexus.services.context.memory import as_text, places_in_run, stored_order
from nexus.services.context.transcript import SPEAKERS, Speaker, named_tool
from nexus.services.rows import PHASE, THINKING, USAGE
from nexus.services.turns.matching import Called, Came, match

# Beyond this, JSON readers elsewhere no longer tell two numbers apart; and no run takes so many tokens.
_MOST_TOKENS: Final = 2**53
# What is recorded of a result that does not say how it went.
_UNSAID: Final = "unknown"
_NO_ARGUMENTS: Final = frozenset({"", "{}", "null"})


@dataclass(frozen=True, slots=True)
class Said:
    """One message of the run.

    Attributes:
        source: id of the recorded message; `""` where it has none.
        text: `""` where an answer only makes calls; JSON for what was no text.
        calls: those that an answer makes.
        tool: of a result the tool that gave it, `""` where nobody knows.
        success: of a result, if it says; None for all else.
    """

    source: str
    speaker: Speaker
    text: str
    calls: tuple[ToolCall, ...] = ()
    tool: str = ""
    success: bool | None = None


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """Everything that a summary is made of.

    Attributes:
        goal: the turn's task context; `""` for none.
        workspace: what was said of the surroundings.
        rounds: of thought before acting.
        said: the messages in their order; the first of the user's is the input.
        outcomes: calls in the order in which they were made, each with its result, which is None only where there is
            none; an empty one is `""`. Results of calls that nobody made stand between them, without arguments.
        answer: the text of the model's last message, if that makes no calls; `""` while there is none.
        finished: the answer is known, and every call has a result.
        usage: tokens that results reported.
    """

    goal: str = ""
    workspace: str = ""
    rounds: tuple[ThinkingRound, ...] = ()
    said: tuple[Said, ...] = ()
    outcomes: tuple[ToolOutcome, ...] = ()
    answer: str = ""
    finished: bool = False
    usage: TokenUsage = field(default_factory=TokenUsage)

    @property
    def input(self) -> str:
        """What the user said first."""
        return next((item.text for item in self.said if item.speaker == "user"), "")

    @property
    def messages(self) -> tuple[str, ...]:
        """The ids of the recorded messages, in order."""
        return tuple(item.source for item in self.said if item.source)


@dataclass(frozen=True, slots=True)
class _Row:
    """A row that counts, with what its place depends on; see `memory.places_in_run`.

    Attributes:
        step: the calls that it makes, or the result that it is.
        tokens: that it took.
        thinking: it belongs to the thought before acting, so it is no answer.
    """

    index: int
    moment: datetime | None
    rank: int
    said: Said
    step: tuple[Called, ...] | Came
    tokens: int
    thinking: bool

    @property
    def is_human(self) -> bool:
        return self.said.speaker == "user"


def read_facts(
    rows: Sequence[Any], *, goal: str = "", workspace: str = "", rounds: Sequence[ThinkingRound] = ()
) -> TurnFacts:
    """The facts in the rows of one run, which may come in any order, repeated and malformed."""
    ranks = stored_order(rows)
    read = [item for index, row in enumerate(rows) if (item := _read_row(row, index, ranks[index]))]
    places = places_in_run(read)
    told = _once(sorted(read, key=lambda item: _place(item, places[item.index])))
    outcomes, all_answered = match(item.step for item in told)
    last = next((item.said for item in reversed(told) if item.said.speaker == "assistant" and not item.thinking), None)
    answered = last is not None and not last.calls
    return TurnFacts(
        goal,
        workspace,
        tuple(rounds),
        tuple(item.said for item in told),
        outcomes,
        answer=last.text if last and answered else "",
        finished=answered and all_answered,
        usage=_usage(told),
    )


def _place(row: _Row, place: tuple[Any, ...]) -> tuple[Any, ...]:
    """Where the row belongs: of those of one moment an answer without calls comes last, whoever stored it first."""
    *before, rank = place
    return (*before, row.said.speaker == "assistant" and not row.said.calls, rank)


def _once(rows: Iterable[_Row]) -> list[_Row]:
    """Each message once, the first of those with one id."""
    first: dict[str | int, _Row] = {}
    for row in rows:
        first.setdefault(row.said.source or row.index, row)
    return list(first.values())


def _read_row(row: Any, index: int, rank: int) -> _Row | None:
    if not isinstance(row, Mapping) or is_internal(row.get("metadata")):
        return None
    role, row_id, metadata = row.get("role"), row.get("id"), row.get("metadata")
    speaker = SPEAKERS.get(role.lower()) if isinstance(role, str) else None
    if speaker is None:
        return None
    known = metadata if isinstance(metadata, Mapping) else {}
    stored = known.get("tool_calls") if speaker == "assistant" else None
    said = Said(
        row_id if isinstance(row_id, str) else "",
        speaker,
        as_text(row.get("content")),
        read_tool_calls(stored),
        tool=named_tool(known) if speaker == "tool" else "",
        success=_success(known) if speaker == "tool" else None,
    )
    return _Row(
        index,
        parse_moment(row.get("timestamp")),
        rank,
        said,
        _came(said, known, row.get("content")) if speaker == "tool" else _called(said, stored),
        tokens=_tokens(known.get(USAGE)) if speaker == "assistant" else 0,
        thinking=known.get(PHASE) == THINKING,
    )


def _came(said: Said, known: Mapping[str, Any], content: Any) -> Came:
    return Came(as_id(known.get("call_id")), said.tool, said.success, "" if content is None else content)


def _called(said: Said, stored: Any) -> tuple[Called, ...]:
    if not said.calls:
        return ()
    given = [call for call in stored if isinstance(call, Mapping)]
    return tuple(
        Called(call.id, call.name, call.arguments or _unread(source))
        for call, source in zip(said.calls, given, strict=True)
    )


def _unread(call: Mapping[str, Any]) -> Any:
    """What a call has in place of arguments: text that is no JSON object, or none."""
    function = call.get("function")
    given = (function if isinstance(function, Mapping) else call).get("arguments")
    return given if isinstance(given, str) and given.strip() not in _NO_ARGUMENTS else {}


def _success(known: Mapping[str, Any]) -> bool | None:
    if known.get("status", _UNSAID) == _UNSAID and known.get("execution_success") is not True:
        # Where nothing was said of success, what is recorded is False.
        return None
    given = known.get("execution_success")
    return given if isinstance(given, bool) else known.get("status") == "success"


def _usage(rows: Iterable[_Row]) -> TokenUsage:
    counts = {True: 0, False: 0}
    for row in rows:
        counts[row.thinking] = min(counts[row.thinking] + row.tokens, _MOST_TOKENS)
    return TokenUsage(thinking=counts[True], action=counts[False], total=counts[True] + counts[False])


def _tokens(usage: Any) -> int:
    if not isinstance(usage, Mapping):
        return 0
    total, *parts = (_count(usage.get(name)) for name in ("total_tokens", "prompt_tokens", "completion_tokens"))
    return total or sum(parts)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
