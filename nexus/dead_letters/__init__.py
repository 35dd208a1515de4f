"""`nexus dead-letters`: look at messages that could not be used, send them again, drop them (CONTRACT §1.6, §10).

`commands` is the command line, `terminal` how a command runs, `handling` what is done with letters, `shown` how they
look.
"""

from nexus.dead_letters.commands import app

__all__ = ["app"]
