"""`nexus turns`: look at what is remembered of a session's runs, export it, import it (CONTRACT §6, §10).

`commands` is the command line, `reading` what it reads, `shown` how turns look.
"""

from nexus.turns.commands import app

__all__ = ["app"]
