"""The gist of a text, of any JSON, and of calls of tools, as one line within a weight (see `sentences`). Pure.

- Of a text: its first and last sentence, and those with figures.
- Of a JSON document: keys with their values, those with figures first. A key stands by itself where the one before it
  belongs to the same object, otherwise with its path:

      total: 156; pmids: 4 in all, 12345678, 23456789, 34567890, 45678901; first.title: Empagliflozin; year: 2015; ...
- Of calls of tools: a sentence each. Where there is no room for all, the last one counts most, then those whose
  results have figures, the latest first. Others are counted.

      pubmed_search (query: SGLT2 inhibitors; limit: 200) gave total: 156
      fetch (pmid: 23456789) failed: time-out
      Also used web_search 12 times, load (of 13 calls 1 failed).
- Decisions and next steps are found by cue words in English, Chinese, German, French and Spanish. A plan is a
  decision only where a choice, an order or a reason comes with it.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Final

from nexus.core.turns import ToolOutcome
from nexus.services.text.content import compact_json, is_error, opened
from nexus.services.text.sentences import (
    GAP,
    beginning,
    between_words,
    both_ends,
    clip,
    fitted,
    is_ended,
    is_question,
    joint,
    printable_line,
    sentences,
    weight,
)
from nexus.services.text.words import ENGLISH, Words

_NUMERALS: Final = "〇零一二三四五六七八九十百千万亿"
# A Chinese numeral by itself is most often part of a word.
_NUMBER = re.compile(rf"\d(?:[\d.,:/%\u2013-]*[\d%])?|[{_NUMERALS}]{{2,}}")
# Characters kept around a number in a sentence that is too long.
_BEFORE, _BEHIND = 32, 24
# Below this weight a part of a sentence says nothing.
LEAST_SENTENCE: Final = 24
# The first sentence and the last leave some room to the others.
_ENDS: Final = 2
# The characters examined of a text without any letter or number.
_MOST_BLANK: Final = 4_096
# Between two parts of a text where something is left out.
OMISSION: Final = f" {GAP} "

# Bounds on the work for a document of any size.
_MOST_LEAVES: Final = 1_000
_DEEPEST: Final = 64
_MOST_KEY: Final = 120
# A longer text is condensed before it becomes part of a line.
_MOST_TEXT: Final = 4_096
# A value of this weight with a figure in it is one of the key figures.
_SHORT: Final = 64
# Below this weight a part of a value says nothing, nor does one of the reason of a failure.
_LEAST_VALUE: Final = 12
_LEAST_REASON: Final = 16
# A list of so many items is not counted.
_UNCOUNTED: Final = 3
_COUNT: Final = -1
# A document of this weight is shown whole; of a heavier one, so many items of a list.
_WHOLE: Final = 320
_MOST_LISTED: Final = 8
# A key figure in an object of an object comes before a text, but not one that lies deeper.
_NEARER: Final = 1.5
_MORE: Final = f"; {GAP}"
_NOTHING: Final = "none"

# The most weight of a call, and the least that a call gets, unless it needs less.
_MOST_OF_CALL, _ENOUGH_FOR_CALL = 320, 128
# The weight between two calls, and the weight reserved for counting the others.
_APART: Final = 2
COUNT_ROOM: Final = 120
_MOST_NAME: Final = 64
# Keys under which results that are objects give the reason of a failure.
_REASONS: Final = ("error", "message", "reason", "detail")

Path = tuple[str | int, ...]
Describe = Callable[[ToolOutcome, int], str]


def figures(text: str) -> list[str]:
    """The numbers in `text`, as they are written."""
    return _NUMBER.findall(text)


def has_figure(text: str) -> bool:
    """Whether there is a number in `text`."""
    return _NUMBER.search(text) is not None


def digest(text: str, room: int) -> str:
    """One line of at most this weight: all of `text`, or its first and last sentence and those with figures.

    Omissions are marked by `...`. Where there is room for little, the first sentence counts most, then the last.
    """
    pieces = list(sentences(text)) or [clip(printable_line(text[:_MOST_BLANK]), room)]
    if sum(map(len, pieces)) <= room and weight(whole := _joined(pieces, dict(enumerate(pieces)))) <= room:
        return whole
    kept: dict[int, str] = {}
    left = room - len(OMISSION)
    for rank, index in enumerate(_by_worth(pieces)):
        if left < LEAST_SENTENCE:
            break
        kept[index] = excerpt(pieces[index], min(left, room * 2 // 5) if rank < _ENDS < len(pieces) else left)
        left -= weight(kept[index]) + len(OMISSION)
    return _joined(pieces, kept) if kept else clip(f"{pieces[0]} {GAP}", room)


def excerpt(sentence: str, room: int) -> str:
    """A line of at most this weight: the sentence, or its beginning and its numbers with the words around them."""
    if len(sentence) <= room and weight(sentence) <= room:
        return sentence
    spans = [(0, between_words(sentence, beginning(sentence, room // 3)))]
    left = room - weight(sentence[: spans[0][1]]) - len(GAP)
    for number in _NUMBER.finditer(sentence):
        _, known = spans[-1]
        if number.end() <= known:
            continue
        start, end = _with_words(sentence, number, room)
        start = max(start, known)
        left -= weight(sentence[start:end]) + len(OMISSION)
        if left < 0:
            break
        if start == known:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    if len(spans) == 1 and spans[0][1] <= room // 3:
        return clip(sentence, room)
    kept = OMISSION.join(sentence[start:end].strip() for start, end in spans)
    return kept if spans[-1][1] == len(sentence) else f"{kept}{GAP}"


def _with_words(sentence: str, number: re.Match[str], room: int) -> tuple[int, int]:
    """Where the number and the words around it begin and end; where there is little room, there are fewer words."""
    before = sentence[max(number.start() - _BEFORE, 0) : number.start()]
    behind = sentence[number.end() : number.end() + _BEHIND]
    start = number.start() - beginning(before[::-1], min(_BEFORE, room // 4)) if before else 0
    end = number.end() + beginning(behind, min(_BEHIND, room // 5)) if behind else number.end()
    return between_words(sentence, max(start, 0)), max(between_words(sentence, end), number.end())


def _by_worth(pieces: Sequence[str]) -> Iterator[int]:
    """The places of the first whole sentence, the last, and those with figures; of equal ones the first."""
    seen: set[str] = set()
    first = next((index for index, piece in enumerate(pieces) if is_ended(piece)), 0)
    others = (index for index, piece in enumerate(pieces) if has_figure(piece))
    for index in (first, len(pieces) - 1, *others):
        if pieces[index] not in seen:
            seen.add(pieces[index])
            yield index


def _joined(pieces: Sequence[str], kept: Mapping[int, str]) -> str:
    """The kept sentences in their order, with a mark where some are left out."""
    line, after = "", 0
    for index in sorted(kept):
        if index != after:
            line += OMISSION if line and not line.endswith(GAP) else " " if line else f"{GAP} "
        elif line:
            line += joint(line)
        line += kept[index]
        after = index + 1
    return line if after == len(pieces) or line.endswith(GAP) else f"{line} {GAP}"


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A value in a document, on one line unless it is too long; is it a text rather than a number, a flag or nothing?

    `path` are the keys and list indexes that lead to it; -1 is the index of the length of a list.
    """

    path: Path
    text: str
    is_text: bool = False

    @property
    def place(self) -> int:
        """The furthest place in a list that leads to it; 0 where there is no list."""
        return max((name for name in self.path if isinstance(name, int)), default=0)

    def label(self, after: "_Leaf | None" = None) -> str:
        """The text before the value, where `after` is the value before it."""
        of_the_same = after is not None and after.path[:-1] == self.path[:-1]
        path = self.path[-1:] if of_the_same else self.path
        names = [clip(printable_line(name), _MOST_KEY) for name in path if isinstance(name, str)]
        between = "" if after is None else "; " if names or not of_the_same else ", "
        return f"{between}{'.'.join(names)}: " if names else between

    def within(self, room: int) -> "_Leaf":
        """The same with a text of at most this weight."""
        if weight(self.text) <= room:
            return self
        return replace(self, text=outline(self.text, room) if self.is_text else clip(self.text, room))


