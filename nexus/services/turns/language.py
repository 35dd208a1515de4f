"""Moved."""

from nexus.services.text.language import LATIN as LATIN
from nexus.services.text.language import NAMES as NAMES
from nexus.services.text.language import differ as differ
from nexus.services.text.language import language_of as language_of
from nexus.services.text.language import letters_of as letters_of
from nexus.services.text.language import likely_languages_of as likely_languages_of
from nexus.services.text.language import name_of as name_of

__all__ = ["LATIN", "NAMES", "differ", "language_of", "letters_of", "likely_languages_of", "name_of"]
