"""Calls of tools and their results in words, within a weight. Pure.

    pubmed_search (query: SGLT2 inhibitors; limit: 200) gave total: 156
    fetch (pmid: 23456789) failed: time-out
    Also used web_search 12 times, load (of 13 calls 1 failed).

Where there is no room for all calls, the last one counts most, then those whose results have figures, the latest first:
the outcome of a search is worth more than its first steps. Calls that are left out are counted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from nexus.core.turns import ToolOutcome
from nexus.services.text.content import is_error, opened
from nexus.services.text.digest import has_figure, outline
from nexus.services.text.sentences import GAP, clip, fitted, one_line, weight

# The most weight of one call, and the least that a call gets, unless it needs less.
_MOST, _ENOUGH = 320, 128
# The weight between two calls, and the weight reserved for counting the others.
_APART: Final = 2
COUNT_ROOM: Final = 120
_MOST_NAME: Final = 64
_UNNAMED: Final = "unknown"
# The least weight for the reason of a failure.
_LEAST: Final = 16
_EMPTY: Final = "an empty result"
# Where results that are objects say what went wrong.
_REASONS: Final = ("error", "message", "reason", "detail")

Describe = Callable[[ToolOutcome, int], str]


def describe_calls(
    outcomes: Sequence[ToolOutcome], describe: Describe, room: int
) -> tuple[list[str], list[ToolOutcome]]:
    """Descriptions of the calls for which there is room, in their order; and the other calls."""
    if not outcomes:
        return [], []
    order = list(_by_worth(outcomes))
    kept = _picked(order, outcomes, describe, room)
    if len(kept) < len(outcomes):
        kept = _picked(order, outcomes, describe, room := room - COUNT_ROOM)
    descriptions = [partial(describe, outcomes[index]) for index in sorted(kept)]
    others = [outcome for index, outcome in enumerate(outcomes) if index not in kept]
    return fitted(descriptions, room - len(kept) * _APART, _MOST), others


def call_and_result(outcome: ToolOutcome, room: int) -> str:
    """The call and its result as one sentence without its full stop."""
    result = _result_in_words(outcome, room)
    call = call_with_arguments(outcome, max(room * 2 // 5, room - weight(result) - 1))
    left = room - weight(call) - 1
    return f"{call} {result if weight(result) <= left else _result_in_words(outcome, left)}"


def call_with_arguments(outcome: ToolOutcome, room: int) -> str:
    """The name and the arguments."""
    name = _short(outcome.name)
    left = room - weight(name) - 3
    given = outline(outcome.arguments, left, figures_first=False) if outcome.arguments else ""
    return f"{name} ({given})" if _says_something(given, left) else name


def result_of_call(outcome: ToolOutcome, room: int) -> str:
    """The name and the result."""
    name = _short(outcome.name)
    return f"{name} {_result_in_words(outcome, room - weight(name) - 1)}"


def read_result(outcome: ToolOutcome) -> ToolOutcome:
    """The outcome with its result opened; failed if the result says so, though the call itself may have succeeded."""
    success = False if is_error(outcome.result) else outcome.success
    return outcome.model_copy(update={"result": opened(outcome.result), "success": success})


def tools_used(outcomes: Sequence[ToolOutcome], room: int, head: str = "Used") -> str:
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
    left = room - weight(f"{head}  and {len(counts):,} more{end}.")
    for name, count in counts.items():
        text = f"{_short(name)}{f' {count:,} times' if count > 1 else ''}"
        left -= weight(text) + len(", ")
        if left < 0 and names:
            break
        names.append(text)
    more = f" and {len(counts) - len(names):,} more" if len(counts) > len(names) else ""
    return f"{head} {', '.join(names)}{more}{end}."


def _picked(order: Sequence[int], outcomes: Sequence[ToolOutcome], describe: Describe, room: int) -> set[int]:
    """The places of the calls that are described; one at least."""
    kept: set[int] = set()
    for index in order:
        room -= min(weight(describe(outcomes[index], _MOST)), _ENOUGH) + _APART
        if room < 0 and kept:
            break
        kept.add(index)
    return kept


def _by_worth(outcomes: Sequence[ToolOutcome]) -> Iterator[int]:
    """The places of the last call, of those that gave figures, and of the others; the latest first."""
    others: list[int] = []
    for index in reversed(range(len(outcomes))):
        if index == len(outcomes) - 1 or _gave_figures(outcomes[index]):
            yield index
        else:
            others.append(index)
    yield from others


def _gave_figures(outcome: ToolOutcome) -> bool:
    return outcome.success is not False and outcome.result is not None and has_figure(outline(outcome.result, _ENOUGH))


def _result_in_words(outcome: ToolOutcome, room: int) -> str:
    if outcome.result is None:
        return "has no result"
    if outcome.success is False:
        reason = _reason(outcome.result, room - len("failed: "))
        return f"failed: {reason}" if reason else "failed"
    left = room - len("gave ")
    given = outline(outcome.result, left) or _EMPTY
    return f"gave {given if _says_something(given, left) else 'a result'}"


def _reason(result: Any, room: int) -> str:
    if isinstance(result, Mapping):
        result = next((result[key] for key in _REASONS if result.get(key)), result)
    return outline(result, max(room, _LEAST))


def _says_something(text: str, room: int) -> bool:
    return text not in {GAP, ""} and weight(text) <= room


def _short(name: str) -> str:
    return clip(one_line(name), _MOST_NAME) or _UNNAMED
