"""`nexus state`: look at what is kept of a session, say something of it, clear it (CONTRACT §5, §10).

`commands` is the command line, `saying` what is sent, `shown` how a state looks.
"""

from nexus.states.commands import app

__all__ = ["app"]
