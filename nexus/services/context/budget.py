"""The token budget of a context: its part of the model's window, and what is cut to fit (contract §7, §9). Pure.

Rules of this module:

- A context that fits by its bytes fits by its tokens. It is not counted, and its manifest has no tokens
  (docs/decisions/0018-tokens-are-counted.md). Its messages are the same as if it were counted.
- In the agent layout the model is told how long its context is, so all of those are counted.
- The run's own messages are shown as they were. Where they do not fit although no memory is left to drop, results of
  its tools are replaced by a line that says so; a request that does not fit then is refused.
- `[CONTEXT_META]` is about this one list, and its last message, so that no prompt cache of a provider breaks over it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from nexus.core.errors import ErrorCode, RequestError
from nexus.core.ports import TokenCounter
from nexus.core.wire import compact
from nexus.services.context.blocks import Weights
from nexus.services.context.meta import MOST_TOKENS, Meta, meta_block
from nexus.services.text.tokens import ByteBound, Measure

_Message = Mapping[str, Any]

# A note on a block for which there was no room.
NO_ROOM: Final = "window: there is no room for {}"
# Tag of the run's own later messages; a continuation has one such block.
RUN: Final = "RUN"

# This part of the window stays word for word, whatever else is in it; and as long as the history takes no more than
# the other, a compaction would gain nothing.
_LEAST_KEPT: Final = 0.05
_LEAST_GAINED: Final = 0.1
# The part of a small window that a summary may take.
_SUMMARY: Final = 1 / 16
# Of a session with more messages than are shown, this part of the shown ones is kept: then for some time no message is
# neither shown nor compacted.
_OF_SHOWN: Final = 0.5
# A compaction has to gain something, however the settings stand to each other.
_BELOW: Final = 0.9
_NO_LIMIT: Final = 1 << 62
_LEFT_OUT: Final = (
    "(left out: a result of {count} characters, for which there was no room in the context; what is needed of it has "
    "to be asked for in smaller parts)"
)


@dataclass(frozen=True, slots=True)
class Room:
    """Tokens that a context of the agent layout may take.

    Attributes:
        measure: counts them.
        tokens: of the whole.
        turns, pinned: of `[TURN_MEMORY]`, and of the pinned block.
    """

    measure: Measure
    tokens: int
    turns: int = _NO_LIMIT
    pinned: int = _NO_LIMIT


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """The settings of the window.

    Attributes:
        context_window: tokens that the model takes, unless a request says otherwise.
        max_tokens: by layout, tokens that a context of it takes at most; the window, where it has none.
        turn_share, pinned_share: parts of that which `[TURN_MEMORY]` and the pinned block take at most.
        compact_at, compact_to: at which part of the window a session is compacted, and to which.
        summary_max_tokens: the longest summary.
    """

    context_window: int = 128_000
    max_tokens: Mapping[str, int | None] = field(default_factory=dict)
    turn_share: float = 0.1
    pinned_share: float = 0.2
    compact_at: float = 0.75
    compact_to: float = 0.4
    summary_max_tokens: int = 1_500

    def limit(self, layout: str, window: int | None = None) -> int:
        """Tokens that a context of the layout may take; `window` is the one that a request named."""
        given = window or self.context_window
        return min(given, self.max_tokens.get(layout) or given)

    def room(self, measure: Measure, limit: int, taken: int) -> Room:
        """The room for the messages of a layout, where `taken` tokens go with them."""
        return Room(measure, max(limit - taken, 0), int(limit * self.turn_share), int(limit * self.pinned_share))

    def is_heavy(self, weights: Weights, taken: int, limit: int) -> bool:
        """Whether the session is to be compacted.

        Not where instructions, input and run fill the window by themselves: nothing of the session is shown then,
        compacted or not, and the next context may have room for all of it.
        """
        is_heavy = weights.total + taken >= limit * self.compact_at
        return is_heavy and weights.fixed + taken < limit and self.is_worth_compacting(weights, limit)

    def is_worth_compacting(self, weights: Weights, limit: int) -> bool:
        """Whether something would be gained."""
        return weights.history >= limit * _LEAST_GAINED

    def summary_tokens(self, limit: int, measure: Measure) -> int:
        """Tokens of a summary at most, as the vocabulary counts them."""
        return min(self.summary_max_tokens, measure.unscaled(int(limit * _SUMMARY)))

    def keep_tokens(self, weights: Weights, taken: int, limit: int, measure: Measure, *, cut: bool) -> int:
        """Tokens of the history that stay when the session is compacted, as the vocabulary counts them.

        Args:
            weights: of the context as it would be.
            taken: by what comes with it.
            limit: of both together.
            measure: with which all that was counted.
            cut: the session has messages that are not read for a context.
        """
        shown = int(weights.history * _OF_SHOWN)
        if not self.is_heavy(weights, taken, limit):
            return measure.unscaled(shown)
        target = min(self.compact_to, self.compact_at * _BELOW) * limit
        summary = measure.scaled(self.summary_tokens(limit, measure))
        others = weights.total - weights.history - weights.summary + summary + taken
        keep = max(int(target - others), int(limit * _LEAST_KEPT))
        return measure.unscaled(min(keep, shown) if cut else keep)


@dataclass(frozen=True, slots=True)
class Budget:
    """The tokens of one context: what may be taken, and what is taken besides the layout's own messages.

    Attributes:
        limit: of everything that is sent: messages, and definitions of tools.
        tools: those definitions, in OpenAI's form.
        run: messages that the run has added itself, as the validity gate leaves them.
        measure: counts tokens; None where nothing is counted, and then nothing has a limit.
        bound: finds at least as many without counting; None where every context is counted.
        has_meta: `[CONTEXT_META]` is put at the end.
    """

    limit: int
    tools: Sequence[_Message] = ()
    run: Sequence[dict[str, Any]] = ()
    measure: Measure | None = None
    bound: Measure | None = None
    has_meta: bool = False

    @classmethod
    def of(
        cls,
        counter: TokenCounter | None,
        *,
        layout: str,
        form: str,
        limit: int,
        tools: Sequence[_Message],
        run: Sequence[dict[str, Any]] = (),
        always: bool = False,
    ) -> Self:
        """The budget of a context in that layout and format; `always` to count also what surely fits."""
        is_agent = layout == "agent"
        measure = Measure(counter, form) if counter else None
        bound = Measure(ByteBound(counter), form) if counter and not (always or is_agent) else None
        return cls(limit, tools, run, measure, bound, is_agent)

    @property
    def room(self) -> int:
        """Tokens for the layout's own messages; only where `measure` counts."""
        return max(self.limit - self.besides(), 0)

    def besides(self, run_room: int | None = None) -> int:
        """Tokens taken besides the layout's own messages: tools, `[CONTEXT_META]`, and the run.

        Args:
            run_room: tokens to which the run's own messages are cut.
        """
        return self._besides(self.measure, run_room) if self.measure else 0

    def surely_fits(self, messages: Sequence[_Message]) -> bool:
        """Whether the layout's own messages fit, as far as that is certain without counting."""
        if self.measure is None:
            return True
        return self.bound is not None and self.bound.messages(messages) + self._besides(self.bound) <= self.limit

    def check_input(self, opening: Sequence[_Message], text: str) -> None:
        """Check that there can be a context for this input.

        Args:
            opening: messages that a context of the layout begins with, whatever else is in it.
            text: the input.

        Raises:
            RequestError: PAYLOAD_TOO_LARGE, where instructions, tools and the input do not fit into the window.
        """

        def taken(measure: Measure) -> tuple[int, int]:
            return measure.text(text), measure.messages(opening) + self._besides_run(measure)

        if self.measure is None or (self.bound and sum(taken(self.bound)) <= self.limit):
            return
        of_input, others = taken(self.measure)
        if of_input + others > self.limit:
            reason = (
                f"run.history: the input takes {of_input} tokens, and instructions and tools {others}; at most "
                f"{self.limit} are allowed together"
            )
            raise RequestError(ErrorCode.PAYLOAD_TOO_LARGE, reason)

    def room_of_run(self, weights: Weights | None) -> int | None:
        """Tokens to which the run's own messages have to be cut, to fit beside the parts that always stay.

        None where they fit: then memory goes before anything of the run does.
        """
        if self.measure is None or weights is None or weights.fixed + self.besides() <= self.limit:
            return None
        return max(self.limit - weights.fixed - self._besides_run(self.measure), 0)

    def close(
        self,
        content_with: Callable[[Measure | None], dict[str, Any]],
        meta: Meta | None = None,
        run_room: int | None = None,
    ) -> dict[str, Any]:
        """The content of the answer, within the limit.

        Args:
            content_with: makes the whole content, with tokens in its manifest where a measure is given.
            meta: content of `[CONTEXT_META]`; None for a layout that has none.
            run_room: see `Assembled`.

        Raises:
            RequestError: as for `close`.
        """
        if self.measure is None:
            return content_with(None)
        if self.bound:
            content = content_with(None)
            if self.bound.messages(content["messages"]) + self.bound.tools(content["tools"]) <= self.limit:
                return content
        return close(content_with(self.measure), self.measure, self.limit, meta, run_room)

    def _besides(self, measure: Measure, run_room: int | None = None) -> int:
        run = self.run if run_room is None else shortened(self.run, measure, run_room)[0]
        return self._besides_run(measure) + sum(map(measure.message, run))

    def _besides_run(self, measure: Measure) -> int:
        return measure.tools(self.tools) + (measure.scaled(MOST_TOKENS) if self.has_meta else 0)


