"""What tools did, in words within a weight: with which arguments, and what came of it. Pure.

    pubmed_search (query: SGLT2 inhibitors; limit: 200) gave total: 156
    fetch (pmid: 23456789) failed: time-out
    web_search 12 times (query: a | query: b | 10 more) gave 3 hits | 5 hits | 9 more; 1 failed: time-out

What is left out is counted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from nexus.core.turns import ToolOutcome
from nexus.services.turns.outline import opened, outline
from nexus.services.turns.sentences import GAP, clip, fitted, one_line, weight

# Of several calls that are told together, so many are told of.
_TOLD: Final = 3
_MOST_NAME: Final = 64
_UNNAMED: Final = "unknown"
# A reason for a failure is told in this weight at least.
_LEAST: Final = 16
_REASON: Final = 120
_EMPTY: Final = "an empty result"
_BETWEEN: Final = " | "
# Where results that are objects say what went wrong.
_REASONS: Final = ("error", "message", "reason", "detail")


@dataclass(frozen=True, slots=True)
class Deed:
    """Calls that are told together.

    Attributes:
        name: of their tool, or how many tools they are of.
        outcomes: at least one.
    """

    name: str
    outcomes: tuple[ToolOutcome, ...]

    def called(self, room: int) -> str:
        """What was called, with arguments."""
        count = len(self.outcomes)
        head = f"{_short(self.name)}{f' {count:,} times' if count > 1 else ''}"
        given = _several([item for item in self.outcomes if item.arguments], _arguments, room - weight(head) - 3)
        return f"{head} ({given})" if given else head

    def came(self, room: int) -> str:
        """What came of it, as what follows the name."""
        lost = [item for item in self.outcomes if item.result is None]
        failed = [item for item in self.outcomes if item.result is not None and item.success is False]
        good = [item for item in self.outcomes if item.result is not None and item.success is not False]
        alone = len(self.outcomes) == 1
        parts = []
        if failed:
            head = "failed" if alone else f"{len(failed):,} failed"
            reason = _reason(failed[0], (min(room, _REASON) if good else room) - weight(head) - 2)
            parts.append(f"{head}: {reason}" if reason else head)
        if lost:
            parts.append("has no result" if alone else f"{len(lost):,} without a result")
        if good:
            left = room - sum(weight(part) + 2 for part in parts) - len("gave ")
            parts.insert(0, f"gave {_several(good, _result, left) or _left_out(len(good))}")
        return "; ".join(parts)

    def resulted(self, room: int) -> str:
        """What came of it, with the name."""
        name = _short(self.name)
        return f"{name} {self.came(room - weight(name) - 1)}"

    def told(self, room: int) -> str:
        """Both, as one sentence without its full stop."""
        came = self.came(room)
        called = self.called(max(room * 2 // 5, room - weight(came) - 1))
        left = room - weight(called) - 1
        return f"{called} {came if weight(came) <= left else self.came(left)}"


def deeds(outcomes: Sequence[ToolOutcome], most: int) -> list[Deed]:
    """At most so many deeds: each call by itself, or, where there are more, all of one tool together."""
    if len(outcomes) <= most:
        return [Deed(item.name, (item,)) for item in outcomes]
    by_tool: dict[str, list[ToolOutcome]] = {}
    for item in outcomes:
        by_tool.setdefault(item.name, []).append(item)
    told = [Deed(name, tuple(items)) for name, items in by_tool.items()]
    if len(told) <= most:
        return told
    others = told[most - 1 :]
    together = tuple(item for deed in others for item in deed.outcomes)
    return [*told[: most - 1], Deed(f"{len(others):,} other tools", together)]


def read_result(outcome: ToolOutcome) -> ToolOutcome:
    """The same, with what is in its result."""
    return outcome.model_copy(update={"result": opened(outcome.result)})


def tools_used(outcomes: Sequence[ToolOutcome], room: int) -> str:
    """Which tools, how often, and how many calls came to nothing, as a sentence; `""` for none."""
    if not outcomes:
        return ""
    counts: dict[str, int] = {}
    for item in outcomes:
        counts[item.name] = counts.get(item.name, 0) + 1
    failed = sum(item.result is not None and item.success is False for item in outcomes)
    lost = sum(item.result is None for item in outcomes)
    bad = [f"{count:,} {what}" for count, what in ((failed, "failed"), (lost, "without a result")) if count]
    end = f" (of {len(outcomes):,} calls {', '.join(bad)})" if bad else ""
    names: list[str] = []
    left = room - weight(f"Used  and {len(counts):,} more{end}.")
    for name, count in counts.items():
        text = f"{_short(name)}{f' {count:,} times' if count > 1 else ''}"
        left -= weight(text) + len(", ")
        if left < 0 and names:
            break
        names.append(text)
    more = f" and {len(counts) - len(names):,} more" if len(counts) > len(names) else ""
    return f"Used {', '.join(names)}{more}{end}."


def _several(outcomes: Sequence[ToolOutcome], tell: Callable[[ToolOutcome, int], str], room: int) -> str:
    """What is told of the first few, and of how many more nothing is told; `""` where there is no room for any."""
    shown = outcomes[:_TOLD]
    more = f"{_BETWEEN}{len(outcomes) - len(shown):,} more" if len(outcomes) > len(shown) else ""
    room -= weight(more) + len(_BETWEEN) * (len(shown) - 1)
    texts = fitted([partial(tell, item) for item in shown], room)
    if sum(map(weight, texts)) > room or set(texts) <= {GAP, ""}:
        return ""
    return f"{_BETWEEN.join(texts)}{more}"


def _arguments(outcome: ToolOutcome, room: int) -> str:
    return outline(outcome.arguments, room, figures_first=False)


def _result(outcome: ToolOutcome, room: int) -> str:
    return outline(outcome.result, room) or _EMPTY


def _reason(outcome: ToolOutcome, room: int) -> str:
    result: Any = outcome.result
    if isinstance(result, Mapping):
        result = next((result[key] for key in _REASONS if result.get(key)), result)
    return outline(result, max(room, _LEAST))


def _short(name: str) -> str:
    return clip(one_line(name), _MOST_NAME) or _UNNAMED


def _left_out(count: int) -> str:
    return "a result" if count == 1 else f"{count:,} results"
