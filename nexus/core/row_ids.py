"""Ids of rows, as MongoDB makes them: a text that grows with the time of storing (ObjectId, in hexadecimal digits).

A row that is read before the store has it needs its id before the store has made one.
"""

import time
import uuid
from itertools import count

# As the specification of ObjectId has it: five random bytes for the process, and a counter with a random beginning.
_PROCESS = uuid.uuid4().hex[:10]
_COUNTER = count(uuid.uuid4().int & 0xFFFF)


def new_row_id() -> str:
    """An id greater than all that this process made before, up to 16 million a second."""
    return f"{int(time.time()):08x}{_PROCESS}{next(_COUNTER) & 0xFFFFFF:06x}"


def seconds_of(row_id: str) -> int:
    """When an id was made, in seconds since 1970."""
    return int(row_id[:8], 16)
