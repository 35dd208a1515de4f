"""A command of `nexus dead-letters` at work: it asks, shows how it goes, and sums up."""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import anyio
import typer

from nexus.cli import terminal
from nexus.config import Settings
from nexus.core.signing import FRESH_S
from nexus.dead_letters.handling import Outcome, in_plain_words

_Result = TypeVar("_Result")


def run(work: Callable[[], Awaitable[_Result]]) -> _Result:
    """What `work` returns. Errors of the bus come in words for somebody at a terminal."""
    with in_plain_words():
        return anyio.run(work)


def confirm(wanted: Sequence[str], verb: str, *, asks: bool) -> None:
    """Ask whether to go on, if it `asks`.

    Raises:
        NexusError: the answer was no, or there was none.
    """
    if not asks or not wanted:
        return
    terminal.confirm(
        f"{verb} {_letters(len(wanted))}?", "--yes does it without asking, --dry-run says what would be done"
    )


def warn_of_signatures(settings: Settings, wanted: Sequence[str]) -> None:
    """Who signs must know that what is sent again is signed as long ago as it was written."""
    valid_from_ms = (time.time() - FRESH_S) * 1_000
    stale = sum(int(letter_id.partition("-")[0]) < valid_from_ms for letter_id in wanted)
    if stale and settings.bus.signing.keys:
        reason = "a signature is valid no longer than that, so a service refuses what they hold if it is signed"
        also = ", and if it is not" if settings.bus.signing.required else ""
        typer.echo(f"nexus: {_letters(stale)} came more than {FRESH_S:g} s ago: {reason}{also}", err=True)


def carry_out(
    wanted: Sequence[str], work: Callable[[Callable[[str, Outcome], None]], Awaitable[None]], *, each: bool
) -> None:
    """Do the work, show how it goes, sum it up also when it breaks off, and exit 1 when a letter was not done."""
    outcomes: Counter[Outcome] = Counter()
    try:
        with terminal.progress("Dead letters", len(wanted)) as advance:

            def report(letter_id: str, outcome: Outcome) -> None:
                outcomes[outcome] += 1
                advance(1)
                if not outcome.done:
                    typer.echo(f"nexus: {letter_id}: {outcome.text}", err=True)
                elif each or len(wanted) == 1:
                    typer.echo(f"{letter_id}: {outcome.text}")

            if wanted:
                run(partial(work, report))
    finally:
        for outcome, count in outcomes.items() if len(wanted) > 1 else ():
            typer.echo(f"{_letters(count)} {outcome.text}")
        if not wanted:
            typer.echo("There are no such dead letters.")
    if not all(outcome.done for outcome in outcomes):
        raise typer.Exit(1)


def _letters(count: int) -> str:
    return f"{count} dead letter" + ("" if count == 1 else "s")
