"""Moved."""

from nexus.services.text.model_reply import MOST_BRIEF as BRIEF
from nexus.services.text.model_reply import MOST_DETAILED as DETAILED
from nexus.services.text.model_reply import MOST_ENTRY as ENTRY
from nexus.services.text.model_reply import MOST_INSIGHT as INSIGHT
from nexus.services.text.model_reply import MOST_ENTRIES as ENTRIES
from nexus.services.text.model_reply import MOST_INSIGHTS as INSIGHTS
from nexus.services.text.model_reply import brief_within as brief_within
from nexus.services.text.model_reply import cost as cost
from nexus.services.text.model_reply import listed as listed
from nexus.services.text.model_reply import within as within

__all__ = ["BRIEF", "DETAILED", "ENTRIES", "ENTRY", "INSIGHT", "INSIGHTS", "brief_within", "cost", "listed", "within"]
