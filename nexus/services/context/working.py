"""Moved."""

from nexus.services.context.memory_blocks import summary_block as summary_block
from nexus.services.context.memory_blocks import working_memory_block as working_memory_block
from nexus.services.memory.documents import MOST_ARCHIVES as MOST_ARCHIVES
from nexus.services.memory.documents import MOST_NOTES as MOST_NOTES
from nexus.services.memory.documents import TEMPLATE as TEMPLATE
