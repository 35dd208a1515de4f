"""Moved."""

from nexus.services.session_state.state import (
    FolderNote as FolderNote,
)
from nexus.services.session_state.state import (
    Info as Info,
)
from nexus.services.session_state.state import (
    SessionState as SessionState,
)
from nexus.services.session_state.state import (
    Todo as Todo,
)
from nexus.services.session_state.state import (
    TodoStatus as TodoStatus,
)
from nexus.services.session_state.state import (
    read_state as read_state,
)
from nexus.services.session_state.state import (
    state_of as state_of,
)
