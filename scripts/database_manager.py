#!/usr/bin/env python3
"""Look after the MongoDB database of Nexus: a menu without arguments, subcommands for scripts (contract §10).

The work is done by the package `dbmanager` beside this file; `docs/database-manager.md` shows it.
"""

import sys

from dbmanager.commands import end_like_ctrl_c, main  # type: ignore[import-not-found]  # beside this file when it is run as a program

if __name__ == "__main__":
    end_like_ctrl_c()
    sys.exit(main())
