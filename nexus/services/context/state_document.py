"""Moved."""

from nexus.services.session_state.merge import Document as Document
from nexus.services.session_state.merge import apply as apply
from nexus.services.session_state.merge import state_in as shown

__all__ = ["Document", "apply", "shown"]
