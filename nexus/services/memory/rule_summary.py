"""The summary of compacted rows by rules alone: a line for each run (contract §7). Pure.

    (Messages that are not told here, and that search_memory finds: 48)
    - 2026-03-01 10:02Z (6 messages): Asked: Which trains go to Porto? Tools: timetable gave trains: 3. Answered: Three.
    - 2026-03-01 10:07Z (2 messages, in part): Tools: timetable (to: Faro) gave trains: 4.
    - 2026-03-01 10:09Z (2 messages): 问：还有别的车吗？ 答：没有了。

- The summary before this one comes first, unchanged: lines like these, and before them a text of a model, which may
  look like such lines: none counts for more messages than the summary stands for, nor all together.
- Where there is too much, lines become shorter, the oldest first, in fixed steps, so that a line that need not change
  has the same bytes in the next summary. Then the oldest are left out and counted in the first line. A third of the
  room is for the earlier lines, as long as there is that much of them.
- However short a line is, it says the outcome: sentences with figures and names come first, in the answer before the
  question. Its words are of its own language (`text/words`); its head and the first line are the same in all.
- A line about a part of a run says "in part", and calls nothing missing.
- Texts are escaped where the summary is shown, not here. The same rows give the same text.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Final

from nexus.core.models import parse_moment
from nexus.core.ports import Row
from nexus.core.working_memory import Compaction
from nexus.services.history.messages import Speaker
from nexus.services.history.run_facts import TurnFacts, read_facts
from nexus.services.text.digest import (
    COUNT_ROOM,
    DECISION,
    LEAST_SENTENCE,
    OMISSION,
    call_and_result,
    describe_calls,
    digest,
    excerpt,
    figures,
    read_result,
    sentences_with_cue,
    tools_used,
)
from nexus.services.text.sentences import (
    GAP,
    clip,
    is_blank,
    is_question,
    printable_line,
    sentences,
    size,
    slices,
    weight,
)
from nexus.services.text.summary_checks import words_for
from nexus.services.text.words import CHINESE, ENGLISH, Words

TokenCount = Callable[[str], int]

_ASKED: Final = (ENGLISH.asked, CHINESE.asked)
_TOOLS: Final = (ENGLISH.tools, CHINESE.tools)
# Labels by the worth of the best sentence behind them.
_BY_WORTH: Final = (
    *(ENGLISH.answered, CHINESE.answered, ENGLISH.said, CHINESE.said),
    *(*_ASKED, *_TOOLS, "", ENGLISH.decided, CHINESE.decided),
)
_LABEL: Final = re.compile(rf"(?:\A| )({'|'.join(filter(None, _BY_WORTH))})")

_NOT_TOLD: Final = "(Messages that are not told here, and that search_memory finds: {:,})"
_NOTHING: Final = "(Nothing was said.)"
_NOT_TOLD_LINE: Final = re.compile(
    r"\(Messages that are not told here, and that search_memory finds: (\d[\d,]{0,15})\)"
)
_LINE: Final = re.compile(
    r"(- (?:\d{4}-\d\d-\d\d \d\d:\d\dZ|at an unknown time) \((\d[\d,]{0,15}) messages?(?:, in part)?\): )(\S.*)"
)

# Weights (see `sentences`) of a line and of its parts; the rest is for outcomes of tools.
_LINE_ROOM: Final = 1_200
_ASKED_ROOM: Final = 320
_DECIDED_ROOM: Final = 160
_ANSWERED_ROOM: Final = 400
_ANSWERED_ALONE_ROOM: Final = 800
# Weights of the shorter forms of a line, without its time.
_SHORT: Final = (360, 200, 90)
# Parts of the room that a model's text may take in its shorter forms.
_PARTS: Final = (2, 3, 6)
# No line takes fewer tokens, so that no more of them need to be made.
_LEAST_TOKENS: Final = 16

# A word with a capital that begins no sentence, or one with a sign as in names of files and versions.
_NAME: Final = re.compile(r"(?<=[\w,;:(] )[^\W\d_a-z]\w+|\w+[/_@-]\w+|\w+\.\w+", re.ASCII)
# Borders of tool outcomes: names of tools are in lower case, which begins no sentence elsewhere.
_CALLS: Final = re.compile(
    r"(?<=[.!?…。！？]) (?=\S+ (?:\(|gave |failed|has no result|得到 |失败|没有结果)|Also used |还用了 )"
)
# With more room than this, the best sentence leaves some for the question.
_ONE_SENTENCE_ROOM: Final = 120


def summarise(
    latest: Compaction | None,
    runs: Sequence[Sequence[Row]],
    *,
    most_tokens: int,
    count: TokenCount,
    elsewhere: Collection[str] = (),
) -> str:
    """The summary of `runs` (see `by_run`) and of everything in that of `latest`, in at most so many tokens.

    Where a model wrote that one, none of its lines counts messages. The runs `elsewhere` have rows that are not here.
    """
    carried, untold = _read(latest, most_tokens, count) if latest else ([], 0)
    first = max(len(runs) - max(most_tokens // _LEAST_TOKENS, 1), 0)
    new = [line for run in runs[first:] if (line := _line_of(run, elsewhere))]
    untold += sum(map(len, runs)) - sum(line.messages for line in new)
    return _Fitting(carried, new, untold, most_tokens, count).text()


def by_run(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows that belong together: those of a run, and those without a run from one human message to the next.

    The order of the rows is kept; groups come by their first row.
    """
    groups: list[list[Row]] = []
    known: dict[str, list[Row]] = {}
    for row in rows:
        given = row.get("run_id")
        run_id = given if isinstance(given, str) else ""
        begins = not run_id and str(row.get("role")).upper() == "HUMAN"
        if begins or run_id not in known:
            known[run_id] = []
            groups.append(known[run_id])
        known[run_id].append(row)
    return groups


