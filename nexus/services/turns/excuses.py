"""Moved."""

from nexus.services.text.summary_checks import REFUSALS as BEGINNINGS
from nexus.services.text.summary_checks import refusal_in as excuse_of
from nexus.services.text.summary_checks import failure_in as failure_of
from nexus.services.text.summary_checks import folded as folded

__all__ = ["BEGINNINGS", "excuse_of", "failure_of", "folded"]
