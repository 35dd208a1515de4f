"""Any JSON as one line within a weight: keys with their values, those with figures first. Pure.

    total: 156; pmids: 4 in all, 12345678, 23456789, 34567890, 45678901; first.title: Empagliflozin; year: 2015; ...

A key stands by itself where the one before it belongs to the same object, else with those around it.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from nexus.services.context.annotations import as_json
from nexus.services.context.memory import text_of_parts
from nexus.services.turns.digest import digest, has_figure
from nexus.services.turns.sentences import GAP, clip, one_line, weight

# What is looked at of a document of any size.
_MOST_LEAVES: Final = 1_000
_DEEPEST: Final = 64
_MOST_KEY: Final = 120
# A text beyond this is no part of a line as it is.
_MOST_TEXT: Final = 4_096
# A value of this weight with a figure in it is one of the key figures.
_SHORT: Final = 64
# Below this weight a part of a value says nothing.
_LEAST: Final = 12
# So many in a list are seen at a glance, and not counted.
_AT_A_GLANCE: Final = 3
_COUNT: Final = -1
# A document of this weight is told whole; of a heavier one, so many entries of a list.
_WHOLE: Final = 320
_MOST_LISTED: Final = 8
# A key figure in an object of an object comes before a text, but not one that lies deeper.
_NEARER: Final = 1.5
# In this form servers of the Model Context Protocol give results.
_ENVELOPE: Final = {"content", "isError", "structuredContent", "_meta"}
_MORE: Final = f"; {GAP}"
_NOTHING: Final = "none"

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A value in a document.

    Attributes:
        path: the keys and places that lead to it; the place of how many a list has is -1.
        text: on one line, unless it is too long for one.
        is_text: it was a text, which may hold anything.
    """

    path: Path
    text: str
    is_text: bool = False

    @property
    def place(self) -> int:
        """The furthest place in a list that leads to it; 0 where there is no list."""
        return max((name for name in self.path if isinstance(name, int)), default=0)

    def label(self, after: "_Leaf | None" = None) -> str:
        """What stands before it, behind another one."""
        of_the_same = after is not None and after.path[:-1] == self.path[:-1]
        path = self.path[-1:] if of_the_same else self.path
        names = [clip(one_line(name), _MOST_KEY) for name in path if isinstance(name, str)]
        between = "" if after is None else "; " if names or not of_the_same else ", "
        return f"{between}{'.'.join(names)}: " if names else between

    def within(self, room: int) -> "_Leaf":
        """The same with a text of at most this weight."""
        if weight(self.text) <= room:
            return self
        return replace(self, text=outline(self.text, room) if self.is_text else clip(self.text, room))


def outline(value: Any, room: int, *, figures_first: bool = True) -> str:
    """One line of at most this weight; `""` where `value` is no more than space. `...` marks what is left out.

    Where not all of it fits, values with figures are told before others if `figures_first`.
    """
    value = opened(value)
    if isinstance(value, str):
        return digest(value, room)
    leaves = list(islice(_leaves((), value), _MOST_LEAVES))
    few = min(room, _WHOLE)
    if sum(len(leaf.text) for leaf in leaves) <= few and len(leaves) < _MOST_LEAVES:
        line = _told(leaves)
        if weight(line) <= few:
            return line
    kept = _key_leaves(leaves, room - len(_MORE), _NEARER if figures_first else 0)
    line = _told(kept)
    if len(kept) == len(leaves) < _MOST_LEAVES:
        return line
    return f"{line}{_MORE}" if kept else GAP


def opened(value: Any) -> Any:
    """What is in a result: the text of content parts, the document in a JSON text; else the value itself."""
    value = _document(value)
    parts = value["content"] if _is_envelope(value) else value
    if isinstance(parts, list | tuple) and any(isinstance(item, Mapping) for item in parts):
        text = text_of_parts(parts)
        return value if text is None else _document(text)
    return value


def is_error(value: Any) -> bool:
    """Whether a result says of itself that it is an error, as servers of the Model Context Protocol do."""
    value = _document(value)
    return _is_envelope(value) and value.get("isError") is True


def _is_envelope(value: Any) -> bool:
    return isinstance(value, Mapping) and value.keys() <= _ENVELOPE and isinstance(value.get("content"), list)


def _document(value: Any) -> Any:
    """The document in a JSON text; else the value itself."""
    if isinstance(value, str) and value.lstrip()[:1] in {"{", "["}:
        try:
            # Numbers stay as they are written: who reads a confidence interval wants 0.80, not 0.8.
            return json.loads(value, parse_float=str, parse_int=str, parse_constant=str)
        except (ValueError, RecursionError):
            pass
    return value


def _leaves(path: Path, value: Any) -> Iterator[_Leaf]:
    """The values in a document, in their order. Of a longer list, first how many there are."""
    items: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, Mapping):
        items = ((str(key), item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        items = enumerate(value)
        if len(value) > _AT_A_GLANCE:
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
        text = value if len(value) > _MOST_TEXT else one_line(value)
        return _Leaf(path, text or _NOTHING, is_text=True)
    if value is None or value in ((), [], {}):
        return _Leaf(path, _NOTHING)
    return _Leaf(path, one_line(as_json(value).strip('"')))


def _key_leaves(leaves: Sequence[_Leaf], room: int, nearer: float) -> list[_Leaf]:
    """Those that fit, in their order; see `_worth` for which are tried first. Each leaves a third to the others."""
    shown = (index for index, leaf in enumerate(leaves) if leaf.place < _MOST_LISTED)
    order = sorted(shown, key=lambda index: _worth(leaves[index], nearer))
    kept: dict[int, _Leaf] = {}
    for index in order:
        leaf, before = leaves[index], kept.get(index - 1)
        left = room - (weight(leaf.label(before)) if before else weight(leaf.label()) + len("; "))
        if left >= min(_LEAST, weight(leaf.text)):
            kept[index] = leaf.within(left if index == order[-1] else max(left * 2 // 3, _LEAST))
            room = left - weight(kept[index].text)
    return [kept[index] for index in sorted(kept)]


def _worth(leaf: _Leaf, nearer: float) -> tuple[bool, float]:
    """Least for what counts most: the beginnings of lists, and what lies less deep; for a key figure that is nearer."""
    is_key_figure = len(leaf.text) <= _SHORT and weight(leaf.text) <= _SHORT and has_figure(leaf.text)
    return leaf.place > _AT_A_GLANCE, len(leaf.path) - nearer * is_key_figure


def _told(leaves: Sequence[_Leaf]) -> str:
    return "".join(f"{leaf.label(before)}{leaf.text}" for before, leaf in zip([None, *leaves], leaves, strict=False))
