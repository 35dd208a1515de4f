"""Moved."""

from nexus.core.ports.store import STRUCTURED_SEARCHED as STRUCTURED_SEARCHED
from nexus.core.ports.store import DocumentStore as DocumentStore
from nexus.core.ports.store import MessageStore as MessageStore
from nexus.core.ports.store import RunOrigin as RunOrigin
from nexus.core.ports.store import SessionStateStore as SessionStateStore
from nexus.core.ports.store import Store as Store
