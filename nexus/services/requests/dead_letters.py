"""Messages that cannot be used become dead letters (contract §1.4, §1.6)."""

import hashlib
from typing import Final

import anyio
import structlog

from nexus.core.errors import BusRefusedError, BusUnavailableError
from nexus.core.metrics import DeadLetterCause, Metrics
from nexus.core.ports import DeadLetter, DeadLetters, Delivery

_log = structlog.get_logger(__name__)

_PAUSE_S: Final = 1.0


class DeadLetterWriter:
    """Logs by size and hash what cannot be used, counts it, and keeps it as a dead letter.

    Args:
        dead_letters: where they are kept.
        metrics: where they are counted.
        bodies_up_to: the largest payload that is kept with its letter, in bytes; None for none.
    """

    def __init__(self, dead_letters: DeadLetters, metrics: Metrics, bodies_up_to: int | None) -> None:
        self._dead_letters = dead_letters
        self._metrics = metrics
        self._bodies_up_to = bodies_up_to

    async def write(self, delivery: Delivery, reason: str, cause: DeadLetterCause, message_id: str = "") -> None:
        """Make a delivery a dead letter. Where the bus keeps messages, it goes on until the letter is kept."""
        payload = delivery.payload
        sha256 = hashlib.sha256(payload).hexdigest()
        _log.warning("unusable_message", topic=delivery.topic, reason=reason, size=len(payload), sha256=sha256)
        self._metrics.buried(cause)
        # A larger one would be refused when it is sent again.
        body = payload if self._bodies_up_to is not None and len(payload) <= self._bodies_up_to else None
        letter = DeadLetter(delivery.topic, reason, sha256, len(payload), delivery.deliveries, message_id, body)
        while True:
            try:
                await self._dead_letters.bury(letter)
            except BusUnavailableError as error:
                _log.error("dead_letter_not_kept", topic=delivery.topic, sha256=sha256, reason=str(error))
                if delivery.shared and not isinstance(error, BusRefusedError):
                    await anyio.sleep(_PAUSE_S)
                    continue
            return
