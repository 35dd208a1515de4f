"""The commands of `nexus dead-letters`. Errors are one line and exit code 1."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from nexus.cli.terminal import Config, print_json, printable
from nexus.config import Settings, load_settings
from nexus.connections import counts_hearers, open_bus, open_dead_letters
from nexus.core.errors import NexusError
from nexus.core.ports import DeadLetter
from nexus.dead_letters.handling import (
    Choice,
    Dropping,
    Outcome,
    Resending,
    all_ids,
    checked_id,
    choice,
    handle,
    page,
)
from nexus.dead_letters.shown import as_json, lines, table
from nexus.dead_letters.terminal import carry_out, confirm, run, warn_of_signatures
from nexus.log import configure_logging

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Look at messages that could not be used, send them again, drop them.",
)
Topic = Annotated[str, typer.Option(help="Only letters of this topic.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Letters, as `list` names them.")]
Everything = Annotated[bool, typer.Option("--all", help="All letters, or all of --topic. Asks first.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Rehearse = Annotated[bool, typer.Option("--dry-run", help="Change nothing; say what would be done.")]


@app.command(
    "list",
    epilog="Examples:\n\nnexus dead-letters list --limit 50\n\nnexus dead-letters list --topic llm.results --json",
)
def list_letters(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Letters at most.")] = 20,
    before: Annotated[str, typer.Option(help="Only letters older than this one.", show_default=False)] = "",
    topic: Topic = "",
    as_objects: Json = False,
    config: Config = None,
) -> None:
    """Show dead letters, newest first, without what they hold."""
    settings = _settings(config)
    chosen = Choice(everything=True, topic=topic)
    before = checked_id(before) if before else ""

    async def read() -> tuple[int, list[DeadLetter]]:
        async with open_dead_letters(settings.bus) as letters:
            return await letters.count(), await page(letters, chosen, limit + 1, before)

    total, found = run(read)
    shown, more = found[:limit], len(found) > limit
    if as_objects:
        following = shown[-1].letter_id if more else None
        print_json({"total": total, "letters": [as_json(letter) for letter in shown], "next_before": following})
        return
    for line in table(shown) if shown else []:
        typer.echo(line)
    typer.echo(_summary_of_list(total, shown, chosen.topic, more=more, before=before))


@app.command(
    epilog="Examples:\n\nnexus dead-letters show 1795300670881-0\n\nnexus dead-letters show 1795300670881-0 --body"
)
def show(
    letter_id: Annotated[str, typer.Argument(metavar="ID", help="The letter, as `list` names it.")],
    body: Annotated[bool, typer.Option("--body", help="With what it holds, where that was kept.")] = False,
    as_objects: Json = False,
    config: Config = None,
) -> None:
    """Show one dead letter. What a terminal might obey in it is shown escaped; --json has every byte of the body."""
    settings = _settings(config)
    checked_id(letter_id)

    async def read() -> DeadLetter | None:
        async with open_dead_letters(settings.bus) as letters:
            return await letters.find(letter_id)

    letter = run(read)
    if letter is None:
        raise NexusError(f"there is no dead letter {letter_id}; `nexus dead-letters list` shows those there are")
    if as_objects:
        print_json(as_json(letter, body=body))
        return
    for line in lines(letter, body=body):
        typer.echo(line)


@app.command(
    epilog="Examples:\n\nnexus dead-letters replay 1795300670881-0\n\n"
    "nexus dead-letters replay --all --topic llm.results --dry-run"
)
def replay(  # noqa: PLR0917  # typer makes options of them
    ids: Ids = None,
    everything: Everything = False,
    topic: Topic = "",
    keep: Annotated[bool, typer.Option("--keep", help="Leave the letters where they are.")] = False,
    rehearse: Rehearse = False,
    yes: Yes = False,
    config: Config = None,
) -> None:
    """Send what letters hold again, on the topics and under the ids they had; what was sent is dropped.

    A request is then answered anew, whatever it was answered before. Needs bodies, which the service keeps with
    bus.dead_letter_bodies only. Exit 1 when a letter was not sent; it is then kept. On pub/sub on a Redis Cluster
    nobody knows whether somebody heard it: there letters are kept after they were sent, for you to drop.
    """
    settings = _settings(config)
    wanted = _wanted(settings, choice(ids or (), everything=everything, topic=topic))
    warn_of_signatures(settings, wanted)
    confirm(wanted, "Send again", asks=everything and not (yes or rehearse))

    async def work(report: Callable[[str, Outcome], None]) -> None:
        async with open_dead_letters(settings.bus) as letters, open_bus(settings.bus) as transport:
            resending = Resending(
                letters,
                transport.bus,
                settings.bus.max_payload_bytes,
                counts=counts_hearers(settings.bus),
                keep=keep,
                rehearse=rehearse,
            )
            await handle(resending, wanted, report)

    carry_out(wanted, work, each=not everything or rehearse)


@app.command(
    epilog="Examples:\n\nnexus dead-letters drop 1795300670881-0\n\nnexus dead-letters drop --all --older-than 7d --yes"
)
def drop(  # noqa: PLR0917  # typer makes options of them
    ids: Ids = None,
    everything: Everything = False,
    topic: Topic = "",
    older_than: Annotated[str, typer.Option(help="Only letters that old: 90s, 15m, 12h, 7d.", show_default=False)] = "",
    rehearse: Rehearse = False,
    yes: Yes = False,
    config: Config = None,
) -> None:
    """Remove letters for good. Exit 1 when one of them was not there."""
    settings = _settings(config)
    wanted = _wanted(settings, choice(ids or (), everything=everything, topic=topic, older_than=older_than))
    confirm(wanted, "Drop", asks=everything and not (yes or rehearse))

    async def work(report: Callable[[str, Outcome], None]) -> None:
        async with open_dead_letters(settings.bus) as letters:
            await handle(Dropping(letters, rehearse), wanted, report)

    carry_out(wanted, work, each=not everything or rehearse)


def _settings(config: Path | None) -> Settings:
    configure_logging("error", "console")
    settings = load_settings(config)
    if settings.bus.mode == "memory":
        raise NexusError("bus.mode is memory: its dead letters are inside the process that runs it, and end with it")
    return settings


def _wanted(settings: Settings, chosen: Choice) -> list[str]:
    async def read() -> list[str]:
        async with open_dead_letters(settings.bus) as letters:
            return await all_ids(letters, chosen)

    return run(read)


def _summary_of_list(total: int, shown: Sequence[DeadLetter], topic: str, *, more: bool, before: str) -> str:
    if not total:
        return "There are no dead letters."
    of_topic = f" of {printable(topic)}" if topic else ""
    older = f" older than {before}" if before else ""
    if not shown:
        return f"There are no dead letters{of_topic}{older}; {total} in all."
    summary = f"{len(shown)} shown{of_topic}{older}; {total} in all."
    if not more:
        return summary
    options = f" --topic {shlex.quote(printable(topic))}" if topic else ""
    return f"{summary} Older ones: nexus dead-letters list{options} --before {shown[-1].letter_id}"
