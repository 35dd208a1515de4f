"""Moved."""

from nexus.services.session_state.state import (
    FOLDER_CHARS as FOLDER_CHARS,
)
from nexus.services.session_state.state import (
    HERE as HERE,
)
from nexus.services.session_state.state import (
    ID_CHARS as ID_CHARS,
)
from nexus.services.session_state.state import (
    LISTS as LISTS,
)
from nexus.services.session_state.state import (
    MOST_SUB_AGENTS as MOST_SUB_AGENTS,
)
from nexus.services.session_state.state import (
    PARTS as PARTS,
)
from nexus.services.session_state.state import (
    ROLE_CHARS as ROLE_CHARS,
)
from nexus.services.session_state.state import (
    TEXT_CHARS as TEXT_CHARS,
)
from nexus.services.session_state.state import (
    TODO_CHARS as TODO_CHARS,
)
from nexus.services.session_state.state import (
    Fields as Fields,
)
from nexus.services.session_state.state import (
    TodoStatus as TodoStatus,
)
from nexus.services.session_state.state import (
    read_id as read_id,
)
from nexus.services.session_state.state import (
    read_parts as read_parts,
)
from nexus.services.session_state.state import (
    read_sub_agent as read_sub_agent,
)
from nexus.services.session_state.state import (
    unknown as unknown,
)
