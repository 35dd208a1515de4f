"""The vocabulary of Nexus: what is said on the bus, and the promises its parts make to each other."""
