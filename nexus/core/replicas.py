"""What replicas tell each other of themselves: figures of the last minutes, and no content (contract §16)."""

from dataclasses import dataclass
from datetime import datetime

from nexus.core.metrics import Figures


@dataclass(frozen=True, slots=True)
class Sample(Figures):
    """The figures of the `seconds` before `at` alone, and what waited then."""

    at: datetime
    seconds: float


@dataclass(frozen=True, slots=True)
class Replica:
    """A process that serves.

    Attributes:
        replica_id: of this process, another one after each start.
        host: the name of its machine or container.
        version: of Nexus.
        at: its last sign of life, by its own clock.
        samples: the latest, oldest first.
    """

    replica_id: str
    host: str
    version: str
    started_at: datetime
    at: datetime
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True)
class DueWork:
    """How many documents have work due on them, of each kind at most as many as were asked for."""

    turns_to_close: int
    turns_to_summarise: int
    turns_to_read: int  # for facts
    compactions_to_summarise: int
    messages_to_index: int
    messages_to_embed: int
