"""`nexus recall`: what long-term memory finds, and how far its index is (contract §14, §10)."""

import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from operator import itemgetter
from typing import Annotated, Any, Final

import anyio
import typer

from nexus.cli.options import Config, Json, require_utf8, session_settings
from nexus.cli.servers import ask_service, require_session, run_on_store
from nexus.cli.terminal import Columns, counted, facts, print_result, printable, progress, table, timestamp
from nexus.config import RecallSettings, Settings
from nexus.connections import open_bus, open_embedder
from nexus.core.errors import NexusError, reason_of
from nexus.core.models import DEFAULT_SESSION, parse_moment
from nexus.core.ports import Store
from nexus.core.recall import Found, Hit, IndexStatus, Score
from nexus.services.recall.hits import by_weight, excerpt, factor, session_of, speaker
from nexus.services.recall.service import Recall
from nexus.services.recall.texts import text_of

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Search an owner's long-term memory, and look after its index."
)
_Owner = Annotated[str, typer.Option("--owner", help="Whose messages: the owner_key.")]

# Messages that are looked at in one step.
_PAGE: Final = 200
_OWNERS_AT_ONCE: Final = 100
# That a fault names.
_MOST_OWNERS: Final = 10
_POLL_S: Final = 0.5
_PAUSE_FACTOR: Final = 4
# A service that indexes has done something in this time.
_STALLED_S: Final = 60.0
# As `nexus doctor` waits for a service's answer.
_ANSWER_S: Final = 5.0
_LONGEST_QUESTION: Final = 10_000
_FAULTS: Final[Columns] = {"MESSAGE": itemgetter(0), "REASON": itemgetter(1)}
_HITS: Final[Columns] = {
    "TIME (UTC)": lambda hit: parse_moment(hit.row.get("timestamp")),
    "SESSION": lambda hit: session_of(hit.row),
    "WHO": lambda hit: speaker(hit.row),
    "TEXT": lambda hit: excerpt(hit.row, hit.score),
}


@dataclass(slots=True)
class _Marked:
    """How many messages of an owner, or of all, are marked so far, and whether those are all that were to be."""

    owner: str | None
    count: int = 0
    all: bool = False

    @property
    def whose(self) -> str:
        return "all owners" if self.owner is None else printable(self.owner)

    @property
    def see(self) -> str:
        return _see(self.owner)

    @property
    def so_far(self) -> str:
        """What is sure when the command ends before the index is whole."""
        count = f"{counted(self.count, 'message')} of {self.whose} marked"
        if self.all:
            return f"{count}; a running service indexes what is marked ({self.see})"
        return f"{count}; repeat the command to mark the others"


