"""The facts in the rows of a run: messages, calls with their results, and whether it is over. Pure.

- Texts are as they were recorded. Only malformed rows, second records of a message and rows of sub-agents are left out.
- A result that names a call answers the open one of that id in the newest message before it that makes one, else in a
  later one: clocks differ.
- A result that names no call answers the oldest open call of its tool, else the oldest open one. The history is shown
  without such guesses (`transcript.admit`), but for a summary a likely outcome is worth more than none.
- A second result of a call is ignored. A result of a call that was never made stands by itself.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nexus.core.models import is_internal
from nexus.core.turns import ThinkingRound, TokenUsage, ToolOutcome
from nexus.services.history.messages import HistoryMessage, Place, places_in_run, read_messages
from nexus.services.history.rows import PHASE, THINKING, USAGE
from nexus.services.text.model_reply import Entry

# Larger numbers are not exact in other JSON readers; no run takes so many tokens.
_MOST_TOKENS: Final = 2**53
# The name of a tool that is not known.
_UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """The facts of a turn.

    Attributes:
        goal: the turn's task context; `""` for none.
        workspace: the surroundings that the orchestrator described.
        rounds: thought before acting.
        messages: in their order; the first one of the user is the input.
        outcomes: calls in the order in which they were made, each with its result, which is None only where there is
            none; an empty one is `""`. Results of calls that were never made stand between them, without arguments.
        answer: the text of the model's last message, if it makes no calls; `""` while there is none.
        finished: the answer is known, and every call has a result.
        usage: tokens that results reported.
    """

    goal: str = ""
    workspace: str = ""
    rounds: tuple[ThinkingRound, ...] = ()
    messages: tuple[HistoryMessage, ...] = ()
    outcomes: tuple[ToolOutcome, ...] = ()
    answer: str = ""
    finished: bool = False
    usage: TokenUsage = field(default_factory=TokenUsage)

    @property
    def input(self) -> str:
        """The first message of the user."""
        return next((item.text for item in self.messages if item.role == "user"), "")

    @property
    def message_ids(self) -> tuple[str, ...]:
        """The ids of the recorded messages, in order."""
        return tuple(item.source for item in self.messages if item.source)


def read_facts(rows: Sequence[Any]) -> TurnFacts:
    """The facts in the rows of one run, which may come in any order, repeated and malformed."""
    return facts_in(read_messages(rows))


def facts_in(messages: Iterable[HistoryMessage]) -> TurnFacts:
    """The facts in the messages of one run."""
    read = [item for item in messages if item.role and not is_internal(item.metadata)]
    first: dict[str | int, HistoryMessage] = {}
    for _, item in sorted(zip(map(_place, places_in_run(read), read), read, strict=True)):
        first.setdefault(item.source or item.rank, item)
    members = tuple(first.values())
    outcomes, all_answered = _match_results(members)
    last = next((item for item in reversed(members) if item.role == "assistant" and not _is_thought(item)), None)
    answered = last is not None and not last.calls
    return TurnFacts(
        messages=members,
        outcomes=outcomes,
        answer=last.text if last and answered else "",
        finished=answered and all_answered,
        usage=_usage(members),
    )


def _place(place: Place, item: HistoryMessage) -> tuple[Any, ...]:
    """The order of the message: of those of one moment an answer without calls comes last, however it was stored."""
    *before, rank = place
    return (*before, item.role == "assistant" and not item.calls, rank)


def _is_thought(item: HistoryMessage) -> bool:
    """Whether it is thought before acting, so no answer."""
    return item.metadata.get(PHASE) == THINKING


def _usage(messages: Iterable[HistoryMessage]) -> TokenUsage:
    counts = {True: 0, False: 0}
    for item in messages:
        if item.role == "assistant":
            counts[_is_thought(item)] = min(counts[_is_thought(item)] + _tokens(item.metadata.get(USAGE)), _MOST_TOKENS)
    return TokenUsage(thinking=counts[True], action=counts[False], total=counts[True] + counts[False])


def _tokens(usage: Any) -> int:
    if not isinstance(usage, Mapping):
        return 0
    total, *parts = (_count(usage.get(name)) for name in ("total_tokens", "prompt_tokens", "completion_tokens"))
    return total or sum(parts)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def entries_of(facts: TurnFacts) -> Iterator[Entry]:
    """The turn as entries of a model's prompt, in the order of events; nothing is left out."""
    if facts.workspace:
        yield Entry({}, "workspace", facts.workspace)
    inputs = 1 if facts.messages and facts.messages[0].role == "user" else 0
    for item in facts.messages[:inputs]:
        yield from _entries_of_message(item)
    for thought in facts.rounds:
        yield Entry({"thought": thought.round_number}, "text", thought.content)
    for item in facts.messages[inputs:]:
        yield from _entries_of_message(item)


