"""Whether a context shows exactly the constraints in force, each once and word for word (contract §15).

It reads an answer as the provider of its format is given it, and takes nothing from the service but the escape of
contract §4.7.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from nexus.services.text.escape import canonical, unescape

_HEAD: Final = re.compile(r"\[CONSTRAINTS count=(\d+)\]")
_KINDS: Final = {"Must": "must", "Must not": "must_not", "Format": "format", "Scope": "scope"}
_ITEM: Final = re.compile(r"- (Must not|Must|Format|Scope): (.*)")
_TOLD: Final = 5

# A kind, and a text in the form in which it is shown.
Rule = tuple[str, str]


def rule(text: str, kind: str) -> Rule:
    """The constraint as it is to be shown."""
    return kind, canonical(text).strip()


@dataclass
class Judge:
    """Counts what it looked at, and what was wrong.

    Attributes:
        contexts: how many it was given.
        checked: constraints in force, over all of them.
        missing: those that a context did not show.
        surplus: what a context showed besides, or more than once.
        faults: the first of them, for whoever looks for the reason.
    """

    contexts: int = 0
    checked: int = 0
    missing: int = 0
    surplus: int = 0
    faults: list[str] = field(default_factory=list)

    def look_at(self, content: Mapping[str, Any], in_force: Collection[Rule], where: str) -> None:
        """Look at a context, for a run for which these are in force."""
        wanted, found = Counter(in_force), Counter(shown_in(content))
        self.contexts += 1
        self.checked += wanted.total()
        missing, surplus = wanted - found, found - wanted
        self.missing += missing.total()
        self.surplus += surplus.total()
        if (missing or surplus) and len(self.faults) < _TOLD:
            self.faults.append(f"{where}: without {sorted(missing)}, but with {sorted(surplus)}")

    def __str__(self) -> str:
        """The counts."""
        return (
            f"{self.contexts} contexts, {self.checked} constraints checked, {self.missing} missing, "
            f"{self.surplus} that do not belong there"
        )


def shown_in(content: Mapping[str, Any]) -> Iterator[Rule]:
    """The constraints that a context shows, in all blocks that pass for such."""
    for text in _texts([content.get("system"), content["messages"]]):
        lines = text.split("\n")
        for number, line in enumerate(lines):
            if head := _HEAD.fullmatch(line):
                yield from _in_block(lines[number + 3 :], int(head[1]))


def _texts(value: Any) -> Iterator[str]:
    """All that a model reads, of instructions and messages in any format."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, dict):
        for name in ("content", "text", "parts"):
            yield from _texts(value.get(name))


def _in_block(lines: list[str], count: int) -> Iterator[Rule]:
    items: list[tuple[str, list[str]]] = []
    for line in lines:
        if item := _ITEM.fullmatch(line):
            items.append((_KINDS[item[1]], [item[2]]))
        elif line.startswith("  ") and items:
            items[-1][1].append(line[2:])
        else:
            break
    assert len(items) == count, lines
    # They are escaped as one text, where each line may complete what the line before has begun.
    shown = unescape("\n".join(line for _, text in items for line in text)).split("\n")
    for kind, text in items:
        yield kind, "\n".join(shown[: len(text)])
        del shown[: len(text)]
