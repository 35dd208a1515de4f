"""Moved."""

from nexus.core.concurrency import Pauses as Pauses
from nexus.core.concurrency import Pending as Pending
from nexus.core.concurrency import items_of as items_of
from nexus.core.concurrency import ungrouped as ungrouped
