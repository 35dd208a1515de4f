"""A command of `nexus turns` at work: on the store, with its progress, and what it says of it."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import TypeVar

import typer

from nexus.cli.files import written
from nexus.cli.terminal import printable, progress, run_on_store
from nexus.config import DatabaseSettings
from nexus.core.models import utc_now
from nexus.core.ports import TurnStore
from nexus.services.turns.transfer import Survey, export_lines, import_turns
from nexus.services.turns.transfer_lines import Export
from nexus.turns.reading import Listed

_Result = TypeVar("_Result")


def run(settings: DatabaseSettings, work: Callable[[TurnStore], Awaitable[_Result]]) -> _Result:
    """What `work` returns; see `run_on_store`."""
    return run_on_store(settings, lambda store: work(store.turns))


def carry_out_export(settings: DatabaseSettings, found: Survey, path: str) -> None:
    """Write the export, and show how it goes."""

    async def write(store: TurnStore) -> None:
        with progress("Turns", found.turns + 1) as advance, written(path) as put:
            async with aclosing(export_lines(store, found, utc_now())) as exported:
                async for line in exported:
                    put(line)
                    advance(1)

    run(settings, write)


def carry_out_import(settings: DatabaseSettings, export: Export, *, replace: bool) -> int:
    """Keep the turns, and show how it goes. Returns how many were written."""
    with progress("Turns", len(export.turns)) as advance:
        return run(settings, partial(import_turns, export=export, replace=replace, advance=advance))


def tell_unreadable(unreadable: Sequence[int]) -> None:
    """Say which turns are malformed, if there are any."""
    if unreadable:
        left, first = ("is", "it is") if len(unreadable) == 1 else ("are", "the first is")
        count = turns(len(unreadable))
        typer.echo(f"nexus: {count} cannot be read and {left} left out; {first} turn {unreadable[0]}", err=True)


def summary_of_list(found: Listed, where: str, search: str) -> str:
    """What is said under a list."""
    if not found.total:
        return f"There are no turns of {where}."
    with_text = f" with {printable(search)!r}" if search else ""
    if not found.turns:
        return f"There are no turns of {where}{with_text}; {found.total} in all."
    more = "; --limit shows more" if found.more else ""
    return f"{len(found.turns)} shown of {where}{with_text}; {found.total} in all{more}."


def turns(count: int) -> str:
    """So many turns."""
    return f"{count} turn" + ("" if count == 1 else "s")
