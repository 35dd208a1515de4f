"""The command line (CONTRACT §10). Errors are one line and an exit code, never a traceback.

A command is a module with a Typer `app`, imported when it is called: most of a short command's time goes into imports,
and a service is ready the sooner the less it reads of what it has no use for.
"""

import errno
import gc
import io
import os
import sys
from importlib import import_module
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from nexus import __version__
from nexus.core.errors import NexusError
from nexus.core.tasks import ungrouped

_MODULES: Final = {
    "serve": "nexus.serve",
    "request": "nexus.request",
    "demo": "nexus.demo",
    "doctor": "nexus.doctor",
    "dead-letters": "nexus.dead_letters",
    "memory": "nexus.memory",
    "state": "nexus.states",
    "turns": "nexus.turns",
    "bench": "nexus.bench.commands",
}
_OBJECTS: Final = 100_000
# What a stream says that takes no more: the disk is full, or whatever was behind it is gone.
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE})


class Commands(TyperGroup):
    """The commands that are defined here, and those of `_MODULES`."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  # Typer's interface
        """Their names, in the order of the help."""
        return ["version", *_MODULES]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, or None."""
        if cmd_name not in self.commands:
            # For a name that there is not, Typer looks for similar ones among those that are imported.
            for name in [cmd_name] if cmd_name in _MODULES else _MODULES:
                command = typer.main.get_command(import_module(_MODULES[name]).app)
                command.name = name
                self.add_command(command)
        return super().get_command(ctx, cmd_name)


app = typer.Typer(
    cls=Commands,
    invoke_without_command=True,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What a terminal of another encoding has no letter for is shown as an escape.
        sys.stdout.reconfigure(errors="backslashreplace")
    # What is imported stays: looking for cycles in it takes a tenth of the time.
    gc.set_threshold(_OBJECTS)
    try:
        with ungrouped():
            app()
    except NexusError as error:
        _fail(str(error), 1)
    except OSError as error:
        # Files and servers have been spoken of where they are used: what is left is where the words go.
        if error.errno not in _FULL or error.filename is not None:
            raise
        _discard_output()
        _fail(f"standard output: cannot be written: {error.strerror}", 1)
    except KeyboardInterrupt:
        _fail("interrupted", 130)


@app.callback()
def options(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Nexus, the context service of an LLM agent platform."""
    if show_version:
        version()
        raise typer.Exit


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def _discard_output() -> None:
    """Python would try to write what is left once more on its way out, and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _fail(message: str, code: int) -> NoReturn:
    print(f"nexus: {message}", file=sys.stderr)  # noqa: T201  # the last word of a program
    raise SystemExit(code)
