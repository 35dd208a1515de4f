"""What Nexus does, in terms of the ports of `nexus.core`."""
