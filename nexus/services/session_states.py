"""Moved."""

from nexus.services.session_state.service import (
    SessionStates as SessionStates,
)
