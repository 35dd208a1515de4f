"""The token budget of a context: its part of the model's window, and cuts that make it fit (contract §7, §9). Pure.

- `fitting.py` shares the window out among the blocks that can grow.
- Of the run's own messages only results of tools are cut; a request that does not fit then is refused.
- `[CONTEXT_META]` is about this one list, and its last message, so that it breaks no prompt cache of a provider.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from nexus.core.errors import ErrorCode, RequestError
from nexus.core.models import LeftOut, Why
from nexus.core.ports import TokenCounter
from nexus.core.shares import BUDGET, SHARES, Share
from nexus.services.context.blocks import Weights, in_openai_form, number_of
from nexus.services.context.bounds import Bounds
from nexus.services.context.memory_blocks import MOST_TOKENS, Meta, meta_block
from nexus.services.context.person_blocks import CONSTRAINTS
from nexus.services.text.tokens import ByteBound, Measure

_Message = Mapping[str, Any]

# Tag of the run's own later messages; a continuation has one such block.
RUN: Final = "RUN"
# Name of the share of its tool results.
RESULTS: Final = "results"

# A compaction leaves at least this part of the window word for word, and a history below the other part gains nothing
# by one.
_LEAST_KEPT: Final = 0.05
_LEAST_GAINED: Final = 0.1
# The part of a small window that a summary may take.
_SUMMARY: Final = 1 / 16
# Of a session with more messages than are shown, this part of the shown ones is kept: then for some time every message
# is shown or compacted.
_OF_SHOWN: Final = 0.5
# The largest target of a compaction, as a part of the threshold: it has to gain something under all settings.
_BELOW: Final = 0.9
# The largest parts of a context are named where it is too large.
_NAMED_PARTS: Final = 5
# By tag, the share of each block that always stays.
_FIXED: Final = {
    "SYSTEM_PROMPT": "instructions",
    "TASK_PROMPT": "instructions",
    "AGENT_ROLE": "role",
    "TODO_LIST": "todos",
    "TASK_CONTEXT": "goal",
    "WORKING_MEMORY": "working_memory",
    "FRIENDS_INFO": "profile",
    "WORKSPACE_CONTEXT": "workspace",
}
# That of blocks that can grow and are bounded when they are made.
_GROWING: Final = {"RECALL": "recall", "FACTS": "facts", "THINKING_ROUNDS": "rounds"}
_LEFT_OUT: Final = (
    "(left out: a result of {count} characters, for which there was no room in the context; what is needed of it has "
    "to be asked for in smaller parts)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSettings:
    """The settings of the window; their defaults are those of `nexus.config`.

    Attributes:
        context_window: tokens of the model's window, unless a request names another.
        max_tokens: by layout, the most tokens of a context; None for the window.
        shares: parts of that which the blocks take at most that always stay.
        budget: how it is shared out among the blocks that can grow.
        compact_at, compact_to: the part of the window at which a session is compacted, and to which it is.
        summary_max_tokens: the longest summary.
    """

    context_window: int
    max_tokens: Mapping[str, int | None]
    shares: Mapping[str, float]
    budget: Mapping[str, Share]
    compact_at: float
    compact_to: float
    summary_max_tokens: int

    def limit(self, layout: str, window: int | None = None) -> int:
        """The most tokens of a context of the layout, with the model's `window` from a request."""
        given = window or self.context_window
        return min(given, self.max_tokens.get(layout) or given)

    def is_heavy(self, weights: Weights, taken: int, limit: int) -> bool:
        """Whether the session is to be compacted.

        Not where instructions, input and run fill the window by themselves: nothing of the session is shown then,
        compacted or not, and the next context may have room for all of it.
        """
        is_heavy = weights.total + taken >= limit * self.compact_at
        return is_heavy and weights.fixed + taken < limit and self.is_worth_compacting(weights, limit)

    def is_worth_compacting(self, weights: Weights, limit: int) -> bool:
        """Whether a compaction would gain something."""
        return weights.history >= limit * _LEAST_GAINED

    def summary_tokens(self, limit: int, measure: Measure) -> int:
        """Tokens of a summary at most, as the vocabulary counts them."""
        return min(self.summary_max_tokens, measure.unscaled(int(limit * _SUMMARY)))

    def keep_tokens(self, weights: Weights, taken: int, limit: int, measure: Measure, *, cut: bool) -> int:
        """Tokens of the history that a compaction leaves, as the vocabulary counts them.

        `taken` tokens go with the context; `cut`: the session has messages that are not read for a context.
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
    """The tokens of one context: its limit, and the tokens besides the layout's own messages.

    Attributes:
        limit: of messages and definitions of tools together.
        tools: those definitions, in OpenAI's form.
        run: the run's own later messages, as the validity gate leaves them.
        measure: counts tokens; None where nothing is counted, and then nothing has a limit.
        bound: an upper bound without counting; None where every context is counted.
        has_meta: `[CONTEXT_META]` comes at the end.
        bounds: of the blocks that always stay; None where nothing is counted.
        blocks: the shares of those that can grow.
    """

    limit: int
    tools: Sequence[_Message] = ()
    run: Sequence[dict[str, Any]] = ()
    measure: Measure | None = None
    bound: Measure | None = None
    has_meta: bool = False
    bounds: Bounds | None = None
    blocks: Mapping[str, Share] = field(default_factory=lambda: BUDGET)

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
        shares: Mapping[str, float] = SHARES,
        blocks: Mapping[str, Share] = BUDGET,
        always: bool = False,
    ) -> Self:
        """The budget of a context in that layout and format; `always` to count contexts that surely fit, too."""
        is_agent = layout == "agent"
        measure = Measure(counter, form) if counter else None
        bound = Measure(ByteBound(counter), form) if counter and not (always or is_agent) else None
        parts = {tag: shares[name] for tag, name in _FIXED.items()}
        parts |= {tag: blocks[name].ceiling for tag, name in _GROWING.items()}
        bounds = Bounds(measure, {tag: int(limit * part) for tag, part in parts.items()}) if measure else None
        return cls(limit, tools, run, measure, bound, is_agent, bounds, blocks)

    def besides(self, results: int | None = None) -> int:
        """Tokens of tools, `[CONTEXT_META]` and the run's own messages; their results take `results`, or all."""
        if self.measure is None:
            return 0
        besides = self._besides(self.measure)
        return besides if results is None else besides - self.results() + results

    def results(self, room: int | None = None) -> int:
        """What the results of the run's own messages take beyond the lines to which they can be cut, in tokens.

        With `room` for as much of it as fits there.
        """
        if self.measure is None:
            return 0
        least = _least(self.run, self.measure)
        run = self.run if room is None else shortened(self.run, self.measure, least + room)[0]
        return sum(map(self.measure.message, run)) - least

    def surely_fits(self, messages: Sequence[_Message]) -> bool:
        """Whether the layout's own messages fit, as far as that is certain without counting."""
        if self.measure is None:
            return True
        return self.bound is not None and self.bound.messages(messages) + self._besides(self.bound) <= self.limit

    def check_input(self, opening: Sequence[_Message], text: str) -> None:
        """PAYLOAD_TOO_LARGE where the input does not fit beside the tools and the messages of `opening`.

        Every context of the layout begins with those.
        """

        def taken(measure: Measure) -> tuple[int, int]:
            return measure.text(text), measure.messages(opening) + self._besides_run(measure)

        if self.measure is None or (self.bound and sum(taken(self.bound)) <= self.limit):
            return
        of_input, others = taken(self.measure)
        if others >= self.limit:
            reason = (
                f"run: instructions and tools take {others} tokens, at most {self.limit} are allowed for everything"
            )
            raise RequestError(ErrorCode.PAYLOAD_TOO_LARGE, reason)
        if of_input + others > self.limit:
            reason = (
                f"run.history: the input takes {of_input} tokens; beside instructions and tools, which take {others}, "
                f"at most {self.limit - others} of {self.limit} are left for it"
            )
            raise RequestError(ErrorCode.PAYLOAD_TOO_LARGE, reason)

    def close(
        self,
        content_with: Callable[[Measure | None], dict[str, Any]],
        meta: Meta | None = None,
        results: int | None = None,
    ) -> dict[str, Any]:
        """The content of the answer, within the limit; raises as the function `close`, which has the same arguments.

        `content_with` makes the whole content, with tokens in its manifest where a measure is given.
        """
        if self.measure is None:
            return content_with(None)
        if self.bound:
            content = content_with(None)
            if self.bound.messages(content["messages"]) + self.bound.tools(content["tools"]) <= self.limit:
                return content
        return close(content_with(self.measure), self.measure, self.limit, meta, results)

    def _besides(self, measure: Measure) -> int:
        return self._besides_run(measure) + sum(map(measure.message, self.run))

    def _besides_run(self, measure: Measure) -> int:
        return measure.tools(self.tools) + (measure.scaled(MOST_TOKENS) if self.has_meta else 0)


