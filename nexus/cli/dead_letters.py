"""`nexus dead-letters`: show messages that could not be used, send them again, drop them (contract §1.6, §10).

Exit code 1 when a letter was not sent or not dropped.
"""

import base64
import re
import shlex
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from nexus.cli.options import Config, Json, Yes, command_settings
from nexus.cli.servers import run
from nexus.cli.terminal import Columns, confirm, counted, facts, print_result, printable, progress, table, timestamp
from nexus.config import Settings, signing_of
from nexus.connections import counts_subscribers, open_bus, open_dead_letters
from nexus.core.errors import NexusError
from nexus.core.ports import DeadLetter, DeadLetters
from nexus.core.signing import FRESH_S
from nexus.services.requests.envelope import RequestSettings
from nexus.services.requests.letters import LETTER_ID, LetterSender, Outcome, newest
from nexus.services.requests.letters import drop as drop_letter

_Result = TypeVar("_Result")

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Look at messages that could not be used, send them again, drop them.",
)
Topic = Annotated[str, typer.Option(help="Only letters of this topic.", show_default=False)]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Letters, as `list` names them.")]
Everything = Annotated[bool, typer.Option("--all", help="All letters, or all of --topic. Asks first.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing; say what would be done.")]

_AGE: Final = re.compile(r"(?P<number>[0-9]{1,6})(?P<unit>[smhd])")
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_COLUMNS: Final[Columns] = {
    "ID": "letter_id",
    "TIME (UTC)": "at",
    "TOPIC": "topic",
    "DELIVERIES": "deliveries",
    "SIZE": "size",
    "MESSAGE ID": "message_id",
    "REASON": "reason",
}
_INSTEAD: Final = "--yes does it without asking, --dry-run says what would be done"


@dataclass(frozen=True, slots=True)
class Choice:
    """Which letters a command is about: `ids`, or all of a topic, or older than a moment, in ms since 1970."""

    ids: tuple[str, ...] = ()
    topic: str = ""
    before_ms: int | None = None

    def includes(self, letter: DeadLetter) -> bool:
        """Whether a letter has the topic and the age."""
        return self.topic in {"", letter.topic} and (self.before_ms is None or letter.at_ms < self.before_ms)


