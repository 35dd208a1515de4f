"""Moved."""

from nexus.services.memory.documents import (
    LOOKED_BACK as LOOKED_BACK,
)
from nexus.services.memory.documents import (
    Caller as Caller,
)
from nexus.services.memory.documents import (
    document_of as document_of,
)
from nexus.services.memory.documents import (
    read_all as read_all,
)
from nexus.services.memory.documents import (
    read_snapshot as read_snapshot,
)