def _entries_of_message(item: HistoryMessage) -> Iterator[Entry]:
    if item.role == "tool":
        success = {} if item.success is None else {"success": item.success}
        yield Entry({"from": "tool", "tool": item.tool_name, **success}, "text", item.text)
        return
    if item.text:
        yield Entry({"from": item.role}, "text", item.text)
    for call in item.calls:
        yield Entry({"from": "assistant", "calls": call.name}, "arguments", call.raw_arguments)


@dataclass(slots=True)
class _Call:
    """A call, or a result that answers none, and the place of its message in the run."""

    place: int
    name: str
    arguments: Any = None
    result: HistoryMessage | None = None

    @property
    def outcome(self) -> ToolOutcome:
        if self.result is None:
            return ToolOutcome(name=self.name, arguments=self.arguments)
        content = self.result.row.get("content")
        result = "" if content is None else content
        return ToolOutcome(name=self.name, arguments=self.arguments, success=self.result.success, result=result)


# Calls by age. Answered ones leave a queue when they come to its front.
_Queue = deque[_Call]
_Results = list[tuple[int, HistoryMessage]]


def _match_results(messages: Iterable[HistoryMessage]) -> tuple[tuple[ToolOutcome, ...], bool]:
    """The outcomes in the order in which the calls were made, and whether every call has a result."""
    calls: list[_Call] = []
    by_id: dict[str, _Queue] = {}
    # By id, the calls of that id in the newest message that makes one.
    newest: dict[str, _Queue] = {}
    # Results that name a call which is not made yet, and results that name none.
    early, nameless = _Results(), _Results()
    for place, message in enumerate(messages):
        made: dict[str, _Queue] = {}
        for item in message.calls:
            call = _Call(place, item.name, item.arguments)
            calls.append(call)
            if item.id:
                by_id.setdefault(item.id, _Queue()).append(call)
                made.setdefault(item.id, _Queue()).append(call)
        newest |= made
        if message.role == "tool":
            if not message.call_id:
                nameless.append((place, message))
            elif answered := _first_open(newest.get(message.call_id, _Queue())):
                answered.result = message
            else:
                early.append((place, message))
    alone = [*_match_early(early, by_id), *_match_nameless(nameless, calls)]
    shown = sorted([*calls, *alone], key=lambda call: call.place)
    return tuple(call.outcome for call in shown), all(call.result for call in calls)


def _match_early(results: _Results, by_id: Mapping[str, _Queue]) -> Iterator[_Call]:
    """Give results to later calls; yields those of calls that were never made."""
    for place, item in results:
        queue = by_id.get(item.call_id)
        if queue is None:
            yield _Call(place, item.tool_name or _UNKNOWN, result=item)
        elif call := _first_open(queue, after=place):
            call.result = item


def _match_nameless(results: _Results, calls: Sequence[_Call]) -> Iterator[_Call]:
    """Give results to the oldest open calls, first to those of their tool; yields those that are left."""
    by_name: dict[str, _Queue] = {}
    for call in calls:
        by_name.setdefault(call.name, _Queue()).append(call)
    every = _Queue(calls)
    for place, item in results:
        if answered := _first_open(by_name.get(item.tool_name, _Queue())) or _first_open(every):
            answered.result = item
        else:
            yield _Call(place, item.tool_name or _UNKNOWN, result=item)


def _first_open(queue: _Queue, *, after: int = 0) -> _Call | None:
    while queue and (queue[0].result or queue[0].place < after):
        queue.popleft()
    return queue[0] if queue else None