def close(
    content: Mapping[str, Any], measure: Measure, limit: int, meta: Meta | None, results: int | None = None
) -> dict[str, Any]:
    """The content of an answer, messages and tools in `limit` tokens at most, with `[CONTEXT_META]` at its end.

    `content` has all its messages, and tokens in its manifest; `meta` is None for a layout without that block. The
    results of the run's own messages are cut to `results`, as in `Assembled`, and further where the content would not
    fit; PAYLOAD_TOO_LARGE where it does not even then.
    """
    tools = measure.tools(content["tools"])
    room = limit - tools - (measure.scaled(MOST_TOKENS) if meta else 0)
    used = measure.messages(content["messages"])
    for block in content["context"]["blocks"]:
        if block["tag"] == RUN:
            content = _with_shorter_run(content, block, measure, room - (used - block["tokens"]), results)
            used = measure.messages(content["messages"])
    if used > room:
        raise RequestError(ErrorCode.PAYLOAD_TOO_LARGE, _too_large(content, tools, used + limit - room, limit))
    messages, manifest = content["messages"], content["context"]
    if meta:
        block = meta_block(replace(meta, messages=len(messages) + 1), used + tools, measure)
        used += sum(map(measure.message, block.messages))
        manifest = {**manifest, "blocks": [*manifest["blocks"], *block.describe(len(messages), measure)]}
        messages = [*messages, *block.messages]
    tokens = {"used": used + tools, "limit": limit, "tools": tools, "exact": measure.exact}
    return {**content, "messages": messages, "context": {**manifest, "tokens": tokens}}


