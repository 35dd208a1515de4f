"""Two answers compared: block by block, and up to where what a provider keeps of the first serves the second. Pure.

Providers put tools in front of all messages, so their caches hold none of the messages where the tools differ.
"""

import difflib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final, Literal

from nexus.services.records.explain import Explained, ShownBlock

State = Literal["same", "alike", "changed", "first", "second"]
# The tag of a block, and how many of this tag stand before it.
_Name = tuple[str, int]

# Lines around a change; the most lines that are compared, besides those at both ends that are the same; the most lines
# of a diff. Longer lines are compared in pieces of so many characters.
_CONTEXT: Final = 3
_MOST_COMPARED: Final = 1_000
_MOST_SHOWN: Final = 400
_LINE_CHARS: Final = 400
# So many messages at the beginning of a block are looked for in the other.
_SAME_AGAIN: Final = 3


@dataclass(frozen=True, slots=True)
class BlockChange:
    """A block in two answers.

    Attributes:
        state: `same` to the byte; `alike`, where texts are not known: of one size and from the same sources; `changed`;
            `first` or `second`, in this one alone.
        first, second: the block in each; None where it is not there.
        added, removed: sources that only the second, or only the first, has.
        diff: of a changed block, the lines of a unified diff of its texts without its header; nothing where texts are
            not known. Bounded: the last line says what is not shown.
    """

    tag: str
    state: State
    first: ShownBlock | None
    second: ShownBlock | None
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    diff: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolsChange:
    """Names of tools that only the second answer has, that only the first has, and whose definitions differ.

    `same`: there are no such, and their order is the same.
    """

    same: bool
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """What two answers begin with alike.

    Attributes:
        count: leading entries of `Explained.sent` that are the same in both.
        bytes: of their JSON.
        tokens: as far as the manifest of the second counts them; None where it does not. Of a block of which only a
            part is the same, a part by its bytes: `is_exact` is false then.
        reasons: why it ends there, in words, the most important first.
    """

    count: int
    bytes: int
    tokens: int | None
    is_exact: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two answers. `blocks` come in the order of the second, those of the first alone where they stood."""

    blocks: tuple[BlockChange, ...]
    tools: ToolsChange
    prefix: SharedPrefix

    @property
    def same(self) -> bool:
        """Whether a model was given the same twice."""
        # An error has no blocks.
        return bool(self.blocks) and self.tools.same and all(each.state == "same" for each in self.blocks)


def compare(first: Explained, second: Explained) -> Comparison:
    """The two answers, the earlier one first."""
    tools = _tools(first, second)
    return Comparison(tuple(_blocks(first, second)), tools, _prefix(first, second, tools))


def _blocks(first: Explained, second: Explained) -> Iterator[BlockChange]:
    """Blocks of one tag belong together by their order: a history may stand on both sides of the pinned block."""
    known = first.has_texts and second.has_texts
    before, after = _by_name(first.blocks), _by_name(second.blocks)
    # What only the first has, behind the block that both have.
    gone, last = defaultdict[_Name | None, list[ShownBlock]](list), None
    for name, block in before.items():
        if name in after:
            last = name
        else:
            gone[last].append(block)
    for each in (None, *after):
        if each:
            yield _change(before.get(each), after[each], known=known)
        for block in gone[each]:
            yield _change(block, None, known=known)


def _by_name(blocks: Sequence[ShownBlock]) -> dict[_Name, ShownBlock]:
    seen, named = Counter[str](), dict[_Name, ShownBlock]()
    for block in blocks:
        named[block.tag, seen[block.tag]] = block
        seen[block.tag] += 1
    return named


def _change(first: ShownBlock | None, second: ShownBlock | None, *, known: bool) -> BlockChange:
    if first is None or second is None:
        present = first or second
        return BlockChange(present.tag if present else "", "first" if first else "second", first, second)
    added, removed = _only_in(second.sources, first.sources), _only_in(first.sources, second.sources)
    if known:
        state: State = "same" if _content(first) == _content(second) else "changed"
    else:
        state = "alike" if (first.bytes, first.sources) == (second.bytes, second.sources) else "changed"
    diff = tuple(_diff(first.texts, second.texts)) if known and state == "changed" else ()
    return BlockChange(first.tag, state, first, second, added, removed, diff)


def _only_in(these: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    known = {*others}
    return tuple(each for each in these if each not in known)


def _diff(first: Sequence[str], second: Sequence[str]) -> Iterator[str]:
    """The lines of a diff of a block. Most histories that changed have lost their beginning: that is told in a line."""
    beginning = second[:_SAME_AGAIN]
    starts = (start for start in range(len(first)) if first[start : start + len(beginning)] == beginning)
    if gone := next(starts, 0):
        yield f"({gone} of its messages are no longer shown at the beginning)"
    yield from diff_of("\n".join(first[gone:]), "\n".join(second))


def diff_of(first: str, second: str) -> list[str]:
    """The lines of a unified diff without its header, of bounded size; a long line counts as several."""
    before, after = _lines(first), _lines(second)
    start = _alike(before, after)
    end = _alike(before[start:][::-1], after[start:][::-1])
    start, end = max(start - _CONTEXT, 0), max(end - _CONTEXT, 0)
    before, after = before[start : len(before) - end], after[start : len(after) - end]
    if max(len(before), len(after)) > _MOST_COMPARED:
        # Comparing takes time by the square of what is compared.
        half = _MOST_SHOWN // 2
        lines = [_range(start, len(before), start, len(after))]
        lines += [*(f"-{line}" for line in before[:half]), *(f"+{line}" for line in after[:half])]
        hidden = sum(max(len(each) - half, 0) for each in (before, after))
    else:
        found = [*_hunks(before, after, start)]
        lines, hidden = found[:_MOST_SHOWN], len(found) - _MOST_SHOWN
    return [*lines, f"({hidden} more lines)"] if hidden > 0 else lines


def _hunks(before: Sequence[str], after: Sequence[str], start: int) -> Iterator[str]:
    matcher = difflib.SequenceMatcher(None, before, after)
    for group in matcher.get_grouped_opcodes(_CONTEXT):
        (_, i, _, j, _), (_, _, i_end, _, j_end) = group[0], group[-1]
        yield _range(start + i, i_end - i, start + j, j_end - j)
        for kind, first, first_end, second, second_end in group:
            if kind == "equal":
                yield from (f" {line}" for line in before[first:first_end])
                continue
            yield from (f"-{line}" for line in before[first:first_end])
            yield from (f"+{line}" for line in after[second:second_end])


def _range(first: int, count: int, second: int, other: int) -> str:
    return f"@@ -{first + 1},{count} +{second + 1},{other} @@"


def _lines(text: str) -> list[str]:
    lines = []
    for line in text.split("\n"):
        lines += [line[start : start + _LINE_CHARS] for start in range(0, max(len(line), 1), _LINE_CHARS)]
    return lines


def _alike(these: Sequence[object], others: Sequence[object]) -> int:
    """How many items they begin with alike."""
    return next(
        (place for place, (one, other) in enumerate(zip(these, others, strict=False)) if one != other),
        min(len(these), len(others)),
    )


def _tools(first: Explained, second: Explained) -> ToolsChange:
    before, after = (dict(_definitions(each.tools)) for each in (first, second))
    return ToolsChange(
        first.tools == second.tools,
        tuple(name for name in after if name not in before),
        tuple(name for name in before if name not in after),
        tuple(name for name in after if name in before and after[name] != before[name]),
    )


def _definitions(tools: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Definitions by name, in any format."""
    for tool in tools:
        for each in tool.get("function_declarations", [tool]):
            described = each.get("function", each)
            yield str(described.get("name", "")), described


