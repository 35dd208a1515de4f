"""Inputs of runs, as builds offer them for recording."""

from nexus.core.models import Message
from nexus.core.ports import RunOrigin
from nexus.services.inputs import OfferedInput
from nexus.services.persistence import PersistenceService


def offer_input(service: PersistenceService, message: Message, text: str, origin: RunOrigin) -> OfferedInput | None:
    """An input that is recorded now; None when it is not accepted."""
    offered = service.input_of(message, text, origin)
    return offered if offered.offer() else None
