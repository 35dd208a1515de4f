"""Nexus: the context service of an LLM agent platform."""

__version__ = "0.1.0"