def _too_large(content: Mapping[str, Any], tools: int, used: int, limit: int) -> str:
    """Which part of a context of `used` tokens is too large, and what is left for it beside the others.

    That is the largest, but constraints where all else would fit: those can be taken back.
    """
    parts: dict[str, int] = {"the definitions of tools": tools}
    for block in content["context"]["blocks"]:
        parts[block["tag"]] = parts.get(block["tag"], 0) + block["tokens"]
    others_fit = used - parts.get(CONSTRAINTS, 0) <= limit
    largest_first = sorted(parts, key=lambda name: (not (name == CONSTRAINTS and others_fit), -parts[name]))
    named = ", ".join(f"{name} {parts[name]}" for name in largest_first[1:_NAMED_PARTS] if parts[name])
    first = largest_first[0]
    return (
        f"run: {first} takes {parts[first]} tokens, at most {max(limit - used + parts[first], 0)} are left for it; "
        f"all takes {used} ({named}), at most {limit} are allowed"
    )


def _with_shorter_run(
    content: Mapping[str, Any], run: Mapping[str, Any], measure: Measure, room: int, results: int | None
) -> dict[str, Any]:
    """The content with the run's own messages, of which `run` is the manifest entry, in `room` tokens.

    Their results have no more than `results`. Both as far as that is possible.
    """
    manifest, before = content["context"], content["messages"][run["index"] :]
    least = _least(before, measure)
    given = max(room - least if results is None else min(results, room - least), 0)
    shown, gone = shortened(before, measure, least + given)
    tokens = sum(map(measure.message, shown))
    if gone:
        changed = {"bytes": len(in_openai_form(shown)), "tokens": tokens, "truncated": run["truncated"] + gone}
        left_out = LeftOut(number_of(gone, "tool result"), RUN, Why.NO_ROOM)
        blocks = [{**block, **changed} if block is run else block for block in manifest["blocks"]]
        manifest = {**manifest, "blocks": blocks, "left_out": [*manifest["left_out"], left_out]}
    if told := manifest.get("budget"):
        # The messages before those of the run may be older than these.
        wanted = run["tokens"] - least
        figures = {"wanted": wanted, "given": min(given, wanted), "used": tokens - least}
        of_results = {**told["blocks"][RESULTS], **figures}
        manifest = {**manifest, "budget": {**told, "blocks": {**told["blocks"], RESULTS: of_results}}}
    return {**content, "messages": [*content["messages"][: run["index"]], *shown], "context": manifest}


def _least(run: Sequence[dict[str, Any]], measure: Measure) -> int:
    """Tokens of the messages of a run whose results are all cut, as far as that makes them shorter."""
    return sum(min(measure.message(message), measure.message(_left_out(message))) for message in run)


def _left_out(message: dict[str, Any]) -> dict[str, Any]:
    """The message with a line for its result; any other as it is."""
    if message["role"] != "tool":
        return message
    return {**message, "content": _LEFT_OUT.format(count=len(message["content"]))}


def shortened(messages: Sequence[dict[str, Any]], measure: Measure, room: int) -> tuple[list[dict[str, Any]], int]:
    """The messages of a run in `room` tokens, as far as that is possible, and the number of replaced tool results.

    All messages and calls stay; results give way to a line that says so: first those that alone would not fit, then the
    oldest.
    """
    tokens = [measure.message(message) for message in messages]
    total, shown, gone = sum(tokens), list(messages), 0
    results = [index for index, message in enumerate(messages) if message["role"] == "tool"]
    for index in sorted(results, key=lambda index: (tokens[index] <= room, index)):
        if total <= room:
            break
        shorter = _left_out(messages[index])
        gain = tokens[index] - measure.message(shorter)
        if gain > 0:
            shown[index], total, gone = shorter, total - gain, gone + 1
    return shown, gone
