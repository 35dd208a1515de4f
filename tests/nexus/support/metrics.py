"""Metrics that a test can look at."""

from collections import Counter
from collections.abc import Callable

from nexus.core.errors import ErrorCode
from nexus.core.metrics import CallOutcome, DeadLetterCause, Event, Part, Purpose, Reading, Stage
from nexus.core.models import Why


class RecordingMetrics:
    """`nexus.core.metrics.Metrics` in memory.

    Attributes:
        counted: how often each event, outcome (None is a success), part, reason and cause was reported.
        called, tokens: how often a model was called, and how many tokens all calls took.
        stalls: how late the loop was, in order.
        stages: of what length of time was reported, in order.
        readings, backlogs: where numbers are read from.
    """

    def __init__(self) -> None:
        self.counted: Counter[Event | ErrorCode | Part | Why | DeadLetterCause | None] = Counter()
        self.called: Counter[tuple[Purpose, CallOutcome]] = Counter()
        self.tokens: Counter[Purpose] = Counter()
        self.stages: list[Stage] = []
        self.stalls: list[float] = []
        self.readings: dict[Reading, Callable[[], float]] = {}
        self.backlogs: dict[str, Callable[[], float]] = {}

    def count(self, event: Event, amount: int = 1) -> None:
        """The event happened, `amount` times."""
        self.counted[event] += amount

    def answered(self, code: ErrorCode | None) -> None:
        """A request got its answer."""
        self.counted[code] += 1

    def degraded(self, part: Part) -> None:
        """A context was built without this part."""
        self.counted[part] += 1

    def left_out(self, why: Why, amount: int = 1) -> None:
        """A context has so many entries of `left_out` for this reason."""
        self.counted[why] += amount

    def dead_letter(self, cause: DeadLetterCause) -> None:
        """A message became a dead letter."""
        self.counted[cause] += 1

    def model_called(
        self, purpose: Purpose, outcome: CallOutcome, prompt_tokens: int = 0, completion_tokens: int = 0
    ) -> None:
        """A model was called."""
        self.called[purpose, outcome] += 1
        self.tokens[purpose] += prompt_tokens + completion_tokens

    def took(self, stage: Stage, seconds: float) -> None:
        """A stage of one request took so long."""
        assert seconds >= 0
        self.stages.append(stage)

    def stalled(self, seconds: float) -> None:
        """The loop was late."""
        self.stalls.append(seconds)

    def read_from(self, reading: Reading, read: Callable[[], float]) -> None:
        """Have `read` called whenever the reading is asked for."""
        self.readings[reading] = read

    def backlog_from(self, topic: str, read: Callable[[], float]) -> None:
        """Likewise for a topic's backlog."""
        self.backlogs[topic] = read
