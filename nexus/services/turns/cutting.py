"""Moved."""

from nexus.services.text.sentences import BYTES_A_TOKEN as BYTES_A_TOKEN
from nexus.services.text.sentences import prompt_json as as_json
from nexus.services.text.sentences import leading as leading
from nexus.services.text.sentences import size as size
from nexus.services.text.sentences import slices as slices

__all__ = ["BYTES_A_TOKEN", "as_json", "leading", "size", "slices"]
