"""Moved."""

from nexus.services.text.summary_checks import Evidence as Evidence
from nexus.services.text.summary_checks import evidence_in as evidence_in
from nexus.services.text.summary_checks import language_of_user as language_of_user
from nexus.services.turns.model_summary import evidence_of as evidence_of

__all__ = ["Evidence", "evidence_in", "evidence_of", "language_of_user"]
