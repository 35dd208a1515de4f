"""What the commands share: options, how they ask, what they print, and what they advise.

Rules of this module:

- What they show was often written by somebody else: nothing of it reaches a terminal but printable characters.
- Whoever does not say yes has said no, also where there is no terminal to ask on.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from nexus.core.canonical import canonical
from nexus.core.errors import NexusError

Config = Annotated[
    Path | None, typer.Option(help="Settings file. Default: what NEXUS_CONFIG names.", show_default=False)
]

SEE_MONGODB: Final = "see that MongoDB runs, and database.uri with its user and password (NEXUS_DATABASE__URI)"
NOBODY: Final = "is a service running on this bus, with this bus.mode and bus.channel_prefix? (nexus doctor)"
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
        value = json.loads(found.decode("utf-8-sig"))
        # JSON has no infinities, and UTF-8 no half of a surrogate pair.
        canonical(value)
    except UnicodeDecodeError as error:
        raise NexusError(f"{name}: not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise NexusError(f"{name}: nested too deep") from None
    except ValueError as error:
        raise NexusError(f"{name}: not JSON: {error}") from None
    return value


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


def bus_advice(error: Exception) -> str:
    """What to do about an error of the bus."""
    words = f"{error} {error.__cause__}"
    return next((advice for known, advice in _ADVICE.items() if known in words), _SEE_REDIS)
