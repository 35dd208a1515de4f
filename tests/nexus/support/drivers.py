"""The drivers of MongoDB that a run tests: motor in every run, pymongo's asyncio client where it is asked for."""

import os
from typing import Final, get_args

from nexus.adapters.mongo import Driver

_ALL: Final[tuple[Driver, ...]] = get_args(Driver)
DRIVERS: Final = _ALL if os.environ.get("NEXUS_TEST_DRIVERS") == "all" else _ALL[:1]
