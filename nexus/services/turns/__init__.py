"""Turn memory: runs as turns with summaries, and the background work on them (contract §6)."""
