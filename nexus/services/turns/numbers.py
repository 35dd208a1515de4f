"""Moved."""

from nexus.services.text.summary_checks import numbers_in as figures
from nexus.services.text.summary_checks import number_words as number_words
from nexus.services.text.summary_checks import spelling as spelling
from nexus.services.text.summary_checks import spellings as spellings

__all__ = ["figures", "number_words", "spelling", "spellings"]
