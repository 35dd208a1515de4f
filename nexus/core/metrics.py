"""What a service counts and measures about itself, and the port that takes it.

Labels come from the closed sets of this module, from `ErrorCode` and from `Why` only: no id, no other topic and no text
of a message can become one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

from nexus.core.errors import ErrorCode
from nexus.core.models import Why

# Of a histogram of times, the longest of each bucket but the last, in seconds, up to the longest deadline.
BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Event(StrEnum):
    """Something that happened once."""

    LEASE_TAKEN_OVER = "lease_taken_over"  # a request was acquired that another replica had begun and not finished
    ANSWER_UNHEARD = "answer_unheard"  # an answer was published to no subscriber
    ANSWER_REPEATED = "answer_repeated"
    LATE_ANSWER_DISCARDED = "late_answer_discarded"  # an answer came too late, another replica had given one
    REQUEST_DROPPED = "request_dropped"  # a request was let go without an answer, because even too many refusals waited
    DEAD_LETTER_LOST = "dead_letter_lost"  # a message that could not be used was dropped, without a dead letter
    ROW_RECORDED = "row_recorded"  # a row was written, or was there already
    ROW_REJECTED = "row_rejected"  # the store will never accept the row
    ROW_LOST = "row_lost"  # a row was unwritten when the service ended, or found no room in the outbox
    STATE_RECORDED = "state_recorded"
    # A change of a session's state was accepted, and the state would have become too large with it.
    STATE_REFUSED = "state_refused"
    STATE_LOST = "state_lost"  # a change of a session's state was not stored when the service ended
    FACTS_RECORDED = "facts_recorded"  # the facts of a message were stored, or were there already
    FACTS_REFUSED = "facts_refused"  # a message with facts was accepted, and its owner has too many
    FACTS_LOST = "facts_lost"  # the facts of a message were not stored when the service ended
    CONSTRAINTS_RECORDED = "constraints_recorded"  # a message on constraints was stored
    CONSTRAINTS_REFUSED = "constraints_refused"  # one was accepted, and there would have been too many with it
    CONSTRAINTS_LOST = "constraints_lost"  # one was not stored when the service ended
    TURN_BEGUN = "turn_begun"
    TURN_CLOSED = "turn_closed"  # a turn was seen to be over, and summarised by rules
    TURN_SUMMARISED = "turn_summarised"
    # A turn was not taken in since too much waited, was refused, or was unwritten when the service ended.
    TURN_LOST = "turn_lost"
    SUMMARY_DELAYED = "summary_delayed"  # a model could not be asked for a turn's summary
    SUMMARY_REFUSED = "summary_refused"  # a model answered without a summary of the turn
    SUMMARY_GIVEN_UP = "summary_given_up"  # a turn keeps its summary by rules: a model's takes too many calls
    FACT_EXTRACTED = "fact_extracted"  # a statement that a model read in a person's words was kept
    FACT_UNSUPPORTED = "fact_unsupported"  # a model reported a fact that those words do not support
    EXTRACTION_DELAYED = "extraction_delayed"  # as SUMMARY_DELAYED, for the facts of a turn
    EXTRACTION_REFUSED = "extraction_refused"  # as SUMMARY_REFUSED, for the facts of a turn
    EXTRACTION_GIVEN_UP = "extraction_given_up"  # as SUMMARY_GIVEN_UP, for the facts of a turn
    CALL_DONE = "call_done"
    # A call of a memory tool was not done, since it is not allowed; the model was told why.
    CALL_REFUSED = "call_refused"
    # A call of a memory tool could not be done: too many waited, the store was away, or Nexus is at fault.
    CALL_FAILED = "call_failed"
    COMPACTION_REFINED = "compaction_refined"
    REFINING_DELAYED = "refining_delayed"  # as SUMMARY_DELAYED, for compacted messages
    REFINING_REFUSED = "refining_refused"  # as SUMMARY_REFUSED, for compacted messages
    REFINING_GIVEN_UP = "refining_given_up"  # as SUMMARY_GIVEN_UP, for compacted messages
    RECALL_INDEXED = "recall_indexed"  # the words of a message were indexed, or it has none
    RECALL_FAILED = "recall_failed"  # a message is not indexed, or not by meaning, for what it is
    RECALL_DELAYED = "recall_delayed"  # the store, or the embedder, could not be asked
    ROW_REMOVED = "row_removed"  # by retention, as the next four
    TURN_REMOVED = "turn_removed"
    REVISION_REMOVED = "revision_removed"  # also beyond `memory.keep_revisions`
    DETAIL_REMOVED = "detail_removed"
    LETTER_REMOVED = "letter_removed"
    RECORD_KEPT = "record_kept"  # the record of an answer was written
    # One was not, since too many waited or the store did not take it, or was unwritten when the service ended.
    RECORD_LOST = "record_lost"
    ERASED_REFUSED = "erased_refused"  # something said before an erasure, or made of it, was not stored again
    BACKGROUND_FAULT = "background_fault"  # an unexpected error in a background task, which went on


class Stage(StrEnum):
    """A part of a request's time."""

    QUEUE = "queue"  # from the arrival to the begin of the build
    GATHER = "gather"
    ASSEMBLE = "assemble"  # making the message list of what was read
    BUILD = "build"  # the whole build, with `GATHER`, `ASSEMBLE` and the wait for the input to be recorded
    FINISH = "finish"  # keeping and publishing the answer
    TOTAL = "total"  # from the arrival to the published answer, whatever the answer is