def close(
    content: Mapping[str, Any], measure: Measure, limit: int, meta: Meta | None, run_room: int | None = None
) -> dict[str, Any]:
    """The content of an answer in `limit` tokens at most, with `[CONTEXT_META]` at its end.

    Args:
        content: with all its messages, and tokens in its manifest.
        measure: counts tokens.
        limit: of everything that is sent: messages, and definitions of tools.
        meta: content of `[CONTEXT_META]`; None for a layout that has none.
        run_room: tokens for the run's own messages, where they are known to be too long beside what always stays.

    Raises:
        RequestError: PAYLOAD_TOO_LARGE, where the instructions, the input and the run are too long by themselves.
    """
    tools = measure.tools(content["tools"])
    room = limit - tools - (measure.scaled(MOST_TOKENS) if meta else 0)
    if run_room is not None:
        content = _with_shorter_run(content, measure, run_room)
    used = measure.messages(content["messages"])
    if used > room:
        of_run = sum(block["tokens"] for block in content["context"]["blocks"] if block["tag"] == RUN)
        content = _with_shorter_run(content, measure, room - (used - of_run))
        used = measure.messages(content["messages"])
    if used > room:
        reason = (
            f"run: instructions, tools, the current input and what the run has said take {used + limit - room} tokens, "
            f"at most {limit} are allowed"
        )
        raise RequestError(ErrorCode.PAYLOAD_TOO_LARGE, reason)
    messages, manifest = content["messages"], content["context"]
    if meta:
        block = meta_block(replace(meta, messages=len(messages) + 1), used + tools, measure)
        used += sum(map(measure.message, block.messages))
        manifest = {**manifest, "blocks": [*manifest["blocks"], *block.describe(len(messages), measure)]}
        messages = [*messages, *block.messages]
    tokens = {"used": used + tools, "limit": limit, "tools": tools, "exact": measure.exact}
    return {**content, "messages": messages, "context": {**manifest, "tokens": tokens}}


