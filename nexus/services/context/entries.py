"""Moved."""

from nexus.services.history.rows import Entry as Entry
from nexus.services.history.rows import as_text as as_text
from nexus.services.history.rows import read_row as read_row
from nexus.services.history.rows import read_rows as read_rows
from nexus.services.history.rows import text_of_parts as text_of_parts
