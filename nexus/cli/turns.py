"""`nexus turns`: what is remembered of a session's runs (contract §6, §10)."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

import typer

from nexus.cli.options import Config, Json, Owner, Session, require_utf8, session_settings
from nexus.cli.servers import newest, require_session, run_on_store
from nexus.cli.terminal import (
    Columns,
    counted,
    facts,
    indented,
    print_result,
    printable,
    session_named,
    table,
    text_lines,
    timestamp,
)
from nexus.core.errors import NexusError, TurnNotFoundError
from nexus.core.ports import Store
from nexus.core.ports.memory import LONGEST_QUERY
from nexus.core.ports.store import LARGEST
from nexus.core.turns import LEVELS, Level, ToolOutcome, Turn
from nexus.services.transfer.folder import read_turn

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Look at what is remembered of a session's runs.")
_COLUMNS: Final[Columns] = {
    "TURN": "turn_number",
    "TIME (UTC)": "timestamp",
    "STATUS": "status.value",
    "SUMMARY BY": "summaries.source",
    "TOOLS": lambda turn: ", ".join(f"{name} ({n})" if n > 1 else name for name, n in _tools(turn).items()),
    "BRIEF": lambda turn: _on_one_line(turn.summaries.brief),
}
_OUTCOMES: Final = {True: "succeeded", False: "failed", None: "outcome unknown"}


@dataclass(frozen=True, slots=True)
class _Listed:
    """Turns of a session, the latest first; the numbers of `unreadable` ones, which are left out; `total` it has."""

    turns: tuple[Turn, ...]
    total: int
    more: bool
    unreadable: tuple[int, ...]


@app.command(
    "list",
    epilog="Examples:\n\nnexus turns list --owner ada --session s1\n\nnexus turns list --owner ada --search 'HR 0.86'",
)
def list_turns(
    owner: Owner,
    session: Session = "default",
    search: Annotated[
        str, typer.Option(help="Only turns with this text in a summary or an insight.", show_default=False)
    ] = "",
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Turns at most, the latest.")] = 20,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Show the turns of a session with their brief summaries, the latest first."""
    settings = session_settings(config, owner, session)
    if len(search) > LONGEST_QUERY:
        raise NexusError(f"--search: more than {LONGEST_QUERY} characters")
    require_utf8("--search", search)
    found = run_on_store(settings.database, partial(_latest, key=(owner, session), search=search, limit=limit))
    if found.unreadable:
        left, first = ("is", "it is") if len(found.unreadable) == 1 else ("are", "the first is")
        count = counted(len(found.unreadable), "turn")
        typer.echo(f"nexus: {count} cannot be read and {left} left out; {first} turn {found.unreadable[0]}", err=True)
    if as_json:
        print_result({"total": found.total, "more": found.more, "turns": [*map(_listed_as_json, found.turns)]})
        return
    print_result([*table(_COLUMNS, found.turns), _list_summary(found, session_named(owner, session), search)])


