"""The command line finds its commands, and imports only the one that is called."""

import subprocess
import sys

from typer.testing import CliRunner

from nexus.cli import app

COMMANDS = {"version", "serve", "request", "demo", "doctor", "dead-letters", "session", "memory", "state", "turns"}


def test_help_names_every_command() -> None:
    """Each with what it is for."""
    shown = CliRunner().invoke(app, ["--help"]).output
    assert all(f"{name} " in shown for name in COMMANDS)
    assert "Check Redis, MongoDB" in shown
    assert "completion" not in shown


def test_similar_name_is_suggested() -> None:
    """Also of a command that nobody called yet."""
    result = CliRunner().invoke(app, ["memori"])
    assert result.exit_code == 2
    assert "'memory'" in result.output


def test_only_what_is_called_is_imported() -> None:
    """Neither the version nor the service reads what other commands or a model need."""
    program = (
        "import sys; from typer.testing import CliRunner; from nexus.cli import app;"
        "CliRunner().invoke(app, ['version']); print(*sys.modules);"
        "CliRunner().invoke(app, ['serve', '--help']); print(*sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    version, serve = (set(line.split()) for line in said.splitlines())
    assert not version & {"pymongo", "redis", "nexus.bootstrap", "nexus.config"}
    assert "nexus.bootstrap" in serve
    assert not serve & {"openai", "httpx2", "nexus.cli.demo", "nexus.cli.doctor", "nexus.cli.memory", "nexus.cli.turns"}
