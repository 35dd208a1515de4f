"""What the pages say of settings, logs and each other is what the code does."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from nexus import log
from nexus.core.metrics import Event

ROOT: Final = Path(__file__).parents[3]
OPERATIONS: Final = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
NOT_OURS: Final = {"build", "dist", "node_modules"}
PAGES: Final = sorted(
    page
    for page in ROOT.rglob("*.md")
    if not any(part.startswith(".") or part in NOT_OURS for part in page.relative_to(ROOT).parts)
)
WINDOW: Final = (ROOT / "docs" / "working-memory.md").read_text(encoding="utf-8")
BUDGET_CELLS: Final = 4
LEVELS: Final = {"debug", "info", "warning", "error", "exception", "critical"}
FENCED: Final = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
NAME: Final = re.compile(r"`([a-z0-9_.]+)`")
SETTINGS: Final = re.compile(r"`([a-z0-9_.{},]+)`")


def section(title: str) -> str:
    """The text under a heading of docs/operations.md, up to the next heading of the same depth."""
    return re.split(r"^## ", OPERATIONS.partition(f"\n## {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> Iterator[list[str]]:
    """The cells of every row of every table."""
    for line in text.splitlines():
        if line.startswith("|"):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def documented_events() -> dict[str, set[str]]:
    """The levels of every event in the table of events."""
    found: dict[str, set[str]] = defaultdict(set)
    for levels, events, *_ in rows(section("Logs")):
        for event in NAME.findall(events):
            found[event] |= set(levels.split(", "))
    return found


def logged_events() -> dict[str, set[str]]:
    """The levels of every event that the code logs."""
    found: dict[str, set[str]] = defaultdict(set)
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "nexus").rglob("*.py")}
    named = {text for tree in trees.values() for text in outcomes(tree)}
    for path, tree in trees.items():
        for level, event in logging_calls(tree):
            match event:
                case ast.Attribute(value=ast.Name(id="event"), attr="value"):
                    names = {text for tree in trees.values() for text in of_models(tree)}
                case ast.Attribute(value=ast.Attribute(attr="_outcomes"), attr=field):
                    names = {text for name, text in named if name == field}
                case _:
                    names = set(texts(event, assigned(tree)))
            assert names, f"{path.name}:{event.lineno}: its event cannot be told"
            for name in names:
                found[name].add("error" if level == "exception" else level)
    return found


def logging_calls(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The level and the event of every `_log.<level>(event, …)`."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="_log"), attr=level), args=[event, *_]):
                assert level in LEVELS
                yield level, event
            case _:
                pass


def outcomes(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The names for the log in every `Outcomes(…)` of the queues of messages, with their fields."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="Outcomes"), keywords=given):
                yield from ((str(each.arg), text) for each in given for text in texts(each.value, {}))
            case _:
                pass


def of_models(tree: ast.AST) -> Iterator[str]:
    """The names for the log in every `ModelOutcomes(…)`: those of the events but the first."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="ModelOutcomes"), args=[_, *events]):
                yield from (Event[each.attr].value for each in events if isinstance(each, ast.Attribute))
            case _:
                pass


def assigned(tree: ast.AST) -> Mapping[str, ast.expr]:
    """What each name was last given in an assignment of one name."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    return {target.id: node.value for node in nodes for target in node.targets if isinstance(target, ast.Name)}


def texts(node: ast.expr, names: Mapping[str, ast.expr]) -> Iterator[str]:
    """The texts that an expression may be."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp(body=body, orelse=orelse):
            yield from texts(body, names)
            yield from texts(orelse, names)
        case ast.Name(id=name) if name in names:
            yield from texts(names[name], names)
        case _:
            pass


def leaves(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting with its value, by its name with dots."""
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{before}{key}.")
        else:
            yield before + key, value


def documented_defaults() -> dict[str, str]:
    """The default of every setting in the tables of settings, and in that of the budget, by its name with dots."""
    found: dict[str, str] = {}
    group = ""
    for line in section("Settings").splitlines():
        if heading := re.fullmatch(r"`[a-z_]+`(, `[a-z_]+`)*", line):
            group = "" if heading[1] else line.strip("`") + "."
        for name, default, *_ in rows(line):
            if setting := SETTINGS.fullmatch(name):
                found |= dict.fromkeys(expanded(group + setting[1]), default)
    # It stands where the window is described.
    del found["memory.budget"]
    keys, _, *blocks = [
        cells
        for cells in rows(WINDOW.partition("\n## The window\n")[2].partition("\n## ")[0])
        if len(cells) == BUDGET_CELLS
    ]
    for block, *values in blocks:
        found |= {
            f"memory.budget.{block.strip('`')}.{key.strip('`')}": value
            for key, value in zip(keys[1:], values, strict=True)
            if value
        }
    return found


def expanded(name: str) -> list[str]:
    """The names for which one with a list in braces stands."""
    before, opening, rest = name.partition("{")
    listed, _, behind = rest.partition("}")
    return [f"{before}{each}{behind}" for each in listed.split(",")] if opening else [name]


def shown(value: object) -> str:
    """A default as the tables show it."""
    match value:
        case {} | [] | "" | None:
            return {"{}": "none", "[]": "none", "": "empty", "None": "null"}[str(value)]
        case bool():
            return str(value).lower()
        case str():
            return f"`{value}`"
        case _:
            return str(value)


def anchors(page: Path) -> set[str]:
    """What a page's headings are called in links to them."""
    seen: Counter[str] = Counter()
    names = set()
    for heading in re.findall(r"^#+ +(.*)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        names.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return names


def broken(page: Path) -> list[str]:
    """The links of a page, to files and headings of this project, that lead nowhere."""
    found = []
    for target in re.findall(r"\]\(([^()\s]+)\)", FENCED.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and (there.suffix != ".md" or anchor not in anchors(there))):
            found.append(target)
    return found


def test_the_fields_of_the_log() -> None:
    """The page lists the fields that are shown in the log, all of them, in order."""
    listed = re.search(r"^Fields: (.*?)\. ", section("Logs"), re.MULTILINE | re.DOTALL)
    assert listed
    assert NAME.findall(listed[1]) == sorted(log._ALLOWED)


def test_the_events_of_the_log() -> None:
    """Every event that is logged is in the table, at the levels at which it is logged, and no other is."""
    assert documented_events() == logged_events()


def test_the_defaults_of_the_settings() -> None:
    """Every setting of config.example.yml is in a table of settings, with the same default, and no other is."""
    example = yaml.safe_load((ROOT / "config.example.yml").read_text(encoding="utf-8"))
    assert documented_defaults() == {name: shown(value) for name, value in leaves(example)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page: Path) -> None:
    """A link to a file, or to a heading of this or another page, leads somewhere."""
    assert broken(page) == []