class Purpose(StrEnum):
    """What a model is called for."""

    TURN = "turn"  # the summary of a turn
    COMPACTION = "compaction"  # the summary of compacted messages
    FACTS = "facts"  # the facts in what a person said


class CallOutcome(StrEnum):
    """What became of a call of a model."""

    USED = "used"
    UNUSABLE = "unusable"  # it answered with something else than was asked for
    TOO_LONG = "too_long"  # it takes no prompt of that length
    UNAVAILABLE = "unavailable"


class Part(StrEnum):
    """A part of a context that can be missing."""

    CONSTRAINTS = "constraints"
    FACTS = "facts"
    HISTORY = "history"
    PROFILE = "profile"
    RECALL = "recall"
    STATE = "state"
    TOOLS = "tools"
    TURNS = "turns"
    WORKING_MEMORY = "working_memory"


class DeadLetterCause(StrEnum):
    """Why a message could not be used, as a class of reasons."""

    UNREADABLE = "unreadable"
    TOO_LARGE = "too_large"  # it is larger than `bus.max_payload_bytes`
    UNAUTHENTICATED = "unauthenticated"  # it has no signature of a known key
    REFUSED = "refused"  # it is a message, and what it asks for is not allowed
    BACKLOG = "backlog"  # too much was waiting for it to be recorded
    ERASED = "erased"  # it is from before its owner, or its session, was erased
    POISON = "poison"  # a build of it failed, or it was delivered too often without being finished
    OTHER = "other"


class Reading(StrEnum):
    """A number that another part keeps, read when it is asked for."""

    IN_FLIGHT = "in_flight"
    WAITING_REQUESTS = "waiting_requests"
    WAITING_REFUSALS = "waiting_refusals"  # requests that wait for the answer OVERLOADED
    UNWRITTEN_ROWS = "unwritten_rows"  # rows that were accepted and are not written
    UNWRITTEN_STATES = "unwritten_states"  # changes of sessions' states that were accepted and are not stored
    UNWRITTEN_FACTS = "unwritten_facts"  # messages with facts that were accepted and are not stored
    UNWRITTEN_CONSTRAINTS = "unwritten_constraints"  # messages on constraints that were accepted and are not stored
    UNWRITTEN_RECORDS = "unwritten_records"  # records of answers that are not written
    UNWRITTEN_TURNS = "unwritten_turns"  # turns that were begun and are not kept
    UNFINISHED_CALLS = "unfinished_calls"  # calls of memory tools that were accepted and have no result
    OUTBOX_ROWS = "outbox_rows"  # inputs that wait on the bus for the store, for all replicas
    BUS_RECONNECTS = "bus_reconnects"  # how often the subscription was opened anew. Never falls


class Metrics(Protocol):
    """Takes what is counted and measured.

    - No operation raises, waits, or costs more than some microseconds.
    - A label is a member of an enumeration of this module, of `ErrorCode` or of `Why`, or a name in `Topics`. Anything
      else that gets here by mistake is counted as `other` or not at all, and its text is dropped.
    """

    def count(self, event: Event, amount: int = 1) -> None:
        """The event happened, `amount` times."""

    def answered(self, code: ErrorCode | None) -> None:
        """A request got its answer: an error with this code, or for None a success."""

    def degraded(self, part: Part) -> None:
        """A context was built without this part."""

    def left_out(self, why: Why, amount: int = 1) -> None:
        """A context has so many entries of `left_out` for this reason."""

    def dead_letter(self, cause: DeadLetterCause) -> None:
        """A message became a dead letter."""

    def model_called(
        self, purpose: Purpose, outcome: CallOutcome, prompt_tokens: int = 0, completion_tokens: int = 0
    ) -> None:
        """A model was called, and took so many tokens."""

    def took(self, stage: Stage, seconds: float) -> None:
        """A stage of one request took so long."""

    def stalled(self, seconds: float) -> None:
        """The event loop called a waiting task so many seconds late."""

    def read_from(self, reading: Reading, read: Callable[[], float]) -> None:
        """Have `read` called whenever the reading is asked for. It must not wait; when it raises, nothing is shown."""

    def backlog_from(self, topic: str, read: Callable[[], float]) -> None:
        """Likewise for the number of messages of a topic, one of `Topics`, that wait on the bus for this service."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a process counted since its start, and what waits in it now.

    Attributes:
        answers: by outcome, `success` or the code of the error.
        degraded, dead_letters: by `Part` and by `DeadLetterCause`.
        durations: answers by how long they took from their arrival: those within each of `BOUNDS_S` and above the one
            before, and last those that took longer than all.
        in_flight: requests that are being answered.
        waiting: of everything else that is accepted and not done, how much, by its kind.
        on_bus: messages that no replica has been given yet, as far as the bus says; the same from every replica.
    """

    answers: Mapping[str, int]
    degraded: Mapping[str, int]
    dead_letters: Mapping[str, int]
    durations: tuple[int, ...]
    in_flight: int
    waiting: Mapping[str, int]
    on_bus: int


class FigureSource(Protocol):
    """Tells what was counted."""

    def figures(self) -> Figures:
        """The figures of now. Takes some milliseconds at most."""


class NoMetrics:
    """`Metrics` that go nowhere."""

    def count(self, *_args: Any, **_options: Any) -> None:
        """Forget it, as every other operation does."""

    answered = degraded = left_out = dead_letter = model_called = took = stalled = read_from = backlog_from = count