def _with_shorter_run(content: Mapping[str, Any], measure: Measure, room: int) -> dict[str, Any]:
    """The content with the run's own messages in `room` tokens, as far as that is possible."""
    messages, manifest = content["messages"], content["context"]
    run = next((block for block in manifest["blocks"] if block["tag"] == RUN), None)
    if run is None:
        return dict(content)
    shown, gone = shortened(messages[run["index"] :], measure, room)
    if not gone:
        return dict(content)
    changed = {
        "bytes": len(compact(shown)),
        "tokens": sum(map(measure.message, shown)),
        "truncated": run["truncated"] + gone,
    }
    blocks = [{**block, **changed} if block is run else block for block in manifest["blocks"]]
    messages = [*messages[: run["index"]], *shown]
    return {**content, "messages": messages, "context": {**manifest, "blocks": blocks}}


def shortened(messages: Sequence[dict[str, Any]], measure: Measure, room: int) -> tuple[list[dict[str, Any]], int]:
    """The messages of a run in `room` tokens, as far as that is possible, and how many tool results were replaced.

    All messages and calls stay; results give way to a line that says so. First those that would not fit if there were
    nothing else, then the oldest.
    """
    tokens = [measure.message(message) for message in messages]
    total, shown, gone = sum(tokens), list(messages), 0
    results = [index for index, message in enumerate(messages) if message["role"] == "tool"]
    for index in sorted(results, key=lambda index: (tokens[index] <= room, index)):
        if total <= room:
            break
        shorter = {**messages[index], "content": _LEFT_OUT.format(count=len(messages[index]["content"]))}
        gain = tokens[index] - measure.message(shorter)
        if gain > 0:
            shown[index], total, gone = shorter, total - gain, gone + 1
    return shown, gone


def largest(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The largest number from `low` to `high` that fits, where everything below a number that fits does, too."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