@app.command(
    epilog="Examples:\n\nnexus turns show --owner ada --session s1 7\n\n"
    "nexus turns show --owner ada 7 --level comprehensive --json"
)
def show(
    owner: Owner,
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="The turn, as `list` numbers it.")],
    session: Session = "default",
    level: Annotated[
        str, typer.Option(help=f"The summary at this level only: {', '.join(LEVELS)}.", show_default=False)
    ] = "",
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Show everything that is remembered of a turn. What a terminal might obey in it is shown escaped."""
    settings = session_settings(config, owner, session)
    levels = [known for known in LEVELS if level in {known, ""}]
    if not levels:
        raise NexusError(f"--level: {printable(level)!r} is unknown; allowed: {', '.join(LEVELS)}")
    turn = run_on_store(settings.database, partial(_find, key=(owner, session), number=number))
    print_result(_as_json(turn, levels) if as_json else _lines(turn, levels))


async def _latest(store: Store, key: tuple[str, str], search: str, limit: int) -> _Listed:
    await require_session(store, *key)
    if search:
        numbers = [row["turn_number"] for row in await store.turns.search_turns(*key, search, limit=limit + 1)]
        documents = [row for number in numbers if (row := await store.turns.find_turn(*key, number))]
    else:
        documents = await newest("turn_number", limit + 1, partial(store.turns.turns, *key, whole=True))
    turns, unreadable = list[Turn](), list[int]()
    for document in documents[:limit]:
        try:
            turns.append(read_turn(document))
        except ValueError:
            unreadable.append(document["turn_number"])
    total = await store.turns.count_turns(*key)
    return _Listed(tuple(turns), total, len(documents) > limit, tuple(unreadable))


async def _find(store: Store, key: tuple[str, str], number: int) -> Turn:
    document = await store.turns.find_turn(*key, number) if number <= LARGEST else None
    if document is None:
        await require_session(store, *key)
        raise TurnNotFoundError(number)
    try:
        return read_turn(document)
    except ValueError as error:
        raise NexusError(f"turn {number} cannot be read: {error}") from None


def _list_summary(found: _Listed, where: str, search: str) -> str:
    if not found.total:
        return f"There are no turns of {where}."
    with_text = f" with {printable(search)!r}" if search else ""
    if not found.turns:
        return f"There are no turns of {where}{with_text}; {found.total} in all."
    more = "; --limit shows more" if found.more else ""
    return f"{len(found.turns)} shown of {where}{with_text}; {found.total} in all{more}."


def _lines(turn: Turn, levels: Sequence[Level]) -> list[str]:
    usage = turn.token_usage
    values = {
        "turn": f"{turn.turn_number}  {turn.id}",
        "time": f"{timestamp(turn.timestamp)} UTC",
        "run": turn.run_id,
        "status": turn.status.value,
        "summary by": turn.summaries.source + (f" (model given up: {turn.given_up})" if turn.given_up else ""),
        "messages": len(turn.messages),
        "tokens": f"{usage.total} (thinking {usage.thinking}, action {usage.action})",
    }
    parts = {
        "Goal": text_lines(turn.task_context),
        "Surroundings": text_lines(turn.workspace_context),
        "Brief": text_lines(turn.summaries.brief) if "brief" in levels else [],
        "Detailed": text_lines(turn.summaries.detailed) if "detailed" in levels else [],
        "Structured": [*_structured(turn)] if "comprehensive" in levels else [],
        "Insights": [f"- {_on_one_line(insight)}" for insight in turn.insights],
        "Rounds of thought": [*_rounds(turn)],
        "Tools": [line for outcome in turn.tool_calls for line in _outcome(outcome)],
    }
    return facts(values, parts)


def _as_json(turn: Turn, levels: Sequence[Level]) -> dict[str, Any]:
    value: dict[str, Any] = turn.model_dump(mode="json")
    kept = {"structured" if level == "comprehensive" else level for level in levels} | {"source"}
    return {**value, "summaries": {name: part for name, part in value["summaries"].items() if name in kept}}


def _listed_as_json(turn: Turn) -> dict[str, Any]:
    return {
        "turn_number": turn.turn_number,
        "id": turn.id,
        "run_id": turn.run_id,
        "timestamp": turn.model_dump(mode="json", include={"timestamp"})["timestamp"],
        "status": turn.status.value,
        "source": turn.summaries.source,
        "tools": dict(_tools(turn)),
        "brief": turn.summaries.brief,
    }


def _tools(turn: Turn) -> Counter[str]:
    return Counter(outcome.name for outcome in turn.tool_calls)


def _structured(turn: Turn) -> Iterator[str]:
    for name, value in turn.summaries.structured:
        title = name.replace("_", " ").capitalize()
        if isinstance(value, str):
            yield f"{title}: {_on_one_line(value) or '-'}"
        elif value:
            yield f"{title}:"
            yield from (f"- {_on_one_line(item)}" for item in value)


def _rounds(turn: Turn) -> Iterator[str]:
    for item in turn.thinking_phase.rounds if turn.thinking_phase else ():
        yield f"Round {item.round_number} ({item.tokens_used} tokens):"
        yield from indented(text_lines(item.content))


def _outcome(outcome: ToolOutcome) -> Iterator[str]:
    yield f"- {printable(outcome.name)}: {_OUTCOMES[outcome.success]}"
    for name, value in (("arguments", outcome.arguments), ("result", outcome.result)):
        if value is not None:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            yield f"  {name}:"
            yield from (f"    {line}" for line in text_lines(text))


def _on_one_line(text: str) -> str:
    return printable(" ".join(text.split()))
