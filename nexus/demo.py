"""Moved."""

from nexus.cli.demo import load_sample as load_sample
