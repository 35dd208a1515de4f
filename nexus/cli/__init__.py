"""The command line (contract §10): one module a command, imported when that command is called."""

from nexus.cli.app import app, main

__all__ = ["app", "main"]