def _prefix(first: Explained, second: Explained, tools: ToolsChange) -> SharedPrefix:
    if first.error or second.error:
        return SharedPrefix(0, 0, None, is_exact=True, reasons=("an error has no messages",))
    if not (first.has_texts and second.has_texts):
        return SharedPrefix(0, 0, None, is_exact=False, reasons=(_by_hash(first, second),))
    one_form = first.form == second.form
    bodies = ([(each.role, each.body) for each in answer.sent] for answer in (first, second))
    count = _alike(*bodies) if one_form else 0
    reasons = [] if one_form else [f"another format: {first.form} and {second.form}"]
    if first.layout != second.layout:
        reasons.append(f"another layout: {first.layout} and {second.layout}")
    if not tools.same:
        reasons.append("the tools differ, and providers put them in front of the messages")
    if one_form:
        reasons.append(_end(first, second, count))
    tokens, is_exact = _tokens(second, count)
    return SharedPrefix(count, sum(each.size for each in second.sent[:count]), tokens, is_exact, tuple(reasons))


def _by_hash(first: Explained, second: Explained) -> str:
    known = first.prefix_sha256 and first.prefix_sha256 == second.prefix_sha256
    found = "the same" if known else "not the same"
    return f"texts were not kept; by its hash, what a next build repeats of them is {found} in both"


