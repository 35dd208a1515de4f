"""The one tree of errors. Outcomes of a request are values; these are raised where a part cannot do what it promises.

No exception of redis, pymongo, motor or openai passes its adapter: they are translated there.
"""

from enum import StrEnum


def reason_of(error: BaseException, within_s: float | None = None) -> str:
    """What to say of an error, which may have no text, as that of a time limit (of `within_s` seconds) has none."""
    if text := str(error).strip():
        return text
    if isinstance(error, TimeoutError):
        return "no answer in time" if within_s is None else f"no answer within {within_s:.3g} s"
    return f"{type(error).__name__}, which gives no reason"


class ErrorCode(StrEnum):
    """The codes of an error answer (contract §1.4)."""

    INVALID_REQUEST = "INVALID_REQUEST"
    EMPTY_INPUT = "EMPTY_INPUT"
    UNKNOWN_LAYOUT = "UNKNOWN_LAYOUT"
    MISSING_AGENT_ROLE = "MISSING_AGENT_ROLE"
    OWNER_MISMATCH = "OWNER_MISMATCH"
    ID_CONFLICT = "ID_CONFLICT"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    OVERLOADED = "OVERLOADED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    HISTORY_UNAVAILABLE = "HISTORY_UNAVAILABLE"
    INTERNAL = "INTERNAL"

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later without being changed."""
        return self in _RETRYABLE


_RETRYABLE = frozenset(
    {ErrorCode.OVERLOADED, ErrorCode.DEADLINE_EXCEEDED, ErrorCode.HISTORY_UNAVAILABLE, ErrorCode.INTERNAL}
)


class NexusError(Exception):
    """Base of every error that Nexus raises on purpose."""


class ConfigError(NexusError):
    """Settings that cannot be used. The message names where, which key, and what is allowed."""


class RequestError(NexusError):
    """A request that is answered with an error.

    Attributes:
        code: one of `ErrorCode`.
        message: what is wrong and where, for the sender; never a stack trace, never another owner's data.
        retry_after_ms: when trying again may help, if that can be told.
    """

    def __init__(self, code: ErrorCode, message: str, retry_after_ms: int | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.retry_after_ms = retry_after_ms


class UnreadablePayloadError(NexusError):
    """Bytes that cannot be read as a message and hold no id under which they could be answered."""


class BusUnavailableError(NexusError):
    """The bus could not be reached, or did not confirm in time."""


class BusRefusedError(BusUnavailableError):
    """What the bus keeps under a name is not what belongs there; trying again will not help."""


class NobodyListeningError(NexusError, TimeoutError):
    """No service received what was sent, however often. The message says what was tried, and what to check."""


class OutboxFullError(NexusError):
    """A request is concluded, with so many `receivers` of its answer, but its row found no room in the outbox."""

    def __init__(self, receivers: int) -> None:
        super().__init__("the outbox is full")
        self.receivers = receivers


class StoreUnavailableError(NexusError):
    """The document store could not be reached, or did not answer in time."""


class NewerDocumentError(StoreUnavailableError):
    """A document is of a schema version that this release does not know (docs/upgrading.md)."""


class StoreRejectedError(NexusError):
    """The document store refused a document for what it is; trying again will not help."""

    @property
    def reason(self) -> str:
        """What a dead letter, and the row that stands in place of the document, say of it."""
        return f"The database refused it: {self}"


class TakenIdError(StoreRejectedError):
    """Another text is recorded under the id of a message, and neither of the two is a later version of the other."""

    def __init__(self) -> None:
        super().__init__("Another text is recorded under this id; a later version needs a higher metadata.revision")

    @property
    def reason(self) -> str:
        """What the dead letter says of it."""
        return str(self)


class ErasedReason(str):
    """Why something is not stored: it was erased. Of its message the dead letter keeps no body."""

    __slots__ = ()


class ErasedError(StoreRejectedError):
    """What was said before an erasure, or made of it, is not stored again (contract §13)."""

    @property
    def reason(self) -> ErasedReason:
        """What the dead letter says of it."""
        return ErasedReason(self)


class TurnNotFoundError(NexusError):
    """A session has no turn with that number."""

    def __init__(self, turn_number: int) -> None:
        super().__init__(f"Turn {turn_number} not found")


class CallRefusedError(NexusError):
    """A tool's call that is not done, and has changed nothing. The text is for the model: why, and what is allowed."""


class ModelUnavailableError(NexusError):
    """The language model could not be reached, refused the call, or did not answer in time."""


class PromptTooLongError(NexusError):
    """The language model cannot take a prompt of this length."""