@app.command(epilog="Examples:\n\nnexus recall status --owner ada\n\nnexus recall status --json")
def status(
    owner: Annotated[str | None, typer.Option(help="Whose messages; all owners' when not given.")] = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Show how many messages long-term memory finds, and what to do about those that it does not find."""
    settings = session_settings(config, "x" if owner is None else owner, DEFAULT_SESSION)
    found = run_on_store(settings.database, lambda store: store.recall.status(owner))
    generation = anyio.run(_generation, settings.recall)
    if as_json:
        enabled = settings.recall.enabled
        print_result({"owner_key": owner, "enabled": enabled, "generation": generation, **asdict(found)})
        return
    setting = _by(generation) if settings.recall.enabled else "off, by recall.enabled: nothing is indexed"
    values = {"finds by": setting, **_states(found, owner)}
    print_result(facts(values, {"Failed": table(_FAULTS, found.faults.items(), margin=2)}))


@app.command(epilog="Examples:\n\nnexus recall index --owner ada\n\nnexus recall index --all-owners")
def index(
    owner: Annotated[str | None, typer.Option(help="Whose messages: the owner_key.", show_default=False)] = None,
    all_owners: Annotated[bool, typer.Option("--all-owners", help="Those of all owners, without waiting.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="All messages, also those that are indexed, or failed.")
    ] = False,
    wait: Annotated[bool, typer.Option(help="Wait until a service has indexed them.")] = True,
    config: Config = None,
) -> None:
    """Have messages indexed that another program wrote, or a release without long-term memory.

    The command marks them, and a running service indexes what is marked. It may be broken off and repeated.
    """
    if all_owners == (owner is not None):
        raise NexusError("--owner or --all-owners: one of them is needed")
    settings = session_settings(config, "x" if owner is None else owner, DEFAULT_SESSION)
    marked = _Marked(owner)
    waits = settings if wait and not all_owners else None
    try:
        found = run_on_store(settings.database, partial(_index, again, waits, marked))
    except NexusError as error:
        raise NexusError(f"{error}; {marked.so_far}" if marked.count or marked.all else str(error)) from error
    except KeyboardInterrupt:
        typer.echo(f"nexus: {marked.so_far}", err=True)
        raise
    if found is None:
        typer.echo(marked.so_far)
        return
    indexed = "an unknown number" if found.indexed is None else found.indexed
    typer.echo(f"{counted(marked.count, 'message')} marked; {indexed} of {marked.whose} are indexed.")
    if found.failed:
        raise NexusError(f"{counted(found.failed, 'message')} failed: {marked.see}")


@app.command(
    epilog="Examples:\n\nnexus recall search 'When did we speak of statins?' --owner ada\n\n"
    "nexus recall search 他汀 --owner ada --session s1 --explain"
)
def search(
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="What is looked for.")],
    owner: _Owner,
    session: Annotated[str | None, typer.Option(help="This session only.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Messages at most, the best.")] = 10,
    explain: Annotated[bool, typer.Option("--explain", help="Show what each score is made of.")] = False,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Show the messages that answer a question best, of one session or of all. It needs no service.

    What a terminal might obey in them is shown escaped.
    """
    settings = session_settings(config, owner, DEFAULT_SESSION if session is None else session)
    require_utf8("QUESTION", question)
    if not question.strip() or len(question) > _LONGEST_QUESTION:
        raise NexusError(f"QUESTION: a text of 1 to {_LONGEST_QUESTION} characters is needed")
    found, unfound = run_on_store(settings.database, partial(_search, settings, owner, session, question, limit))
    if as_json:
        print_result(_as_json(found))
        return
    explained = [line for number, hit in enumerate(found.hits, 1) for line in _explained(number, hit, found)]
    print_result([*(explained if explain else table(_HITS, found.hits)), _summary(found, owner)])
    if unfound and (not_yet := sum(count or 0 for count in _counts(unfound)[1:])):
        typer.echo(f"{counted(not_yet, 'message')} not indexed: {_see(owner)}")


async def _index(again: bool, waits: Settings | None, marked: _Marked, store: Store) -> IndexStatus | None:
    """Mark messages, and with the settings of a service wait until none of the owner's is waiting."""
    if marked.owner is None:
        with progress("Marking", None) as advance:
            after = ""
            while owners := await store.owners(after=after, limit=_OWNERS_AT_ONCE):
                for owner in owners:
                    await _mark(store, owner, again, marked, advance)
                after = owners[-1]
        marked.all = True
        return None
    with progress("Marking", sum(count or 0 for count in _counts(await _status_of(store, marked.owner)))) as advance:
        await _mark(store, marked.owner, again, marked, advance)
    marked.all = True
    return await _indexed(store, marked.owner, waits) if waits else None


async def _mark(store: Store, owner: str, again: bool, marked: _Marked, advance: Callable[[int], None]) -> None:
    seen, looked_at = 0, _PAGE
    while looked_at == _PAGE:
        count, looked_at = await store.recall.mark(owner, limit=_PAGE, again=again, skip=seen)
        marked.count += count
        seen += looked_at
        advance(looked_at)


async def _indexed(store: Store, owner: str, settings: Settings) -> IndexStatus:
    """The states when none of the owner's messages is waiting any more; a NexusError where no service indexes them."""
    found = await store.recall.status(owner)
    if found.waiting == 0:
        return found
    if not settings.recall.enabled:
        raise NexusError("recall.enabled is false: a service with these settings indexes nothing")
    await _require_service(settings)
    # None where counting takes too long.
    left, since = found.waiting, anyio.current_time()
    with progress("Indexing", left) as advance:
        while left != 0:
            asked = anyio.current_time()
            found = await store.recall.status(owner)
            now = anyio.current_time()
            if found.waiting is not None and (left is None or found.waiting < left):
                advance((left or found.waiting) - found.waiting)
                left, since = found.waiting, now
            elif now - since > _STALLED_S:
                await _require_service(settings)
                if found.waiting is None:
                    # Whether anything was indexed is not known.
                    since = now
                    continue
                raise NexusError(
                    f"a service answers, but indexed nothing for {_STALLED_S:.0f} s: see its log, and "
                    "recall.enabled in its settings"
                )
            # Counting is work, too.
            await anyio.sleep(max(_POLL_S, _PAUSE_FACTOR * (now - asked)))
    return found


async def _require_service(settings: Settings) -> None:
    """A NexusError that says how it is known that no service runs, where that is so."""
    if settings.bus.mode == "memory":
        # There is no other process to ask.
        return
    try:
        with anyio.fail_after(_ANSWER_S):
            async with open_bus(settings.bus) as transport:
                await ask_service(transport.bus, settings.bus)
    except (NexusError, TimeoutError) as error:
        reason = reason_of(error, _ANSWER_S)
        raise NexusError(
            f"no service answers on the bus ({reason}): start one (nexus serve), or see what is wrong (nexus doctor)"
        ) from error


async def _generation(settings: RecallSettings) -> str:
    """The generation of the embedder; `""` for none."""
    async with open_embedder(settings) as embedder:
        return embedder.generation if embedder else ""


async def _search(
    settings: Settings, owner: str, session: str | None, question: str, limit: int, store: Store
) -> tuple[Found, IndexStatus | None]:
    """What is found; where that is nothing, the states of the messages, of which there are some."""
    async with open_embedder(settings.recall) as embedder:
        # An endpoint is asked twice: for its centre, and for the question.
        patience_s = 2 * settings.recall.timeout_s
        recall = Recall(store.recall, embedder, language=settings.recall.language, meaning_s=patience_s)
        found = await recall.search(owner, question, session_id=session, limit=limit)
    if found.hits:
        return found, None
    if session is not None:
        await require_session(store, owner, session)
    return found, await _status_of(store, owner)


async def _status_of(store: Store, owner: str) -> IndexStatus:
    """The states of an owner's messages; a NexusError where there are none."""
    found = await store.recall.status(owner)
    if not any(count is None or count for count in _counts(found)):
        owners = await store.owners(limit=_MOST_OWNERS + 1)
        names = ", ".join(map(printable, owners[:_MOST_OWNERS])) + (" and more" if len(owners) > _MOST_OWNERS else "")
        raise NexusError(f"there are no messages of {printable(owner)}; there are of: {names or 'nobody'}")
    return found


def _counts(found: IndexStatus) -> list[int | None]:
    return [found.indexed, found.waiting, found.failed, found.unmarked]


def _states(found: IndexStatus, owner: str | None) -> dict[str, str]:
    command = f"nexus recall index --owner {_word(owner) if owner else 'K'}"
    advice = {
        "indexed": (found.indexed, ""),
        "waiting": (found.waiting, "a running service indexes them (nexus doctor)"),
        "failed": (found.failed, f"mend the reason below, then: {command} --again"),
        "unmarked": (found.unmarked, f"of other writers or an older release: {command}"),
        "to embed": (found.meaning_waiting, "words find them meanwhile"),
    }
    return {name: _state(count, words) for name, (count, words) in advice.items()}


def _state(count: int | None, advice: str) -> str:
    if count is None:
        return "-  not counted in time"
    return f"{count}  {advice}" if count and advice else f"{count}"


def _explained(number: int, hit: Hit, found: Found) -> list[str]:
    """A hit with the parts of its score."""
    row, score = hit.row, hit.score
    moment = parse_moment(row.get("timestamp"))
    when = f"{timestamp(moment)} UTC" if moment else "at an unknown time"
    parts = {
        str(number): f"{when}, session {session_of(row)}, {speaker(row)}",
        "text": excerpt(row, score),
        "score": f"{score.total:.3f}",
        "words": _words(score),
        "session": f"{score.session:.3f}",
        "date": f"{score.date:.3f}",
        **({"similarity": f"{score.similarity:.3f}"} if found.generation else {}),
    }
    if words := factor(row):
        parts["factor"] = words
    return [*facts(parts), ""]


def _words(score: Score) -> str:
    parts = ", ".join(f"{term} {part:.3f}" for term, part in by_weight(score))
    return f"{sum(score.terms.values()):.3f}" + (f": {parts}" if parts else "")


def _summary(found: Found, owner: str) -> str:
    count = f"{counted(len(found.hits), 'message')} of {printable(owner)} found by {_by(found.generation)}"
    return f"{count}; {found.considered} considered, formula {found.formula}."


def _by(generation: str) -> str:
    return f"words and by meaning ({generation})" if generation else "words alone"


def _as_json(found: Found) -> dict[str, Any]:
    return {
        "considered": found.considered,
        "formula": found.formula,
        "generation": found.generation,
        "hits": [*map(_hit_as_json, found.hits)],
    }


def _hit_as_json(hit: Hit) -> dict[str, Any]:
    moment = parse_moment(hit.row.get("timestamp"))
    return {
        "id": hit.row.get("id"),
        "run_id": hit.row.get("run_id"),
        "session_id": session_of(hit.row),
        "timestamp": moment.isoformat() if moment else None,
        "who": speaker(hit.row),
        "text": text_of(hit.row),
        "score": {"total": hit.score.total, **asdict(hit.score)},
        "around": [row.get("id") for row in hit.around],
    }


def _see(owner: str | None) -> str:
    return "nexus recall status" + ("" if owner is None else f" --owner {_word(owner)}")


def _word(text: str) -> str:
    """A text as a word of a shell's command."""
    return shlex.quote(printable(text))