@app.command(
    "list",
    epilog="Examples:\n\nnexus dead-letters list --limit 50\n\nnexus dead-letters list --topic llm.results --json",
)
def list_letters(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Letters at most.")] = 20,
    before: Annotated[str, typer.Option(help="Only letters older than this one.", show_default=False)] = "",
    topic: Topic = "",
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Show dead letters, newest first, without what they hold."""
    before = _checked_id(before) if before else ""

    async def read(letters: DeadLetters) -> tuple[int, list[DeadLetter]]:
        found = await newest(letters, limit + 1, before=before, includes=Choice(topic=topic).includes)
        return await letters.count(), found

    total, found = _run(_settings(config), read)
    shown = found[:limit]
    following = shown[-1].letter_id if len(found) > limit else ""
    if as_json:
        letters = [_as_json(letter) for letter in shown]
        print_result({"total": total, "letters": letters, "next_before": following or None})
        return
    print_result([*table(_COLUMNS, shown), _list_summary(total, len(shown), topic, before, following)])


@app.command(
    epilog="Examples:\n\nnexus dead-letters show 1795300670881-0\n\nnexus dead-letters show 1795300670881-0 --body"
)
def show(
    letter_id: Annotated[str, typer.Argument(metavar="ID", help="The letter, as `list` names it.")],
    body: Annotated[bool, typer.Option("--body", help="With what it holds, where that was kept.")] = False,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Show one dead letter. What a terminal might obey in it is shown escaped; --json has every byte of the body."""
    settings = _settings(config)
    _checked_id(letter_id)
    letter = _run(settings, lambda letters: letters.find(letter_id))
    if letter is None:
        raise NexusError(f"there is no dead letter {letter_id}; `nexus dead-letters list` shows those there are")
    print_result(_as_json(letter, body=body) if as_json else _lines(letter, body=body))


@app.command(
    epilog="Examples:\n\nnexus dead-letters replay 1795300670881-0\n\n"
    "nexus dead-letters replay --all --topic llm.results --dry-run"
)
def replay(
    ids: Ids = None,
    everything: Everything = False,
    topic: Topic = "",
    keep: Annotated[bool, typer.Option("--keep", help="Leave the letters where they are.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    config: Config = None,
) -> None:
    """Send what letters hold again, on the topics and under the ids they had; what was sent is dropped.

    A request is then answered anew, whatever it was answered before. Needs bodies, which the service keeps with
    bus.dead_letter_bodies only. Exit 1 when a letter was not sent; it is then kept. Pub/sub on a Redis Cluster does
    not tell whether a message reached a service: there letters are kept after they were sent, for you to drop.
    """
    settings = _settings(config)
    wanted = _run(settings, partial(_all_ids, chosen=choice(ids or (), everything=everything, topic=topic)))
    _warn_of_signatures(settings, wanted)
    if everything and wanted and not dry_run:
        confirm(f"Send again {counted(len(wanted), 'dead letter')}?", yes=yes, otherwise=_INSTEAD)

    async def work(report: Callable[[str, Outcome], None]) -> None:
        async with open_dead_letters(settings.bus) as letters, open_bus(settings.bus) as transport:
            reading = RequestSettings(
                max_payload_bytes=settings.bus.max_payload_bytes, signing=signing_of(settings.bus.signing)
            )
            sender = LetterSender(letters, transport.bus, reading, counts=counts_subscribers(settings.bus))
            for letter_id in wanted:
                report(letter_id, await sender.send(letter_id, keep=keep, dry_run=dry_run))

    carry_out(wanted, work, each=not everything or dry_run)


@app.command(
    epilog="Examples:\n\nnexus dead-letters drop 1795300670881-0\n\nnexus dead-letters drop --all --older-than 7d --yes"
)
def drop(
    ids: Ids = None,
    everything: Everything = False,
    topic: Topic = "",
    older_than: Annotated[str, typer.Option(help="Only letters that old: 90s, 15m, 12h, 7d.", show_default=False)] = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    config: Config = None,
) -> None:
    """Remove letters for good. Exit 1 when one of them was not there."""
    settings = _settings(config)
    chosen = choice(ids or (), everything=everything, topic=topic, older_than=older_than)
    wanted = _run(settings, partial(_all_ids, chosen=chosen))
    if everything and wanted and not dry_run:
        confirm(f"Drop {counted(len(wanted), 'dead letter')}?", yes=yes, otherwise=_INSTEAD)

    async def work(report: Callable[[str, Outcome], None]) -> None:
        async with open_dead_letters(settings.bus) as letters:
            for letter_id in wanted:
                report(letter_id, await drop_letter(letters, letter_id, dry_run=dry_run))

    carry_out(wanted, work, each=not everything or dry_run)


def choice(ids: Sequence[str], *, everything: bool, topic: str = "", older_than: str = "") -> Choice:
    """The choice that the options of a command mean; a NexusError where they name no letters, or name them twice."""
    if everything == bool(ids):
        raise NexusError("name letters by their ids, or --all" if not ids else "either ids or --all, not both")
    if ids and (topic or older_than):
        raise NexusError("--topic and --older-than choose among --all; with ids leave them out")
    age = _AGE.fullmatch(older_than)
    if older_than and not age:
        raise NexusError(f"--older-than {printable(older_than)!r}: allowed are 90s, 15m, 12h, 7d and the like")
    before_ms = time.time_ns() // 1_000_000 - int(age["number"]) * _UNIT_MS[age["unit"]] if age else None
    return Choice(tuple(dict.fromkeys(map(_checked_id, ids))), topic, before_ms)


def carry_out(
    wanted: Sequence[str], work: Callable[[Callable[[str, Outcome], None]], Awaitable[None]], *, each: bool
) -> None:
    """Do `work` with a progress bar, print a summary also when it breaks off, and exit 1 when a letter was not done.

    `work` is called with the function that takes each letter's outcome. `each`: print a line for each letter, not only
    for those that were not done.
    """
    outcomes: Counter[Outcome] = Counter()
    try:
        with progress("Dead letters", len(wanted)) as advance:

            def report(letter_id: str, outcome: Outcome) -> None:
                outcomes[outcome] += 1
                advance(1)
                if not outcome.done:
                    typer.echo(f"nexus: {letter_id}: {outcome.text}", err=True)
                elif each or len(wanted) == 1:
                    typer.echo(f"{letter_id}: {outcome.text}")

            if wanted:
                run(partial(work, report), key="nexus:dead-letters")
    finally:
        for outcome, count in outcomes.items() if len(wanted) > 1 else ():
            typer.echo(f"{counted(count, 'dead letter')} {outcome.text}")
        if not wanted:
            typer.echo("There are no such dead letters.")
    if not all(outcome.done for outcome in outcomes):
        raise typer.Exit(1)


def _settings(config: Path | None) -> Settings:
    settings = command_settings(config)
    if settings.bus.mode == "memory":
        raise NexusError("bus.mode is memory: its dead letters are inside the process that runs it, and end with it")
    return settings


def _run(settings: Settings, work: Callable[[DeadLetters], Awaitable[_Result]]) -> _Result:
    async def on_letters() -> _Result:
        async with open_dead_letters(settings.bus) as letters:
            return await work(letters)

    return run(on_letters, key="nexus:dead-letters")


def _checked_id(letter_id: str) -> str:
    if not LETTER_ID.fullmatch(letter_id):
        allowed = "<milliseconds>-<number>, as `nexus dead-letters list` shows them"
        raise NexusError(f"{printable(letter_id)!r} is no id of a dead letter; allowed: {allowed}")
    return letter_id


async def _all_ids(letters: DeadLetters, chosen: Choice) -> list[str]:
    """The letters of a choice, oldest first: they are sent again in the order in which they came."""
    if chosen.ids:
        return [*chosen.ids]
    # Counted first: a letter that is sent again and fails again is a new one, which is not meant.
    found = await newest(letters, await letters.count(), includes=chosen.includes)
    return [letter.letter_id for letter in reversed(found)]


def _warn_of_signatures(settings: Settings, wanted: Sequence[str]) -> None:
    valid_from_ms = (time.time() - FRESH_S) * 1_000
    stale = sum(int(letter_id.partition("-")[0]) < valid_from_ms for letter_id in wanted)
    if stale and settings.bus.signing.keys:
        reason = "a signature is valid no longer than that, so a service refuses what they hold if it is signed"
        also = ", and if it is not" if settings.bus.signing.required else ""
        typer.echo(f"nexus: {counted(stale, 'dead letter')} came more than {FRESH_S:g} s ago: {reason}{also}", err=True)


def _list_summary(total: int, shown: int, topic: str, before: str, following: str) -> str:
    if not total:
        return "There are no dead letters."
    of_topic = f" of {printable(topic)}" if topic else ""
    older = f" older than {before}" if before else ""
    if not shown:
        return f"There are no dead letters{of_topic}{older}; {total} in all."
    options = f" --topic {shlex.quote(printable(topic))}" if topic else ""
    more = f" Older ones: nexus dead-letters list{options} --before {following}" if following else ""
    return f"{shown} shown{of_topic}{older}; {total} in all.{more}"


def _lines(letter: DeadLetter, *, body: bool) -> list[str]:
    return facts(
        {
            "id": letter.letter_id,
            "time": f"{timestamp(letter.at)} UTC",
            "topic": letter.topic,
            "reason": letter.reason,
            "deliveries": letter.deliveries,
            "message id": letter.message_id,
            "sha256": letter.sha256,
            "size": f"{letter.size} bytes",
            "body": _body(letter, shown=body),
        }
    )


def _body(letter: DeadLetter, *, shown: bool) -> str:
    if letter.body is None:
        return "not kept: bus.dead_letter_bodies was false at the service when it came"
    if not shown:
        return "kept; --body shows it"
    return letter.body.decode("utf-8", "backslashreplace") or "empty"


def _as_json(letter: DeadLetter, *, body: bool = False) -> dict[str, Any]:
    """A letter for programs. A body that is no UTF-8 text is `body_base64`."""
    values: dict[str, Any] = {
        "id": letter.letter_id,
        "at_ms": letter.at_ms,
        "topic": letter.topic,
        "reason": letter.reason,
        "deliveries": letter.deliveries,
        "message_id": letter.message_id or None,
        "sha256": letter.sha256,
        "size": letter.size,
        "body_kept": letter.body is not None,
    }
    if body and letter.body is not None:
        try:
            values["body"] = letter.body.decode()
        except UnicodeDecodeError:
            values["body_base64"] = base64.b64encode(letter.body).decode()
    return values
