"""Tools: their registry, the catalogue on the bus, and the memory tools that Nexus runs itself."""
