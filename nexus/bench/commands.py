"""The command `nexus bench`. Errors are one line and exit code 1."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from nexus.bench.groups import GROUPS, USUAL, Bench, Extent
from nexus.bench.loop import run
from nexus.bench.machine import machine
from nexus.bench.responders import ANSWER_TTL_S
from nexus.bench.results import Findings
from nexus.bench.servers import on_servers
from nexus.bench.shown import about, cells, measures
from nexus.bench.telling import Telling
from nexus.config import load_settings
from nexus.core.errors import NexusError
from nexus.log import configure_logging
from nexus.terminal import Config, printable

app = typer.Typer(add_completion=False)
_WIDTH: Final = 140
# Builds after which memory is looked at: where nothing was chosen, and where it was.
_FEW, _MANY = 10_000, 100_000


@app.command()
def bench(  # noqa: PLR0917  # typer makes options of them
    groups: Annotated[
        list[str] | None, typer.Argument(metavar="GROUP", help=f"What to measure: {', '.join(GROUPS)}.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Measure everything, for half an hour.")] = False,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Rounds; the medians count.")] = 5,
    scale: Annotated[float, typer.Option(min=0.001, max=10, help="Of requests and rows: 0.1 to try it out.")] = 1.0,
    driver: Annotated[str, typer.Option(help="motor or pymongo.")] = "motor",
    redis_url: Annotated[str, typer.Option(help="Where Redis is.", show_default=False)] = "",
    mongo_uri: Annotated[str, typer.Option(help="Where MongoDB is.", show_default=False)] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write the JSON there too.", show_default=False)] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit 1 when something exceeds what is promised.")] = False,
    config: Config = None,
) -> None:
    """Measure contexts, on real servers and against the least that could answer.

    Databases and topics are its own, and dropped at the end. Addresses are those in NEXUS_TEST_REDIS_URL and
    NEXUS_TEST_MONGO_URI, else those of the settings.
    """
    configure_logging("error", "console")
    settings = load_settings(config)
    chosen = _chosen(groups, full=full)
    if driver not in {"motor", "pymongo"}:
        raise NexusError("--driver: motor and pymongo are allowed")
    if output:
        _see_writable(output)
    redis_url = redis_url or os.environ.get("NEXUS_TEST_REDIS_URL", "") or settings.bus.url.get_secret_value()
    mongo_uri = mongo_uri or os.environ.get("NEXUS_TEST_MONGO_URI", "") or settings.database.uri.get_secret_value()
    # Whoever ends it finds its databases dropped and its processes gone, as after Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    findings, told = Findings(), Console(stderr=True)
    builds = _MANY if full or groups else _FEW
    extent = Extent(rounds, scale, builds)
    on = run(_bench, chosen, (redis_url, mongo_uri, driver), extent, findings, told)
    how = {"driver": driver, "rounds": rounds, "scale": scale, "builds": builds, "answer_ttl_s": ANSWER_TTL_S}
    report = {**on, "settings": how, **findings.as_json()}
    if output:
        output.write_text(json.dumps(report, indent=1), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(report, indent=1))
    else:
        # As wide as the tables need, also in a file.
        console = Console(width=None if sys.stdout.isatty() else _WIDTH)
        console.print(about(on["machine"]), cells(findings), measures(findings), sep="\n")
    for line in findings.faults:
        typer.echo(f"nexus: {line}", err=True)
    if check and (findings.is_over or findings.faults):
        raise typer.Exit(1)


async def _bench(
    chosen: list[str], where: tuple[str, str, str], extent: Extent, findings: Findings, told: Console
) -> dict[str, Any]:
    with Telling(told) as telling:
        async with on_servers(*where) as servers:
            for name in chosen:
                await GROUPS[name](Bench(servers, extent, telling, findings))
                await servers.drop()
            return {"run": servers.run, "machine": await machine(servers)}


def _see_writable(output: Path) -> None:
    """Rather now than when all is measured."""
    if output.is_dir():
        raise NexusError("--output: a file is needed, and this is a directory")
    try:
        output.touch()
    except OSError as error:
        raise NexusError(f"--output: cannot be written: {error.strerror}") from None


def _chosen(groups: list[str] | None, *, full: bool) -> list[str]:
    if unknown := [name for name in groups or () if name not in GROUPS]:
        raise NexusError(f"there is no group {printable(unknown[0])!r}; allowed: {', '.join(GROUPS)}")
    wanted = groups or (GROUPS if full else USUAL)
    return [name for name in GROUPS if name in wanted]
