"""A request from its delivery to its one effective answer (contract §1.4, §1.5, §1.6)."""
