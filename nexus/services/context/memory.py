"""Moved."""

from nexus.services.history.merge import Newest as Newest
from nexus.services.history.merge import Place as Place
from nexus.services.history.merge import Utterance as Utterance
from nexus.services.history.merge import merge as merge
from nexus.services.history.merge import newest as newest
from nexus.services.history.merge import places_in_run as places_in_run
from nexus.services.history.merge import stored_order as stored_order
from nexus.services.history.rows import Entry as Entry
from nexus.services.history.rows import as_text as as_text
from nexus.services.history.rows import read_rows as read_rows
from nexus.services.history.rows import text_of_parts as text_of_parts
