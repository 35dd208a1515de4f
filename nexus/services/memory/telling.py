"""The summary of what is compacted, by rules alone: a line for each run (CONTRACT §7). Pure.

    (Messages that are not told here, and that search_memory finds: 48)
    - 2026-03-01 10:02Z (6 messages): Asked: Which trains go to Porto? Tools: timetable gave trains: 3. Answered: Three.
    - 2026-03-01 10:07Z (2 messages, in part): Tools: timetable (to: Faro) gave trains: 4.

Rules of this module:

- The summary before this one comes first, as it is: lines like these, and before them what a model has written.
- What a model wrote may look like such lines. None counts for more messages than the summary stands for, and all lines
  together for as many as it does.
- Where there is too much, lines become shorter, the oldest first, each in fixed steps: so a line that need not change
  has the same bytes in the next summary. Then the oldest are left out, and counted in the first line.
- A third of the room is for what was told before, as long as there is that much of it.
- Texts are not escaped: whoever shows the summary does that.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from nexus.core.ports import Row
from nexus.services.memory.gist import gist_of
from nexus.services.memory.shortening import shorter
from nexus.services.turns.cutting import size, slices
from nexus.services.turns.sentences import GAP

Count = Callable[[str], int]

_NOT_TOLD: Final = "(Messages that are not told here, and that search_memory finds: {:,})"
_NOTHING: Final = "(Nothing was said.)"
_NOT_TOLD_LINE: Final = re.compile(
    r"\(Messages that are not told here, and that search_memory finds: (\d[\d,]{0,15})\)"
)
_LINE: Final = re.compile(
    r"(- (?:\d{4}-\d\d-\d\d \d\d:\d\dZ|at an unknown time) \((\d[\d,]{0,15}) messages?(?:, in part)?\): )(\S.*)"
)
# The weights (see `sentences`) in which a line is told where there is less and less room, without its time.
_SHORT: Final = (360, 200, 90)
# Of a text that a model has written, the parts of the room that it may take.
_PARTS: Final = (2, 3, 6)
# No line takes fewer tokens, so that no more of them need to be made.
_LEAST_TOKENS: Final = 16


def tell(
    previous: str,
    runs: Sequence[Sequence[Row]],
    *,
    most_tokens: int,
    count: Count,
    told_before: int = 0,
    by_model: bool = False,
    elsewhere: Collection[str] = (),
) -> str:
    """The summary of `runs` and of all that the previous one tells.

    Args:
        previous: the summary before this one; `""` for none.
        runs: rows that belong together, in the order in which they were said.
        most_tokens: of the summary.
        count: how many tokens a text has.
        told_before: messages for which the previous summary stands.
        by_model: a model wrote all of the previous one, so that none of its lines counts messages.
        elsewhere: runs of which there are rows that are not told here.
    """
    carried, untold = _read(previous, told_before, most_tokens, count, by_model=by_model)
    first = max(len(runs) - max(most_tokens // _LEAST_TOKENS, 1), 0)
    untold += sum(map(len, runs[:first]))
    new = []
    for run in runs[first:]:
        line = _line_of(run, elsewhere)
        untold += 0 if line else len(run)
        new += [line] if line else []
    return _Telling(carried, new, untold, most_tokens, count).told()


def by_run(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows that belong together: those of a run, and those without a run from one human message to the next.

    Args:
        rows: in the order in which they were said, which is kept within the runs; these come by their first row.
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
    """One run, or what a model wrote of many.

    Attributes:
        messages: how many it stands for.
        forms: the same in fewer and fewer words.
        carried: it stands in the summary before this one.
        written: by a model.
        step: which form it has now; when there is none, it is left out.
    """

    messages: int
    forms: tuple[str, ...]
    carried: bool = False
    written: bool = False
    step: int = 0

    @property
    def text(self) -> str:
        return self.forms[self.step] if self.step < len(self.forms) else ""


class _Telling:
    def __init__(self, carried: list[_Line], new: list[_Line], untold: int, most: int, count: Count) -> None:
        self._carried, self._new = carried, new
        self._untold = untold
        self._most = most
        self._count = count
        self._costs: dict[str, int] = {}
        self._of_carried, self._of_new = (sum(map(self._cost, lines)) for lines in (carried, new))

    def told(self) -> str:
        """The summary, in as many words as there is room for."""
        if self._fits() or any(self._fits() for _ in self._steps()):
            return self._text()
        return self._cut()

    def _text(self) -> str:
        lines = [_NOT_TOLD.format(self._untold)] if self._untold else []
        lines += filter(None, (line.text for line in (*self._carried, *self._new)))
        return "\n".join(lines) or _NOTHING

    def _fits(self) -> bool:
        # Adding up what single lines take is fast; what they take together may differ by a few.
        return self._of_carried + self._of_new <= self._most and self._count(self._text()) <= self._most

    def _cut(self) -> str:
        """Some of the first line, where there is no room even for that."""
        text = self._text()
        return text[: max(_longest(text, self._most, self._count), 1)]

    def _steps(self) -> Iterator[None]:
        """Take words away, a few with each step, until there are none."""
        third = self._most // 3
        yield from self._shorten(self._new, 1)
        for step in range(1, max((len(line.forms) for line in self._carried), default=0)):
            yield from self._shorten(self._carried, step, above=third)
        yield from self._leave_out([line for line in self._carried if not line.written], above=third)
        for step in range(2, len(_SHORT) + 1):
            yield from self._shorten(self._new, step)
        for step in range(1, len(_PARTS) + 1):
            yield from self._shorten(self._carried, step)
        yield from self._leave_out(self._carried)
        yield from self._leave_out(self._new)

    def _shorten(self, lines: Sequence[_Line], step: int, *, above: int = -1) -> Iterator[None]:
        for line in lines:
            if line.step < step < len(line.forms) and self._of_carried > above:
                self._change(line, step)
                yield

    def _leave_out(self, lines: Sequence[_Line], *, above: int = -1) -> Iterator[None]:
        for line in lines:
            if line.text and self._of_carried > above:
                self._untold += line.messages
                self._change(line, len(line.forms))
                yield

    def _change(self, line: _Line, step: int) -> None:
        before = self._cost(line)
        line.step = step
        saved = before - self._cost(line)
        if line.carried:
            self._of_carried -= saved
        else:
            self._of_new -= saved

    def _cost(self, line: _Line) -> int:
        text = line.text
        if text not in self._costs:
            self._costs[text] = self._count(text)
        return self._costs[text]


def _line_of(run: Sequence[Row], elsewhere: Collection[str]) -> _Line | None:
    gist = gist_of(run)
    if not gist.text:
        return None
    at = f"{gist.moment.isoformat(' ')[:16]}Z" if gist.moment else "at an unknown time"
    several = "s" if gist.messages != 1 else ""
    part = ", in part" if gist.is_part or run[0].get("run_id") in elsewhere else ""
    head = f"- {at} ({gist.messages:,} message{several}{part}): "
    return _Line(gist.messages, _forms(head, gist.text))


def _forms(head: str, text: str) -> tuple[str, ...]:
    return (f"{head}{text}", *(f"{head}{shorter(text, room)}" for room in _SHORT))


def _read(
    previous: str, told_before: int, most_tokens: int, count: Count, *, by_model: bool
) -> tuple[list[_Line], int]:
    """The lines of a summary, and how many messages it does not tell."""
    lines = previous.split("\n") if previous.strip() else []
    head = _NOT_TOLD_LINE.fullmatch(lines[0]) if lines and not by_model else None
    lines = lines[1:] if head else lines
    found: list[_Line] = []
    rest = told_before
    while lines and not by_model and (line := _LINE.fullmatch(lines[-1])) and _number(line[2]) <= rest:
        lines.pop()
        rest -= _number(line[2])
        found.append(_Line(_number(line[2]), _forms(line[1], line[3]), carried=True))
    found.reverse()
    text = "\n".join(lines).strip("\n")
    if not text.strip():
        return found, rest
    untold = min(_number(head[1]), rest) if head else 0
    shortened = (_beginning(text.removesuffix(f"\n{GAP}"), most_tokens // part, count) for part in _PARTS)
    written = _Line(rest - untold, (text, *filter(None, shortened)), carried=True, written=True)
    return [written, *found], untold


def _beginning(text: str, most: int, count: Count) -> str:
    """As much of the text as has so many tokens, cut after a line, a sentence or a word."""
    if count(text) <= most:
        return text
    fits = _longest(text, most - count(f"\n{GAP}"), count)
    piece = next(slices(text, size(text[:fits])), "").rstrip() if fits else ""
    return f"{piece}\n{GAP}" if piece else ""


def _longest(text: str, most: int, count: Count) -> int:
    """How many characters from the start have so many tokens."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(text[:middle]) <= most else (low, middle - 1)
    return low


def _number(text: str) -> int:
    return int(text.replace(",", ""))
