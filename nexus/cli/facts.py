"""`nexus facts`: what is known of a person: show it with its history, add to it, take it back (contract §10, §15)."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Final

import typer

from nexus.cli.options import Config, Json, Owner, Yes, is_utf8, session_settings
from nexus.cli.servers import run_on_store
from nexus.cli.terminal import Columns, confirm, print_result, printable, table
from nexus.config import Settings
from nexus.core.errors import NexusError
from nexus.core.models import new_message_id, parse_moment, utc_now
from nexus.core.person import Fact
from nexus.services.history.tombstones import Tombstones
from nexus.services.person.facts import Facts
from nexus.services.person.statements import Origin, read_evidence

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Show what is known of a person, with its evidence; add to it, take it back.",
)
_HOLDING: Final[Columns] = {
    "TOPIC": lambda fact: _named(fact.topic, fact.sub_topic),
    "LEVEL": "level",
    "SUPPORT": "support",
    "SINCE (UTC)": "valid_from",
}
_HISTORY: Final[Columns] = {
    "UNTIL (UTC)": "valid_to",
    "EVIDENCE": lambda fact: " ".join(fact.evidence) or None,
}
_VALUE: Final[Columns] = {"VALUE": "value"}

_Topic = Annotated[str, typer.Argument(help="What it is about, such as home.")]
_SubTopic = Annotated[str, typer.Option(help="Which part of the topic, such as city.", show_default=False)]


@app.command(
    "list", epilog="Examples:\n\nnexus facts list --owner ada\n\nnexus facts list --owner ada --history --json"
)
def list_command(
    owner: Owner,
    history: Annotated[
        bool, typer.Option("--history", help="Also what held before, and what is not said often enough to hold.")
    ] = False,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Show what holds of a person, as contexts show it.

    SUPPORT is the number of sessions in which it was said. What a terminal might obey is shown escaped.
    """
    settings = session_settings(config, owner, "default")
    known = _on_facts(settings, lambda facts: facts.facts(owner))
    found = [each for each in known if history or each.holds]
    if as_json:
        _print(owner, found, as_json=True)
        return
    nothing = [f"Nothing {'is known' if history else 'holds'} of {printable(owner)}."]
    print_result(table({**_HOLDING, **(_HISTORY if history else {}), **_VALUE}, found) or nothing)


@app.command(
    epilog="Examples:\n\nnexus facts add --owner ada home Porto --sub-topic city\n\n"
    "nexus facts add --owner ada tea green --since 2024-05-01 --evidence msg_1"
)
def add(
    owner: Owner,
    topic: _Topic,
    value: Annotated[str, typer.Argument(help="What holds, such as Porto.")],
    sub_topic: _SubTopic = "",
    evidence: Annotated[
        list[str] | None, typer.Option(help="The id of a message that says so; may be repeated.", show_default=False)
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="When it was said, in ISO 8601; now when not given.", show_default=False)
    ] = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Say what holds of a person, which supersedes what held of the same topic and sub-topic.

    With --since it takes its place in the history: what was said later still holds.
    """
    settings = session_settings(config, owner, "default")
    _check_words(owner, topic, value, sub_topic, *(evidence or ()))
    said_at = None
    if since is not None and (said_at := parse_moment(since)) is None:
        raise NexusError("--since: a time in ISO 8601 is needed")
    try:
        ids = read_evidence(evidence or [], "evidence")
    except ValueError as error:
        raise _of_options(error) from None
    found = _on_facts(
        settings,
        lambda facts: facts.say(_operator(owner), topic, value, sub_topic, evidence=ids, valid_from=said_at),
    )
    _print(owner, found, as_json=as_json)


@app.command(
    epilog="Examples:\n\nnexus facts retire --owner ada home --sub-topic city\n\n"
    "nexus facts retire --owner ada home --sub-topic city --value Lisbon --yes"
)
def retire(
    owner: Owner,
    topic: _Topic,
    sub_topic: _SubTopic = "",
    value: Annotated[str, typer.Option(help="Only this value; else whatever holds.", show_default=False)] = "",
    yes: Yes = False,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Take back what holds, or a value that held before, which is then not shown either. Asks first.

    The history keeps it. Exit 1 where there is nothing of the kind.
    """
    settings = session_settings(config, owner, "default")
    _check_words(owner, topic, sub_topic, value)
    what = _named(topic, sub_topic) + (f": {value}" if value else "")
    if not _on_facts(settings, lambda facts: facts.taken_back_by(owner, topic, sub_topic, value)):
        raise NexusError(f"nothing of {printable(what)} is known of {printable(owner)}; nexus facts list shows what is")
    confirm(f"Take back {printable(what)} of {printable(owner)}?", yes=yes)
    found = _on_facts(settings, lambda facts: facts.say(_operator(owner), topic, value, sub_topic, retires=True))
    _print(owner, found, as_json=as_json)


def _on_facts(settings: Settings, work: Callable[[Facts], Awaitable[list[Fact]]]) -> list[Fact]:
    try:
        return run_on_store(settings.database, lambda store: work(Facts(store.facts, Tombstones(store))))
    except ValueError as error:
        raise _of_options(error) from None


def _operator(owner: str) -> Origin:
    return Origin(owner, new_message_id(), utc_now(), source="operator")


def _check_words(*words: str) -> None:
    if not is_utf8("".join(words)):
        raise NexusError("all words have to be UTF-8 text")


def _of_options(error: ValueError) -> NexusError:
    field, _, reason = str(error).partition(":")
    names = {"topic": "TOPIC", "value": "VALUE", "sub_topic": "--sub-topic", "valid_from": "--since"}
    return NexusError(f"{names.get(field, f'--{field}')}:{reason}")


def _print(owner: str, found: Sequence[Fact], *, as_json: bool) -> None:
    """What is known of one topic now."""
    if as_json:
        print_result({"owner_key": owner, "facts": [each.model_dump(mode="json") for each in found]})
    else:
        print_result(table({**_HOLDING, **_HISTORY, **_VALUE}, found))


def _named(topic: str, sub_topic: str) -> str:
    return " / ".join(filter(None, (topic, sub_topic)))
