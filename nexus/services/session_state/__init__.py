"""The state of sessions: role, TODO list, useful information and folder notes (contract §5)."""
