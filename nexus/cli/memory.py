"""`nexus memory`: the working memory of a session, its history, and whether it is whole (contract §7, §10)."""

from difflib import unified_diff
from functools import partial
from typing import Annotated, Any, Final

import typer
from pydantic import BaseModel

from nexus.cli.options import Config, Json, Owner, Session, session_settings
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
from nexus.core.errors import NexusError
from nexus.core.person import Fact
from nexus.core.ports import Store
from nexus.core.working_memory import Compaction, Detail, Overview
from nexus.services.history.tombstones import Tombstones
from nexus.services.memory.documents import TEMPLATE, Audit, audit
from nexus.services.memory.kept import detail_of, overview_of, read_kept, two_overviews
from nexus.services.person.facts import Facts, unsupported

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Look at the working memory of a session, and check it."
)
_Kept = tuple[Overview | None, list[Detail], Compaction | None]

_COLOURS: Final = {"+": typer.colors.GREEN, "-": typer.colors.RED, "@": typer.colors.CYAN}
_TRIGGERS: Final = {"tool": "the model", "automatic": "the service", "operator": "an operator"}
_AUDIT: Final = {
    "MESSAGES": "messages",
    "IN CONTEXT": "in_context",
    "NOT SHOWN": "not_shown",
    "SUMMARISED": "summarised",
    "REMOVED BY RETENTION": "removed",
    "LOST": "lost",
    "TWICE": "twice",
}
_UNFOUNDED: Final[Columns] = {
    "TOPIC": lambda fact: " / ".join(filter(None, (fact.topic, fact.sub_topic))),
    "EVIDENCE": lambda fact: " ".join(fact.evidence),
    "VALUE": "value",
}
_DETAILS: Final = {"NAME": "name", "KIND": "kind", "VERSION": "version", "BYTES": "bytes", "TIME (UTC)": "updated_at"}
_REVISIONS: Final[Columns] = {
    "REVISION": "revision",
    "TIME (UTC)": "updated_at",
    "BY": "author",
    "BYTES": lambda overview: _bytes(overview.content),
    "TURN": lambda overview: overview.turn_number or None,
}
_COMPACTIONS: Final[Columns] = {
    "COMPACTION": "number",
    "TIME (UTC)": "created_at",
    "TARGET": "target",
    "STRATEGY": "strategy",
    "ASKED BY": "trigger",
    "MESSAGES": "count",
    "IN ALL": "total",
    "TOKENS": lambda found: (
        f"{found.tokens_before} -> {found.tokens_after}" if found.tokens_before or found.tokens_after else None
    ),
    "SUMMARY BY": "source",
}


@app.command(
    epilog="Examples:\n\nnexus memory show --owner ada --session s1\n\n"
    "nexus memory show --owner ada --session s1 flights --revision 2"
)
def show(
    owner: Owner,
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="A detail, which is shown whole.", show_default=False)
    ] = "",
    session: Session = "default",
    revision: Annotated[
        int | None,
        typer.Option(min=0, help="That revision of the overview, or version of the detail.", show_default=False),
    ] = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Show the overview, the list of details and the summary of what is compacted; or a detail.

    What a terminal might obey in it is shown escaped.
    """
    settings = session_settings(config, owner, session)
    key = owner, session
    if name:
        detail = run_on_store(settings.database, lambda store: _detail(store, *key, name, revision))
        print_result(detail.model_dump(mode="json") if as_json else _detail_lines(detail))
        return

    async def read(store: Store) -> _Kept:
        await require_session(store, *key)
        memory = store.memory
        overview = await overview_of(memory, *key, revision)
        details = [read_kept(Detail, document, "name") for document in await memory.list_details(*key)]
        latest = await memory.latest_compaction(*key)
        compaction = read_kept(Compaction, latest, "number") if latest else None
        return overview, details, compaction

    kept = run_on_store(settings.database, read)
    print_result(_as_json(*kept) if as_json else _lines(*kept, settings.memory.overview_max_bytes))


@app.command(
    epilog="Examples:\n\nnexus memory history --owner ada --session s1\n\nnexus memory history --owner ada --json"
)
def history(
    owner: Owner,
    session: Session = "default",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Of each so many at most, the newest.")] = 20,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Show the revisions of the overview and the compactions of a session, the newest first."""
    settings = session_settings(config, owner, session)
    key = owner, session

    async def read(store: Store) -> tuple[list[Overview], list[Compaction]]:
        await require_session(store, *key)
        memory = store.memory
        revisions = await newest("revision", limit, partial(memory.overviews, *key))
        numbered = await newest("number", limit, partial(memory.compactions, *key))
        overviews = [read_kept(Overview, document, "revision") for document in revisions]
        compactions = [read_kept(Compaction, document, "number") for document in numbered]
        return overviews, compactions

    overviews, compactions = run_on_store(settings.database, read)
    if as_json:
        listed = [{**_fields(overview, "content"), "bytes": _bytes(overview.content)} for overview in overviews]
        print_result({"overviews": listed, "compactions": [*map(_compaction_as_json, compactions)]})
        return
    revisions, below = table(_REVISIONS, overviews), table(_COMPACTIONS, compactions)
    lines = [*revisions, *([""] if revisions and below else []), *below]
    nothing = [f"Nothing is written down or compacted of {session_named(owner, session)}."]
    print_result(lines or nothing)


