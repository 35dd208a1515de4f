"""`nexus erase`: forgets an owner, a session, or what was said before a time; looks for a text (contract §13)."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, TypeVar

import typer

from nexus.cli.options import Config, Json, Yes, command_settings, is_utf8, session_settings
from nexus.cli.servers import run
from nexus.cli.terminal import Columns, confirm, counted, print_result, printable, progress, table, timestamp
from nexus.config import Settings
from nexus.connections import open_bus, open_store
from nexus.core.erasure import Erasure
from nexus.core.errors import NexusError
from nexus.core.models import DEFAULT_SESSION
from nexus.services.erasure import KINDS, STAYS, Erased, Eraser, read_before
from nexus.wiring import create_eraser

_Result = TypeVar("_Result")

app = typer.Typer(add_completion=False)
_MANY: Final = "many"


@dataclass(frozen=True, slots=True)
class _Line:
    what: str
    found: object
    removed: object
    left: object


_PREVIEW: Final[Columns] = {"FOUND": "found", "WHAT": "what"}
_DONE: Final[Columns] = {"FOUND": "found", "REMOVED": "removed", "LEFT": "left", "WHAT": "what"}


@app.command(
    epilog="Examples:\n\nnexus erase --owner ada --dry-run\n\nnexus erase --owner ada --session s1 --before 2026-05-01"
    '\n\nnexus erase --owner ada --yes --verify "12 Rose Lane"\n\nnexus erase --verify "12 Rose Lane"'
)
def erase(
    owner: Annotated[str | None, typer.Option(help="Whose: the owner_key.", show_default=False)] = None,
    session: Annotated[str | None, typer.Option(help="Only this session.", show_default=False)] = None,
    before: Annotated[
        str | None,
        typer.Option(help="Only what was said before: a day or a time in ISO 8601, UTC.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; show what would go.")] = False,
    yes: Yes = False,
    verify: Annotated[
        str | None,
        typer.Option(help="Look for this text in all collections and keys, of all owners; last.", show_default=False),
    ] = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Forget an owner, a session, or what was said before a time, wherever it is kept. Asks first.

    What was said until then is refused from then on, should it come again. May be broken off and repeated. Exit 1 where
    something still came, or where the text of --verify is found.
    """
    if verify is not None and not (verify.strip() and is_utf8(verify)):
        raise NexusError("--verify: a text is needed, in UTF-8")
    if owner is None:
        if verify is None or session is not None or before is not None or dry_run or yes:
            raise NexusError("--owner is needed; without it --verify alone looks for a text")
        settings, erasure = command_settings(config), None
    else:
        settings = session_settings(config, owner, DEFAULT_SESSION if session is None else session)
        erasure = Erasure(owner, session, None if before is None else _time(before))
    if settings.bus.mode == "memory":
        typer.echo("nexus: bus.mode is memory: what is inside the service's process only its console erases", err=True)
    printed: dict[str, Any] = {}
    if erasure:
        printed |= _erase(settings, erasure, dry_run=dry_run, yes=yes, as_json=as_json)
    if verify is not None:
        printed["text_found"] = _find(settings, verify)
        if not as_json:
            print_result(_where(printed["text_found"]))
    if as_json:
        print_result(printed)
    if printed.get("still_coming") or printed.get("text_found"):
        raise typer.Exit(1)


def _time(text: str) -> datetime:
    try:
        return read_before(text)
    except ValueError as error:
        raise NexusError(f"--{printable(str(error))}") from None


def _erase(settings: Settings, erasure: Erasure, *, dry_run: bool, yes: bool, as_json: bool) -> dict[str, Any]:
    """Show what there is, ask, and erase; what is printed as JSON."""
    named = {
        "owner_key": erasure.owner_key,
        "session_id": erasure.session_id,
        "before": erasure.before.isoformat() if erasure.before else None,
    }
    found = _run(settings, lambda eraser: eraser.preview(erasure))
    if not as_json:
        lines = [_Line(KINDS[kind], _shown(found[kind]), None, None) for kind in KINDS if found.get(kind, 0) != 0]
        print_result(table(_PREVIEW, lines) or [f"There is nothing of {_whose(erasure)}."])
        _say_stays(found)
    if dry_run:
        return {**named, "found": found}
    confirm(f"Erase all of that of {_whose(erasure)}, for good?", yes=yes)
    with progress("Erasing", None) as advance:
        done = _run(settings, lambda eraser: eraser.erase(erasure, lambda _, count: advance(count)))
    left = _run(settings, lambda eraser: eraser.preview(erasure))
    if not as_json:
        _print_done(found, done, left)
    return {**named, "found": found, "removed": done.removed, "left": left, "still_coming": done.still_coming}


def _print_done(found: Mapping[str, int | None], done: Erased, left: Mapping[str, int | None]) -> None:
    lines = [
        _Line(KINDS[kind], _shown(found.get(kind, 0)), done.removed.get(kind, 0), _shown(left.get(kind, 0)))
        for kind in KINDS
        if done.removed.get(kind) or left.get(kind, 0) != 0 or found.get(kind, 0) != 0
    ]
    print_result(table(_DONE, lines) or ["There was nothing to remove."])
    typer.echo("What was said until then is refused from now on, should it come again.")
    _say_stays(left)
    if done.still_coming:
        typer.echo(
            "nexus: something still came in the last of several passes: see that nobody writes, and repeat the command",
            err=True,
        )


def _find(settings: Settings, text: str) -> dict[str, int]:
    with progress("Looking", None) as advance:
        return _run(settings, lambda eraser: eraser.find_text(text, lambda _, count: advance(count)))


def _where(found: Mapping[str, int]) -> Iterable[str]:
    if not found:
        return ["0: the text is in no collection and no key."]
    return [
        f"{counted(sum(found.values()), 'place')} with the text:",
        *(f"{count:>7}  {printable(name)}" for name, count in found.items()),
    ]


def _say_stays(found: Mapping[str, int | None]) -> None:
    for kind, why in STAYS.items():
        if found.get(kind):
            typer.echo(f"{found[kind]} {why}", err=True)


def _whose(erasure: Erasure) -> str:
    session = "" if erasure.session_id is None else f" in session {printable(erasure.session_id)}"
    before = "" if erasure.before is None else f" before {timestamp(erasure.before)} UTC"
    return f"{printable(erasure.owner_key)}{session}{before}"


def _shown(count: int | None) -> object:
    return _MANY if count is None else count


def _run(settings: Settings, work: Callable[[Eraser], Awaitable[_Result]]) -> _Result:
    """The result of `work` on store and bus, whose errors say what to do about them."""

    async def on_both() -> _Result:
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(open_store(settings.database))
            transport = None
            if settings.bus.mode != "memory":
                transport = await stack.enter_async_context(open_bus(settings.bus))
            return await work(create_eraser(settings, store, transport))

    return run(on_both)
