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
from datetime import datetime
from typing import Any, Final

from nexus.core.models import is_internal, parse_moment
from nexus.core.turns import ThinkingRound, TokenUsage, ToolOutcome
from nexus.services.history.merge import places_in_run, stored_order
from nexus.services.history.rows import PHASE, THINKING, USAGE
from nexus.services.history.tool_calls import ToolCall, as_id, read_tool_calls
from nexus.services.history.transcript import SPEAKERS, Speaker, named_tool
from nexus.services.text.content import as_text
from nexus.services.text.model_reply import Entry

# Larger numbers are not exact in other JSON readers; no run takes so many tokens.
_MOST_TOKENS: Final = 2**53
# The recorded status of a result without one.
_UNSAID: Final = "unknown"
_NO_ARGUMENTS: Final = frozenset({"", "{}", "null"})


@dataclass(frozen=True, slots=True)
class RunMessage:
    """One message of the run.

    Attributes:
        source: id of the recorded message; `""` where it has none.
        text: `""` where an answer only makes calls; JSON for content that is no text.
        calls: those that an answer makes.
        tool: the tool of a result, `""` where that is unknown.
        success: of a result that tells it; None for all else.
    """

    source: str
    speaker: Speaker
    text: str
    calls: tuple[ToolCall, ...] = ()
    tool: str = ""
    success: bool | None = None


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
    messages: tuple[RunMessage, ...] = ()
    outcomes: tuple[ToolOutcome, ...] = ()
    answer: str = ""
    finished: bool = False
    usage: TokenUsage = field(default_factory=TokenUsage)

    @property
    def input(self) -> str:
        """The first message of the user."""
        return next((item.text for item in self.messages if item.speaker == "user"), "")

    @property
    def message_ids(self) -> tuple[str, ...]:
        """The ids of the recorded messages, in order."""
        return tuple(item.source for item in self.messages if item.source)


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a message makes; `id` is `""` where it has none."""

    id: str
    name: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class Result:
    """A result.

    Attributes:
        call_id, tool: the call that it names; `""` for none.
        success: None where it does not tell.
        content: never None.
    """

    call_id: str
    tool: str
    success: bool | None
    content: Any


@dataclass(frozen=True, slots=True)
class _Row:
    """A row with the fields that its place in the run depends on; see `merge.places_in_run`.

    Attributes:
        step: the calls that it makes, or the result that it is.
        tokens: the tokens that it took.
        thinking: it is thought before acting, so no answer.
    """

    index: int
    moment: datetime | None
    rank: int
    message: RunMessage
    step: tuple[Call, ...] | Result
    tokens: int
    thinking: bool

    @property
    def is_human(self) -> bool:
        return self.message.speaker == "user"


def read_facts(
    rows: Sequence[Any], *, goal: str = "", workspace: str = "", rounds: Sequence[ThinkingRound] = ()
) -> TurnFacts:
    """The facts in the rows of one run, which may come in any order, repeated and malformed."""
    ranks = stored_order(rows)
    read = [item for index, row in enumerate(rows) if (item := _read_row(row, index, ranks[index]))]
    places = places_in_run(read)
    members = _once(sorted(read, key=lambda item: _place(item, places[item.index])))
    outcomes, all_answered = match_results(item.step for item in members)
    last = next(
        (item.message for item in reversed(members) if item.message.speaker == "assistant" and not item.thinking), None
    )
    answered = last is not None and not last.calls
    return TurnFacts(
        goal,
        workspace,
        tuple(rounds),
        tuple(item.message for item in members),
        outcomes,
        answer=last.text if last and answered else "",
        finished=answered and all_answered,
        usage=_usage(members),
    )


def _place(row: _Row, place: tuple[Any, ...]) -> tuple[Any, ...]:
    """The order of the row: of those of one moment an answer without calls comes last, however it was stored."""
    *before, rank = place
    return (*before, row.message.speaker == "assistant" and not row.message.calls, rank)


def _once(rows: Iterable[_Row]) -> list[_Row]:
    """Each message once, the first of those with one id."""
    first: dict[str | int, _Row] = {}
    for row in rows:
        first.setdefault(row.message.source or row.index, row)
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
    message = RunMessage(
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
        message,
        _result(message, known, row.get("content")) if speaker == "tool" else _called(message, stored),
        tokens=_tokens(known.get(USAGE)) if speaker == "assistant" else 0,
        thinking=known.get(PHASE) == THINKING,
    )


def _result(message: RunMessage, known: Mapping[str, Any], content: Any) -> Result:
    return Result(as_id(known.get("call_id")), message.tool, message.success, "" if content is None else content)


def _called(message: RunMessage, stored: Any) -> tuple[Call, ...]:
    if not message.calls:
        return ()
    given = [call for call in stored if isinstance(call, Mapping)]
    return tuple(
        Call(call.id, call.name, call.arguments or _unread(source))
        for call, source in zip(message.calls, given, strict=True)
    )


def _unread(call: Mapping[str, Any]) -> Any:
    """The arguments of a call that are no JSON object."""
    function = call.get("function")
    given = (function if isinstance(function, Mapping) else call).get("arguments")
    return given if isinstance(given, str) and given.strip() not in _NO_ARGUMENTS else {}


def _success(known: Mapping[str, Any]) -> bool | None:
    if known.get("status", _UNSAID) == _UNSAID and known.get("execution_success") is not True:
        # For a result without a status False is recorded.
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


def entries_of(facts: TurnFacts) -> Iterator[Entry]:
    """The turn as entries of a model's prompt, in the order of events; nothing is left out."""
    if facts.workspace:
        yield Entry({}, "workspace", facts.workspace)
    # In the order of the calls in the messages, which lack arguments that were no JSON.
    given = (outcome.arguments for outcome in facts.outcomes if outcome.arguments is not None)
    asked = 1 if facts.messages and facts.messages[0].speaker == "user" else 0
    for item in facts.messages[:asked]:
        yield from _of_message(item, given)
    for thought in facts.rounds:
        yield Entry({"thought": thought.round_number}, "text", thought.content)
    for item in facts.messages[asked:]:
        yield from _of_message(item, given)


