"""The command line (contract §10): one module a command, imported when that command is called.

Errors become one line and an exit code.
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
from nexus.core.concurrency import ungrouped
from nexus.core.errors import NexusError

_COMMANDS: Final = (
    "serve",
    "request",
    "mcp",
    "demo",
    "doctor",
    "dead-letters",
    "context",
    "sessions",
    "session",
    "memory",
    "state",
    "facts",
    "constraints",
    "turns",
    "recall",
    "erase",
    "config",
)
_OBJECTS: Final = 100_000
# Errors of a standard output that takes no more: a full disk, or a reader that has gone.
_OUTPUT_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE})


class CommandGroup(TyperGroup):
    """The commands of `_COMMANDS`, each imported when it is called: imports take most of a short command's time."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  # Typer's interface
        """Names in the order of the help."""
        return ["version", *_COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, or None."""
        if cmd_name not in self.commands:
            # For an unknown name Typer suggests similar ones among the commands that are imported.
            for name in [cmd_name] if cmd_name in _COMMANDS else _COMMANDS:
                command = typer.main.get_command(import_module(f"nexus.cli.{name.replace('-', '_')}").app)
                command.name = name
                self.add_command(command)
        return super().get_command(ctx, cmd_name)


app = typer.Typer(
    cls=CommandGroup,
    invoke_without_command=True,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal's encoding lacks is shown as an escape.
        sys.stdout.reconfigure(errors="backslashreplace")
    # Imported modules stay: searching them for cycles takes a tenth of a short command's time.
    gc.set_threshold(_OBJECTS)
    try:
        with ungrouped():
            app()
    except NexusError as error:
        _fail(str(error), 1)
    except OSError as error:
        _fail(end_of_output(error), 1)
    except KeyboardInterrupt:
        _fail("interrupted", 130)


def end_of_output(error: OSError) -> str:
    """What to say of a standard output that takes no more. Nothing is written to it any more. Raises other errors."""
    # Errors of files and servers are reported where they are used; only the standard output is left.
    if error.errno not in _OUTPUT_ERRORS or error.filename is not None:
        raise error
    # Else Python would write the rest of the output once more on its way out.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return f"standard output: cannot be written: {error.strerror}"


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


def _fail(message: str, code: int) -> NoReturn:
    print(f"nexus: {message}", file=sys.stderr)  # noqa: T201  # the program's last output
    raise SystemExit(code)
