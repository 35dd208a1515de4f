"""The vocabulary of Nexus: messages, values, errors, and the ports between services and adapters."""