def _end(first: Explained, second: Explained, count: int) -> str:
    """Why no more than `count` entries are the same."""
    if count == len(first.sent) == len(second.sent):
        return "all messages are the same"
    before, after = _first_changed(first.blocks_of(count), second.blocks_of(count))
    here, there = _named(second, after, count), _named(first, before, count)
    if count == len(first.sent):
        return f"the first ends there, and the second goes on with {here}"
    if count == len(second.sent):
        return f"the second ends there, and the first goes on with {there}"
    if before and after and before.tag != after.tag:
        if all(each.tag != after.tag for each in first.blocks):
            return f"{here} is in the second alone"
        moved = [block for block in second.blocks if block.tag == before.tag and block.first > count]
        to = f"now at {second.sent[moved[0].first].where}" if moved else "which the second has not"
        return f"{here} stands where the first has [{before.tag}], {to}"
    return f"{here} {_change_of(before, after, count)}"


def _first_changed(
    before: Sequence[ShownBlock], after: Sequence[ShownBlock]
) -> tuple[ShownBlock | None, ShownBlock | None]:
    """Of the blocks of one message in both, the first pair that is not the same."""
    pairs = zip_longest(before, after)
    return next((pair for pair in pairs if not all(pair) or _content(pair[0]) != _content(pair[1])), (None, None))


def _content(block: ShownBlock) -> tuple[str, str, tuple[str, ...]]:
    return block.tag, block.role, block.texts


def _named(answer: Explained, block: ShownBlock | None, place: int) -> str:
    """Such as `message 7 ([WORKING_MEMORY])`."""
    where = answer.sent[place].where if place < len(answer.sent) else "its end"
    return f"{where} ([{block.tag}])" if block else where


def _change_of(before: ShownBlock | None, after: ShownBlock | None, place: int) -> str:
    """What became of the entry at this place, of one block in both."""
    if before is None or after is None:
        return "changed"
    added, removed = _only_in(after.sources, before.sources), _only_in(before.sources, after.sources)
    if place == before.first == after.first and removed and before.sources[: len(removed)] == removed:
        return f"begins later, since its oldest {_sources(len(removed))} no longer shown"
    counts = [f"{_sources(len(each))} {what}" for each, what in ((added, "new"), (removed, "gone")) if each]
    return f"changed: {' and '.join(counts)}" if counts else "changed"


def _sources(count: int) -> str:
    return "1 source is" if count == 1 else f"{count} sources are"


def _tokens(answer: Explained, count: int) -> tuple[int | None, bool]:
    """The tokens of its first `count` entries by the manifest, and whether that is exact."""
    found, is_exact = 0.0, True
    for block in answer.blocks:
        if block.tokens is None:
            return None, False
        if block.end <= count:
            found += block.tokens
        elif block.first < count:
            sizes = [each.size for each in answer.sent[block.first : block.end]]
            found += block.tokens * sum(sizes[: count - block.first]) / sum(sizes)
            is_exact = False
    return round(found), is_exact
