"""`nexus memory`: look at the working memory of a session, check it, export the session, import it (CONTRACT §7, §10).

`commands` and `moving` are the command line, `reading` what the store is asked, `shown` how it looks, `folder` where
exports go to and come from.
"""

from nexus.memory.commands import app

__all__ = ["app"]