@dataclass(slots=True, eq=False)
class _Line:
    """A run, or a text that a model wrote about many: the messages that it stands for, and shorter and shorter forms.

    `step` is the form that is used; beyond the last, the line is left out.
    """

    messages: int
    forms: tuple[str, ...]
    by_model: bool = False
    step: int = 0

    @property
    def text(self) -> str:
        return self.forms[self.step] if self.step < len(self.forms) else ""


class _Fitting:
    """Brings lines into a number of tokens."""

    def __init__(self, carried: list[_Line], new: list[_Line], untold: int, most: int, count: TokenCount) -> None:
        self._carried, self._new = carried, new
        self._untold = untold
        self._most = most
        self._count = count
        self._count_line = cache(count)

    def text(self) -> str:
        """The lines, as long as they may be together."""
        if self._fits() or any(self._fits() for _ in self._steps()):
            return self._joined()
        text = self._joined()
        return text[: max(_longest(text, self._most, self._count), 1)]

    def _joined(self) -> str:
        lines = [*self._carried, *self._new]
        untold = self._untold + sum(line.messages for line in lines if not line.text)
        shown = [line.text for line in lines if line.text]
        return "\n".join([_NOT_TOLD.format(untold), *shown] if untold else shown) or _NOTHING

    def _fits(self) -> bool:
        # Adding up the tokens of single lines is fast; together they may take a few more or less.
        alone = self._cost(self._carried) + self._cost(self._new)
        return alone <= self._most and self._count(self._joined()) <= self._most

    def _steps(self) -> Iterator[None]:
        """Make lines shorter, one with each step, until there are none."""
        third = self._most // 3
        yield from self._shorten(self._new, 1)
        for step in range(1, max((len(line.forms) for line in self._carried), default=0)):
            yield from self._shorten(self._carried, step, above=third)
        yield from self._leave_out([line for line in self._carried if not line.by_model], above=third)
        for step in range(2, len(_SHORT) + 1):
            yield from self._shorten(self._new, step)
        for step in range(1, len(_PARTS) + 1):
            yield from self._shorten(self._carried, step)
        yield from self._leave_out(self._carried)
        yield from self._leave_out(self._new)

    def _shorten(self, lines: Sequence[_Line], step: int, *, above: int = -1) -> Iterator[None]:
        for line in lines:
            if line.step < step < len(line.forms) and self._cost(self._carried) > above:
                line.step = step
                yield

    def _leave_out(self, lines: Sequence[_Line], *, above: int = -1) -> Iterator[None]:
        for line in lines:
            if line.text and self._cost(self._carried) > above:
                line.step = len(line.forms)
                yield

    def _cost(self, lines: Sequence[_Line]) -> int:
        """The tokens of these lines, one by one."""
        return sum(self._count_line(line.text) for line in lines)


