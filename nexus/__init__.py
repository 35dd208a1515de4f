"""Nexus: the context service of an LLM agent platform."""

__version__ = "0.2.0.dev0"
