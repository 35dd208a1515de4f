"""Moved."""

from nexus.core.ports.store import TransferableStore as TransferableStore
from nexus.core.ports.store import TransferStore as TransferStore
