"""Turns: what a run was, how it is summarised, and the background work that does it (contract §6)."""
