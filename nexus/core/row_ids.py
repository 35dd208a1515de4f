"""Moved."""

from nexus.core.models import new_row_id as new_row_id
from nexus.core.models import seconds_of as seconds_of