def _read(latest: Compaction, most_tokens: int, count: TokenCount) -> tuple[list[_Line], int]:
    """The lines of its summary, and how many messages that does not tell."""
    by_model = latest.source == "model"
    lines = latest.summary.split("\n") if latest.summary.strip() else []
    head = _NOT_TOLD_LINE.fullmatch(lines[0]) if lines and not by_model else None
    lines = lines[1:] if head else lines
    found: list[_Line] = []
    rest = latest.total
    while lines and not by_model and (line := _LINE.fullmatch(lines[-1])) and _number(line[2]) <= rest:
        lines.pop()
        rest -= _number(line[2])
        found.append(_Line(_number(line[2]), _forms(line[1], line[3])))
    found.reverse()
    text = "\n".join(lines).strip("\n")
    if not text.strip():
        return found, rest
    untold = min(_number(head[1]), rest) if head else 0
    shortened = (_beginning(text.removesuffix(f"\n{GAP}"), most_tokens // part, count) for part in _PARTS)
    written = _Line(rest - untold, (text, *filter(None, shortened)), by_model=True)
    return [written, *found], untold


def _beginning(text: str, most: int, count: TokenCount) -> str:
    """The beginning of the text in so many tokens, cut after a line, a sentence or a word."""
    if count(text) <= most:
        return text
    fits = _longest(text, most - count(f"\n{GAP}"), count)
    piece = next(slices(text, size(text[:fits])), "").rstrip() if fits else ""
    return f"{piece}\n{GAP}" if piece else ""


def _longest(text: str, most: int, count: TokenCount) -> int:
    """The number of characters from the start that have so many tokens."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(text[:middle]) <= most else (low, middle - 1)
    return low


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def _line_of(run: Sequence[Row], elsewhere: Collection[str]) -> _Line | None:
    facts = read_facts(run)
    words = words_for(_said_by(facts, "user"), facts.answer or _said_by(facts, "assistant"))
    text = _text_of(facts, words)
    if not text:
        return None
    moments = [moment for row in run if (moment := parse_moment(row.get("timestamp")))]
    at = f"{min(moments).isoformat(' ')[:16]}Z" if moments else "at an unknown time"
    plural = "s" if len(run) != 1 else ""
    is_part = is_blank(facts.input) or not facts.finished or run[0].get("run_id") in elsewhere
    head = f"- {at} ({len(run):,} message{plural}{', in part' if is_part else ''}): "
    return _Line(len(run), _forms(head, text))


def _forms(head: str, text: str) -> tuple[str, ...]:
    return (f"{head}{text}", *(f"{head}{shorten_line(text, room)}" for room in _SHORT))


def _text_of(facts: TurnFacts, words: Words) -> str:
    """Question, tool outcomes, decisions and answer on one line; `""` where there is none of these."""
    room = _ANSWERED_ROOM if facts.outcomes else _ANSWERED_ALONE_ROOM
    asked = _labelled(words.asked, _said_by(facts, "user"), _ASKED_ROOM, words)
    if facts.finished:
        last = _labelled(words.answered, facts.answer, room, words)
        earlier = [item.text for item in facts.messages if item.role == "assistant" and item.text != facts.answer]
        decided = sentences_with_cue(earlier, DECISION, most=1, room=_DECIDED_ROOM)
    else:
        last, decided = _labelled(words.said, _said_by(facts, "assistant"), room, words), []
    others = [asked, *(f"{words.decided}{words.ended(sentence)}" for sentence in decided if sentence not in last), last]
    done = _tools_of(facts, words, _LINE_ROOM - sum(weight(part) + 1 for part in others))
    return printable_line(" ".join(filter(None, (asked, done, *others[1:]))))


def _tools_of(facts: TurnFacts, words: Words, room: int) -> str:
    """A sentence for each call, and one for those for which there is no room; `""` for none."""
    if not facts.outcomes:
        return ""
    told_of, others = describe_calls(
        [read_result(outcome) for outcome in facts.outcomes],
        partial(call_and_result, words=words),
        room - weight(words.tools),
    )
    rest = tools_used(others, COUNT_ROOM, words, also=True)
    return words.tools + " ".join(filter(None, (*map(words.ended, told_of), rest)))


def _said_by(facts: TurnFacts, speaker: Speaker) -> str:
    return "\n".join(item.text for item in facts.messages if item.role == speaker and not is_blank(item.text))


def _labelled(label: str, text: str, room: int, words: Words) -> str:
    return "" if is_blank(text) else f"{label}{words.ended(digest(text, room))}"


@dataclass(frozen=True, slots=True)
class _Sentence:
    """A sentence of a line: the number of its part, its place in that, the part's label."""

    part: int
    place: int
    label: str
    text: str

    @property
    def worth(self) -> int:
        """How much it says: figures and names. Of a question's part, only questions count."""
        asks = is_question(self.text)
        if self.label in _ASKED:
            return asks
        return 0 if asks else min(2 * len(figures(self.text)) + len(_NAME.findall(self.text)), 6)


def shorten_line(line: str, room: int) -> str:
    """A line of at most this weight, if that is eight or more. One that fits is not changed.

    Asked: I like trains. When does the first one go? Tools: f gave first: 9:02. Answered: Sure. It goes at 9:02.
    Asked: When does the first one go? Answered: It goes at 9:02.
    """
    if weight(line) <= room:
        return line
    found = list(_sentences_of(line))
    kept: dict[_Sentence, str] = {}
    used: set[int] = set()
    left = room
    for rank, sentence in enumerate(_by_worth(found)):
        is_more, needed_text = sentence.part in used, weight(sentence.text)
        around = len(OMISSION) + (0 if is_more else weight(sentence.label))
        most = left - around if rank or room <= _ONE_SENTENCE_ROOM else room * 2 // 3
        # Of a part one sentence may be cut, where the rest says anything.
        if most >= (needed_text if is_more else min(LEAST_SENTENCE, needed_text)):
            kept[sentence] = excerpt(sentence.text, most)
            used.add(sentence.part)
            left -= around + weight(kept[sentence])
    return clip(_joined(found, kept) or printable_line(line), room)


def _sentences_of(line: str) -> Iterator[_Sentence]:
    before, *labelled = _LABEL.split(line)
    parts = [("", before), *zip(labelled[::2], labelled[1::2], strict=True)]
    for part, (label, text) in enumerate(parts):
        texts = _CALLS.split(text) if label in _TOOLS else sentences(text)
        for place, sentence in enumerate(texts):
            yield _Sentence(part, place, label, sentence)


def _by_worth(found: Sequence[_Sentence]) -> list[_Sentence]:
    """The best sentence of each part, then the others."""
    by_worth = sorted(found, key=lambda sentence: (-sentence.worth, sentence.part, sentence.place))
    best: dict[str, _Sentence] = {}
    for sentence in by_worth:
        best.setdefault(sentence.label, sentence)
    first = [best[label] for label in _BY_WORTH if label in best]
    taken = {*first}
    return [*first, *(sentence for sentence in by_worth if sentence not in taken)]


def _joined(found: Sequence[_Sentence], kept: dict[_Sentence, str]) -> str:
    """The kept sentences, each part behind its label, with a mark between sentences where some are left out."""
    text, before = "", None
    for sentence in (sentence for sentence in found if sentence in kept):
        if before is None or before.part != sentence.part:
            text += f"{' ' if text else ''}{sentence.label}"
        else:
            text += " " if before.place + 1 == sentence.place or text.endswith(GAP) else OMISSION
        text += kept[sentence]
        before = sentence
    return text
