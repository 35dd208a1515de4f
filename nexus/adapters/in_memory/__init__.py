"""Adapters within one process: for tests and for embedding Nexus in a program."""