def outline(value: Any, room: int, *, figures_first: bool = True) -> str:
    """One line of at most this weight; `""` where `value` is no more than space. `...` marks an omission.

    Where not all of it fits, values with figures come first if `figures_first`.
    """
    value = opened(value)
    if isinstance(value, str):
        return digest(value, room)
    leaves = list(islice(_leaves((), value), _MOST_LEAVES))
    few = min(room, _WHOLE)
    if sum(len(leaf.text) for leaf in leaves) <= few and len(leaves) < _MOST_LEAVES:
        line = _line_of(leaves)
        if weight(line) <= few:
            return line
    kept = _key_leaves(leaves, room - len(_MORE), _NEARER if figures_first else 0)
    line = _line_of(kept)
    if len(kept) == len(leaves) < _MOST_LEAVES:
        return line
    return f"{line}{_MORE}" if kept else GAP


def _leaves(path: Path, value: Any) -> Iterator[_Leaf]:
    """The values in a document, in their order. Of a longer list, first how many there are."""
    items: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, Mapping):
        items = ((str(key), item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        items = enumerate(value)
        if len(value) > _UNCOUNTED:
            yield _Leaf((*path, _COUNT), f"{len(value):,} in all")
    if not isinstance(value, Mapping | list | tuple) or not value:
        yield _leaf(path, value)
    elif len(path) == _DEEPEST:
        yield _Leaf(path, GAP)
    else:
        for name, item in items:
            yield from _leaves((*path, name), item)


def _leaf(path: Path, value: Any) -> _Leaf:
    if isinstance(value, str):
        text = value if len(value) > _MOST_TEXT else printable_line(value)
        return _Leaf(path, text or _NOTHING, is_text=True)
    if value is None or value in ((), [], {}):
        return _Leaf(path, _NOTHING)
    return _Leaf(path, printable_line(compact_json(value).strip('"')))


def _key_leaves(leaves: Sequence[_Leaf], room: int, nearer: float) -> list[_Leaf]:
    """The values that fit, in their order; `_worth` says which are tried first. Each leaves a third to the others."""
    shown = (index for index, leaf in enumerate(leaves) if leaf.place < _MOST_LISTED)
    order = sorted(shown, key=lambda index: _worth(leaves[index], nearer))
    kept: dict[int, _Leaf] = {}
    for index in order:
        leaf, before = leaves[index], kept.get(index - 1)
        left = room - (weight(leaf.label(before)) if before else weight(leaf.label()) + len("; "))
        if left >= min(_LEAST_VALUE, weight(leaf.text)):
            kept[index] = leaf.within(left if index == order[-1] else max(left * 2 // 3, _LEAST_VALUE))
            room = left - weight(kept[index].text)
    return [kept[index] for index in sorted(kept)]


def _worth(leaf: _Leaf, nearer: float) -> tuple[bool, float]:
    """Least for the most important: starts of lists, then shallow values; a key figure counts as shallower."""
    is_key_figure = len(leaf.text) <= _SHORT and weight(leaf.text) <= _SHORT and has_figure(leaf.text)
    return leaf.place > _UNCOUNTED, len(leaf.path) - nearer * is_key_figure


def _line_of(leaves: Sequence[_Leaf]) -> str:
    return "".join(f"{leaf.label(before)}{leaf.text}" for before, leaf in zip([None, *leaves], leaves, strict=False))


def describe_calls(
    outcomes: Sequence[ToolOutcome], describe: Describe, room: int
) -> tuple[list[str], list[ToolOutcome]]:
    """Descriptions of the calls for which there is room, in their order; and the other calls."""
    order = _calls_by_worth(outcomes)
    kept = _picked(order, outcomes, describe, room)
    if len(kept) < len(outcomes):
        kept = _picked(order, outcomes, describe, room := room - COUNT_ROOM)
    descriptions = [partial(describe, outcomes[index]) for index in sorted(kept)]
    others = [outcome for index, outcome in enumerate(outcomes) if index not in kept]
    return fitted(descriptions, room - len(kept) * _APART, _MOST_OF_CALL), others


def call_and_result(outcome: ToolOutcome, room: int, words: Words = ENGLISH) -> str:
    """The call and its result as one sentence without its full stop."""
    result = _result_in_words(outcome, room, words)
    call = call_with_arguments(outcome, max(room * 2 // 5, room - weight(result) - 1))
    left = room - weight(call) - 1
    return f"{call} {result if weight(result) <= left else _result_in_words(outcome, left, words)}"


def call_with_arguments(outcome: ToolOutcome, room: int) -> str:
    """The name and the arguments."""
    name = _short(outcome.name)
    left = room - weight(name) - 3
    given = outline(outcome.arguments, left, figures_first=False) if outcome.arguments else ""
    return f"{name} ({given})" if _says_something(given, left) else name


def result_of_call(outcome: ToolOutcome, room: int, words: Words = ENGLISH) -> str:
    """The name and the result."""
    name = _short(outcome.name)
    return f"{name} {_result_in_words(outcome, room - weight(name) - 1, words)}"


def read_result(outcome: ToolOutcome) -> ToolOutcome:
    """The outcome with its result opened; failed if the result says so, though the call itself may have succeeded."""
    success = False if is_error(outcome.result) else outcome.success
    return outcome.model_copy(update={"result": opened(outcome.result), "success": success})


def tools_used(outcomes: Sequence[ToolOutcome], room: int, words: Words = ENGLISH, *, also: bool = False) -> str:
    """Which tools, how often, and how many calls came to nothing, as a sentence; `""` for none."""
    form = words.also_used if also else words.used
    if not outcomes:
        return ""
    counts = Counter(item.name for item in outcomes)
    failed = sum(item.result is not None and item.success is False for item in outcomes)
    lost = sum(item.result is None for item in outcomes)
    counted = ((failed, words.of_them_failed), (lost, words.of_them_lost))
    bad = [what.format(count) for count, what in counted if count]
    end = words.of_calls.format(len(outcomes), ", ".join(bad)) if bad else ""
    names: list[str] = []
    left = room - weight(form.format("", words.and_more.format(len(counts)), end))
    for name, count in counts.items():
        text = f"{_short(name)}{words.times.format(count) if count > 1 else ''}"
        left -= weight(text) + len(", ")
        if left < 0 and names:
            break
        names.append(text)
    more = words.and_more.format(len(counts) - len(names)) if len(counts) > len(names) else ""
    return form.format(", ".join(names), more, end)


def _picked(order: Sequence[int], outcomes: Sequence[ToolOutcome], describe: Describe, room: int) -> set[int]:
    """The places of the calls that are described; one at least."""
    kept: set[int] = set()
    for index in order:
        room -= min(weight(describe(outcomes[index], _MOST_OF_CALL)), _ENOUGH_FOR_CALL) + _APART
        if room < 0 and kept:
            break
        kept.add(index)
    return kept


def _calls_by_worth(outcomes: Sequence[ToolOutcome]) -> list[int]:
    """The places of the last call, of those that gave figures, and of the others; the latest first."""
    last = len(outcomes) - 1
    return sorted(range(last, -1, -1), key=lambda index: index != last and not _gave_figures(outcomes[index]))


def _gave_figures(outcome: ToolOutcome) -> bool:
    return (
        outcome.success is not False
        and outcome.result is not None
        and has_figure(outline(outcome.result, _ENOUGH_FOR_CALL))
    )


def _result_in_words(outcome: ToolOutcome, room: int, words: Words) -> str:
    if outcome.result is None:
        return words.no_result
    if outcome.success is False:
        reason = _reason(outcome.result, room - weight(words.failed_because.format("")))
        return words.failed_because.format(reason) if reason else words.failed
    left = room - weight(words.gave.format(""))
    given = outline(outcome.result, left) or words.empty_result
    return words.gave.format(given if _says_something(given, left) else words.some_result)


def _reason(result: Any, room: int) -> str:
    if isinstance(result, Mapping):
        result = next((result[key] for key in _REASONS if result.get(key)), result)
    return outline(result, max(room, _LEAST_REASON))


def _says_something(text: str, room: int) -> bool:
    return text not in {GAP, ""} and weight(text) <= room


def _short(name: str) -> str:
    return clip(printable_line(name), _MOST_NAME) or "unknown"


# Of texts in lower case: to ignore the case takes several times as long.
_BECAUSE: Final = (
    r"\b(?:because|so that|in order to|since(?! \d)|weil|damit|parce que|puisque|afin d|porque|ya que|para que)"
    r"|因为|由于|以便|为了"
)
_PLAN: Final = (
    r"(?:(?:i|we)(?:['’]ll| will)|let(?:['’]s| me(?! know))|(?:am|are|['’]m|['’]re) going to|ich werde|je vais|voy a)"
)
DECISION: Final = re.compile(
    r"\b(?:decid(?:e|es|ed|ing|í|ido|imos)|decision|cho(?:ose|oses|osing|se|sen)|opt(?:ed|ing) for|settled on"
    r"|instead of|rather than"
    r"|entsch(?:eide|ied|ieden)|entscheidung|(?:aus)?gewählt|anstatt|statt dessen|stattdessen"
    r"|décid(?:é|ée|e|ons)|décision|choisi|choisis|plutôt que|au lieu d[eu]"
    r"|decisión|eleg(?:í|ido|imos)|opt(?:é|ado|amos) por|en (?:lugar|vez) de"
    rf"|{_PLAN} (?:use|drop|skip|exclude|leave out|go with|start with)"
    # Bounded: a text may consist of nothing but plans.
    rf"|{_PLAN}\b(?=[^.!?\n]{{0,99}}(?:\b(?:first|before|zuerst|d['’]abord|primero)\b|{_BECAUSE})))\b"
    r"|决定|选择|选用|采用|改用|打算|我们?[将会]?先",
)
NEXT_STEP: Final = re.compile(
    r"\b(?:next steps?|next(?=[,:])|as a next|remains? to|still (?:to|needs?|has to|have to)|follow[- ]up|to[- ]do"
    r"|(?:should|needs? to|must) (?:now|next|then|also|be)|recommend(?:ed)?"
    r"|als nächstes|nächster? schritte?|noch zu|empfehle"
    r"|prochaines? étapes?|étapes? suivantes?|reste à|recommand(?:e|é|ons)"
    r"|próximos? pasos?|siguientes? pasos?|falta por|queda por|recomiend[ao])\b"
    r"|下一步|接下来|后续|待办|仍需|还需|有待|建议",
)
_REASON = re.compile(_BECAUSE)


def sentences_with_cue(texts: Iterable[str], cue: re.Pattern[str], *, most: int, room: int) -> list[str]:
    """Up to `most` different sentences with the cue, each of at most this weight, without questions.

    Where there are more, those with a reason are taken, then the first ones; all in their order.
    """
    found: dict[str, None] = {}
    for text in map(both_ends, texts):
        # Most texts have no cue anywhere, and need not be taken apart.
        for sentence in sentences(text) if cue.search(text.lower()) else ():
            if cue.search(sentence.lower()) and not is_question(sentence):
                found[sentence] = None
    taken = set(sorted(found, key=lambda sentence: not _REASON.search(sentence.lower()))[:most])
    return list(dict.fromkeys(excerpt(sentence, room) for sentence in found if sentence in taken))
