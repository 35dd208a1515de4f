"""Moved."""

from nexus.services.text.lookalikes import fold as fold
from nexus.services.text.lookalikes import passes_for_number as passes_for_number
