"""Export and import of whole sessions (contract §7)."""
