"""Working memory: overview, details, compactions and the tools that use them (contract §7)."""