@app.command(epilog="Examples:\n\nnexus memory diff --owner ada --session s1\n\nnexus memory diff --owner ada 0 3")
def diff(
    owner: Owner,
    first: Annotated[
        int | None, typer.Argument(metavar="[A]", min=0, help="A revision; 0 is the template.", show_default=False)
    ] = None,
    second: Annotated[
        int | None, typer.Argument(metavar="[B]", min=0, help="Another; the newest.", show_default=False)
    ] = None,
    session: Session = "default",
    config: Config = None,
) -> None:
    """Show what differs between two revisions of the overview: the newest two, where none are named."""
    settings = session_settings(config, owner, session)

    async def read(store: Store) -> tuple[Overview, Overview]:
        await require_session(store, owner, session)
        return await two_overviews(store.memory, owner, session, first, second)

    before, after = run_on_store(settings.database, read)
    names = f"revision {before.revision}", f"revision {after.revision}"
    differing = [*unified_diff(text_lines(before.content), text_lines(after.content), *names, lineterm="")]
    for line in differing:
        typer.echo(typer.style(line, fg=_COLOURS.get(line[:1])))
    if not differing:
        typer.echo(f"Nothing differs between revisions {before.revision} and {after.revision}.")


@app.command(epilog="Example:\n\nnexus memory check --owner ada --session s1")
def check(owner: Owner, session: Session = "default", as_json: Json = False, config: Config = None) -> None:
    """See that every message of a session is read for the next context, or under exactly one compaction.

    Removed by retention are those that the settings let go, as long as the compaction or turn is there whose summary
    stands for them. Messages that are a sub-agent's own business do not count. Exit 1 when one is lost, or there twice.
    Facts of the owner whose evidence is not there any more are named; retention may have let it go.
    """
    settings = session_settings(config, owner, session)

    async def read(store: Store) -> tuple[Audit, list[Fact]]:
        await require_session(store, owner, session)
        lacking = await unsupported(store, owner, await Facts(store.facts, Tombstones(store)).facts(owner))
        return await audit(store.memory, store.turns, store, owner, session), lacking

    found, unfounded = run_on_store(settings.database, read)
    if as_json:
        counts = {name: getattr(found, name) for name in _AUDIT.values()}
        without = [each.model_dump(mode="json") for each in unfounded]
        print_result({"owner_key": owner, "session_id": session, **counts, "facts_without_evidence": without})
    else:
        print_result([session_named(owner, session), *table(_AUDIT, [found])])
        if unfounded:
            head = f"{counted(len(unfounded), 'fact')} of {printable(owner)} without a recorded message as evidence:"
            print_result([head, *table(_UNFOUNDED, unfounded, margin=2)])
    if not found.is_right:
        raise typer.Exit(1)


async def _detail(store: Store, owner: str, session: str, name: str, version: int | None) -> Detail:
    try:
        return await detail_of(store.memory, owner, session, name, version)
    except NexusError:
        await require_session(store, owner, session)
        raise


def _lines(
    overview: Overview | None, details: list[Detail], compaction: Compaction | None, most_bytes: int
) -> list[str]:
    values = {
        "overview": _overview_fact(overview, most_bytes),
        "details": len(details),
        "compacted": _compaction_fact(compaction),
    }
    sections = {
        "Overview" if overview else "Template": text_lines(overview.content if overview else TEMPLATE),
        "Details": table(_DETAILS, details, margin=2),
        "Summary of what is compacted": text_lines(compaction.summary) if compaction else [],
    }
    return facts(values, sections)


def _as_json(overview: Overview | None, details: list[Detail], compaction: Compaction | None) -> dict[str, Any]:
    return {
        "overview": overview.model_dump(mode="json") if overview else {"revision": 0, "content": TEMPLATE},
        "details": [_fields(detail, "content") for detail in details],
        "compaction": _compaction_as_json(compaction) if compaction else None,
    }


def _detail_lines(found: Detail) -> list[str]:
    values = {
        "detail": found.name,
        "kind": found.kind if found.compaction is None else f"{found.kind} of compaction {found.compaction}",
        "version": found.version,
        "bytes": found.bytes,
        "time": f"{timestamp(found.updated_at)} UTC",
    }
    return [*facts(values), "", *indented(text_lines(found.content))]


def _overview_fact(overview: Overview | None, most_bytes: int) -> str:
    if overview is None:
        return "nothing is written down; models are shown the template"
    by = "an import" if overview.author == "import" else f"the {overview.author}"
    turn = f" in turn {overview.turn_number}" if overview.turn_number else ""
    size = f"{_bytes(overview.content)} of {most_bytes} bytes"
    return f"revision {overview.revision}, {size}, {timestamp(overview.updated_at)} UTC by {by}{turn}"


def _compaction_fact(compaction: Compaction | None) -> str:
    if compaction is None:
        return "nothing"
    how = f"{compaction.target}, {compaction.strategy}, asked for by {_TRIGGERS[compaction.trigger]}"
    summary_by = "a model" if compaction.source == "model" else "rules"
    return (
        f"{compaction.total} messages, {compaction.count} of them by compaction {compaction.number} at "
        f"{timestamp(compaction.created_at)} UTC ({how}); summary by {summary_by}"
    )


def _compaction_as_json(compaction: Compaction) -> dict[str, Any]:
    return _fields(compaction, "rows", "without", "since")


def _fields(value: BaseModel, *left_out: str) -> dict[str, Any]:
    return value.model_dump(mode="json", exclude={*left_out})


def _bytes(content: str) -> int:
    return len(content.encode("utf-8", "replace"))
