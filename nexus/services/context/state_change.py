"""Moved."""

from nexus.services.session_state.merge import (
    OPS as OPS,
)
from nexus.services.session_state.merge import (
    Change as Change,
)
from nexus.services.session_state.merge import (
    read_change as read_change,
)
from nexus.services.session_state.merge import (
    read_session as read_session,
)
