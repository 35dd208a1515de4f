"""Tools: their registry, also over the bus, and the memory tools that Nexus runs itself."""
