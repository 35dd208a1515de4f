"""Long-term memory: finds what was said in any session, and has it indexed (contract §14)."""
