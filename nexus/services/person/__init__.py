"""The person: facts with evidence, constraints that never fade, and the mood of recent words (contract §15)."""
