"""What the commands share: options, how they ask, what they print, and what they advise.

Rules of this module:

- What they show was often written by somebody else: nothing of it reaches a terminal but printable characters.
- Whoever does not say yes has said no, also where there is no terminal to ask on.
"""

import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import anyio
import typer
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.progress import Progress

from nexus.config import DatabaseSettings
from nexus.connections import open_store
from nexus.core.canonical import parsed
from nexus.core.errors import NexusError, StoreRejectedError, StoreUnavailableError
from nexus.core.models import Identifier
from nexus.core.ports.transfer import TransferableStore
from nexus.core.tasks import ungrouped
from nexus.core.wire import explain
from nexus.services.context.state_change import read_session

_Result = TypeVar("_Result")

Config = Annotated[
    Path | None, typer.Option(help="Settings file. Default: what NEXUS_CONFIG names.", show_default=False)
]

SEE_MONGODB: Final = "see that MongoDB runs, and database.uri with its user and password (NEXUS_DATABASE__URI)"
NOBODY: Final = "is a service running on this bus, with this bus.mode and bus.channel_prefix? (nexus doctor)"
_OWNER: Final[TypeAdapter[str]] = TypeAdapter(Identifier)
_SEE_REDIS: Final = "see that Redis runs, and bus.url with its user and password (NEXUS_BUS__URL)"
# By the kind of the error, or by words of Redis's own where the kind says little.
_ADVICE: Final = {
    "AuthenticationError": "correct user and password in bus.url (NEXUS_BUS__URL)",
    "NoPermissionError": "give this user the rights in docs/operations.md, 'Users and rights', for your prefix",
    "ReadOnlyError": "name the master in bus.url, or the sentinels that know it: this server is a read-only replica",
    "OutOfMemoryError": "raise maxmemory of Redis or free memory; a lower bus.answer_ttl_s needs less of it",
    "MasterNotFoundError": "see that the sentinels run, and the name of their service in bus.url",
    "BusyLoadingError": "wait: Redis is loading its data",
    "MovedError": "write redis+cluster:// in bus.url: this server is a node of a cluster",
    "cluster support disabled": "write redis:// in bus.url: this server is no node of a cluster",
    "'SENTINEL'": "name sentinels in a redis+sentinel:// URL, or write redis://: this server is no sentinel",
    "MISCONF": "free disk space where Redis runs, and see its log: it cannot save its data",
}


def printable(text: str) -> str:
    """`text` with everything that a terminal might obey, or not show, as an escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def json_of(name: str, found: bytes) -> Any:
    """The value in JSON that somebody gave, called `name` in what is said of it.

    Raises:
        NexusError: it is none, or one that cannot be sent.
    """
    try:
        return parsed(found)
    except ValueError as error:
        raise NexusError(f"{name}: {error}") from None


def check_names(owner: str, session: str) -> None:
    """See that there may be such an owner and such a session.

    Raises:
        NexusError: there may not.
    """
    try:
        (owner + session).encode()
        _OWNER.validate_python(owner)
        read_session({"session_id": session})
    except UnicodeEncodeError:
        raise NexusError("--owner and --session: UTF-8 text is needed") from None
    except ValidationError as error:
        raise NexusError(explain(error, "--owner")) from None
    except ValueError as error:
        raise NexusError(str(error).replace("metadata.session_id", "--session")) from None


def session_named(owner: str, session: str) -> str:
    """What a session is called in what is said of it."""
    return f"session {printable(session)} of {printable(owner)}"


def print_json(value: object) -> None:
    """Print a JSON value."""
    # Only ASCII: nothing that a terminal might obey.
    typer.echo(json.dumps(value, indent=2))


def confirm(question: str, otherwise: str) -> None:
    """Ask whether to go on.

    Raises:
        NexusError: the answer was no, or there was none; `otherwise` says how to do without it.
    """
    typer.echo(f"{question} [y/N] ", nl=False, err=True)
    # As bytes: what is no text is no answer either.
    answer = sys.stdin.buffer.readline()
    if not answer.endswith(b"\n"):
        typer.echo(err=True)
    if answer.strip().lower() not in {b"y", b"yes"}:
        raise NexusError(f"nothing was done; {otherwise}")


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, if that is a terminal; what is given is called with how much more is done."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)


@contextmanager
def mongodb_in_words() -> Iterator[None]:
    """An error of the store, as somebody at a terminal needs to read it."""
    try:
        with ungrouped():
            yield
    except (StoreUnavailableError, StoreRejectedError) as error:
        raise NexusError(f"MongoDB does not do what was asked ({error}): {SEE_MONGODB}") from error


def run_on_store(settings: DatabaseSettings, work: Callable[[TransferableStore], Awaitable[_Result]]) -> _Result:
    """What `work` returns. Errors of the store come in words for somebody at a terminal."""

    async def on_store() -> _Result:
        async with open_store(settings) as store:
            return await work(store)

    with mongodb_in_words():
        return anyio.run(on_store)


def bus_advice(error: Exception) -> str:
    """What to do about an error of the bus."""
    words = f"{error} {error.__cause__}"
    return next((advice for known, advice in _ADVICE.items() if known in words), _SEE_REDIS)