def _of_message(item: RunMessage, given: Iterator[Any]) -> Iterator[Entry]:
    if item.speaker == "tool":
        success = {} if item.success is None else {"success": item.success}
        yield Entry({"from": "tool", "tool": item.tool, **success}, "text", item.text)
        return
    if item.text:
        yield Entry({"from": item.speaker}, "text", item.text)
    for call in item.calls:
        unread = next(given, None)
        arguments = unread if isinstance(unread, str) else call.raw_arguments
        yield Entry({"from": "assistant", "calls": call.name}, "arguments", arguments)


@dataclass(slots=True)
class _OpenCall:
    place: int
    name: str
    arguments: Any
    result: Result | None = None

    @property
    def outcome(self) -> ToolOutcome:
        came = self.result
        return ToolOutcome(
            name=self.name,
            arguments=self.arguments,
            success=came.success if came else None,
            result=came.content if came else None,
        )


_Queue = deque[_OpenCall]
_UNNAMED: Final = "unknown"


def match_results(steps: Iterable[tuple[Call, ...] | Result]) -> tuple[tuple[ToolOutcome, ...], bool]:
    """The outcomes in the order in which the calls were made, and whether every call has a result.

    A step is the calls of a message, or a result; steps come in the order in which they were recorded.
    """
    matcher = _Matcher()
    for place, step in enumerate(steps):
        if isinstance(step, Result):
            matcher.take(place, step)
        else:
            matcher.declare(place, step)
    return matcher.settle()


@dataclass(slots=True)
class _Matcher:
    """Open calls by id, name and age. Answered ones leave the queues when they come to the front.

    Attributes:
        newest: by id, the newest message that makes a call of that id, and these calls.
        strangers: results of calls that were never made.
        early: results that name calls which are not made yet.
        nameless: results that name no call.
    """

    calls: list[_OpenCall] = field(default_factory=list)
    by_id: dict[str, _Queue] = field(default_factory=dict)
    newest: dict[str, tuple[int, _Queue]] = field(default_factory=dict)
    strangers: list[_OpenCall] = field(default_factory=list)
    early: list[tuple[int, Result]] = field(default_factory=list)
    nameless: list[tuple[int, Result]] = field(default_factory=list)

    def declare(self, place: int, called: tuple[Call, ...]) -> None:
        """Calls that the message at this place makes."""
        for item in called:
            call = _OpenCall(place, item.name, item.arguments)
            self.calls.append(call)
            if item.id:
                self.by_id.setdefault(item.id, deque()).append(call)
                known_at, queue = self.newest.get(item.id, (place, deque()))
                self.newest[item.id] = (place, queue if known_at == place else deque())
                self.newest[item.id][1].append(call)

    def take(self, place: int, came: Result) -> None:
        """A result, for the newest call that it names, if there is one already."""
        if not came.call_id:
            self.nameless.append((place, came))
        elif call := _first_open(self.newest.get(came.call_id, (0, _Queue()))[1]):
            call.result = came
        else:
            self.early.append((place, came))

    def settle(self) -> tuple[tuple[ToolOutcome, ...], bool]:
        """What `match_results` returns."""
        for place, came in self.early:
            queue = self.by_id.get(came.call_id)
            if queue is None:
                self._stands_alone(place, came)
            elif call := _first_open(queue, after=place):
                call.result = came
        by_name: dict[str, _Queue] = {}
        for call in self.calls:
            by_name.setdefault(call.name, deque()).append(call)
        every = deque(self.calls)
        for place, came in self.nameless:
            if call := _first_open(by_name.get(came.tool, _Queue())) or _first_open(every):
                call.result = came
            else:
                self._stands_alone(place, came)
        shown = sorted([*self.calls, *self.strangers], key=lambda call: call.place)
        return tuple(call.outcome for call in shown), all(call.result for call in self.calls)

    def _stands_alone(self, place: int, came: Result) -> None:
        self.strangers.append(_OpenCall(place, came.tool or _UNNAMED, None, came))


def _first_open(queue: _Queue, *, after: int = 0) -> _OpenCall | None:
    while queue and (queue[0].result or queue[0].place < after):
        queue.popleft()
    return queue[0] if queue else None
