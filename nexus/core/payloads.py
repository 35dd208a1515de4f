"""What messages carry (contract §1.4, §2, §3, §8): the types of `content` and `metadata` of each topic, and of rows.

The pages under `docs/schemas` and `docs/asyncapi.yaml` are made of these, of `Message` and `Run`, and of the types that
stand beside what reads them: `RunMetadata`, `ToolDefinition` and the changes of a session's state. A type of what comes
in describes the form to send; Nexus reads more than that, as docs/contract.md says.
"""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from nexus.core.errors import ErrorCode
from nexus.core.metrics import Part
from nexus.core.models import Identifier, Metadata, Moment
from nexus.core.person import (
    MAX_CONSTRAINT_CHARS,
    MAX_TOPIC_CHARS,
    MAX_VALUE_CHARS,
    MOST_EVIDENCE,
    MOST_FACTS,
    ConstraintKind,
    ConstraintScope,
    FactLevel,
)
from nexus.core.recall import Scope

Count = Annotated[int, Field(ge=0)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Layout = Literal["dialogue", "agent", "thinking"]
ConstraintText = Annotated[str, Field(min_length=1, max_length=MAX_CONSTRAINT_CHARS, pattern=r"\S")]
ConstraintId = Annotated[str, Field(pattern="^(owner|session|run)-[0-9a-f]{16}$")]
# How far a call has come that has no result yet; the last two say that none will come. The order counts: of two states
# of the same moment the later one here is taken.
CallState = Literal["working", "input_required", "completed", "failed", "cancelled"]
# Of a person or a model: a text, or parts such as `{"type": "text", "text": …}`.
Words = str | list[dict[str, Any]]


class NestedFunction(TypedDict):
    """Name and arguments of a call, these as JSON in a text."""

    name: str
    arguments: str


class NestedCall(TypedDict):
    """A tool call in OpenAI's form."""

    id: str
    type: Literal["function"]
    function: NestedFunction


class FlatCall(TypedDict):
    """A tool call with its name and arguments at its top."""

    id: str
    name: str
    arguments: dict[str, Any] | str


class Usage(TypedDict, total=False):
    """The tokens that a model's answer took."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count


class TraceContext(TypedDict, total=False):
    """The trace that a message belongs to, as W3C's Trace Context has it; what is no trace context is ignored."""

    traceparent: str | None
    tracestate: str | None


class SessionMetadata(TraceContext, total=False):
    """The `metadata` of a message about a session."""

    session_id: Identifier | None
    signature: str


class ResultMetadata(SessionMetadata, total=False):
    """The `metadata` of a result; without `session_id` its session is that of its run."""

    sub_agent_internal: bool
    agent_id: str
    phase: str


class ToolResultMetadata(ResultMetadata, total=False):
    """The `metadata` of a tool's result; Nexus names the message by which its tool was called."""

    request_id: str


class LlmResult(TypedDict, total=False):
    """What a model answered; it has a text, calls or both."""

    content: Words | None
    tool_calls: list[NestedCall | FlatCall] | None
    usage: Usage


class SaidFact(TypedDict):
    """What holds of a person: a pair of topic and sub-topic has one value at a time. Texts are kept on one line.

    `evidence`: ids of the messages that say so. `valid_from`: when it was said, if not with this message.
    """

    topic: Annotated[str, Field(min_length=1, max_length=MAX_TOPIC_CHARS)]
    sub_topic: NotRequired[Annotated[str, Field(max_length=MAX_TOPIC_CHARS)] | None]
    value: Annotated[str, Field(min_length=1, max_length=MAX_VALUE_CHARS)]
    level: NotRequired[FactLevel | None]
    evidence: NotRequired[Annotated[list[Identifier], Field(max_length=MOST_EVIDENCE)] | None]
    valid_from: NotRequired[Moment | None]


class RetiredFact(TypedDict):
    """What no longer holds: this value, or whatever holds."""

    topic: Annotated[str, Field(min_length=1, max_length=MAX_TOPIC_CHARS)]
    sub_topic: NotRequired[Annotated[str, Field(max_length=MAX_TOPIC_CHARS)] | None]
    value: NotRequired[Annotated[str, Field(max_length=MAX_VALUE_CHARS)] | None]


class AddFacts(TypedDict):
    """Says what holds."""

    op: Literal["add"]
    facts: Annotated[list[SaidFact], Field(min_length=1, max_length=MOST_FACTS)]


class RetireFacts(TypedDict):
    """Says what no longer holds; what was superseded does not come back by it."""

    op: Literal["retire"]
    facts: Annotated[list[RetiredFact], Field(min_length=1, max_length=MOST_FACTS)]


# The content of a `memory.facts` message.
FactsChange = AddFacts | RetireFacts


class ConfigChanged(TypedDict):
    """Has stored settings read again, whatever it says."""


class ToolRequest(TypedDict):
    """A tool call to be carried out; the arguments may be called `arguments`."""

    name: str
    args: NotRequired[dict[str, Any] | str | None]
    arguments: NotRequired[dict[str, Any] | str | None]
    call_id: NotRequired[str]


class ToolFailure(TypedDict):
    """Why a memory tool did not do what it was asked; `retryable`: the same call may succeed later."""

    message: str
    retryable: bool


class ToolResult(TypedDict):
    """What a tool returned: any JSON in `result`, and which call it answers."""

    result: Any
    tool_name: NotRequired[str]
    status: NotRequired[str]
    execution_success: NotRequired[bool]
    call_id: NotRequired[str]
    error: NotRequired[ToolFailure | Any]


class ToolProgress(TypedDict):
    """How far a call has come whose result is not there yet; `progress` is from 0 to 1, or percent."""

    call_id: str
    state: CallState
    progress: NotRequired[Annotated[float, Field(ge=0, le=100)]]
    message: NotRequired[str]
    tool_name: NotRequired[str]


class AnswerMetadata(TraceContext):
    """Which request is answered: its id, and the SHA-256 of its bytes; and the span of answering it."""

    request_id: str
    request_sha256: Sha256
    signature: NotRequired[str]


class BlockEntry(TypedDict):
    """What the manifest says of a block, or of a passage of several `messages`."""

    tag: str
    role: str
    index: Count
    messages: NotRequired[Count]
    place: NotRequired[tuple[Count, Count] | None]
    tokens: NotRequired[Count]
    bytes: Count
    sources: list[str]
    truncated: Count
    dropped: Count
    escaped: Count


class HistoryCounts(TypedDict):
    """Rows that were read, and messages that are shown."""

    fetched: Count
    merged: Count
    shown: Count
    repaired: Count


class Prefix(TypedDict):
    """The leading messages that the next run can share, and the SHA-256 of their compact JSON in OpenAI's form."""

    messages: Count
    sha256: Sha256


class Tokens(TypedDict):
    """Tokens of messages and tools, how many there may be, and whether they were counted or estimated."""

    used: Count
    limit: Count
    tools: Count
    exact: bool


class ShareTokens(TypedDict):
    """What a block may have of the window, what it wanted of that, was given, and used in whole items."""

    floor: Count
    ceiling: Count
    wanted: Count
    given: Count
    used: Count


class BudgetTokens(TypedDict):
    """How the tokens of a context are shared out among the blocks that can grow, by their names in `memory.budget`.

    `limit` is without images.
    """

    limit: Count
    blocks: dict[str, ShareTokens]


class RecallCounts(TypedDict):
    """What long-term memory was searched for `[RECALL]`: messages scored, and hits that are shown, or left out.

    `formula` is the version of the score; `generation` that of the embedder, `""` for words alone.
    """

    considered: Count
    shown: Count
    left_out: Count
    formula: Count
    generation: str


class LeftOutEntry(TypedDict):
    """Something that was said and is not shown; `where` is a message id or the tag of a block."""

    what: str
    where: str
    why: str


class Renamed(TypedDict, total=False):
    """Registered names by those that are shown; of parameters by tool."""

    tools: dict[str, str]
    parameters: dict[str, dict[str, str]]


class Manifest(TypedDict):
    """Where each part of a context comes from: ids, counts and times, no content."""

    layout: Layout
    blocks: list[BlockEntry]
    history: HistoryCounts
    prefix: Prefix
    recall: NotRequired[RecallCounts]
    tokens: NotRequired[Tokens]
    budget: NotRequired[BudgetTokens]
    notes: list[str]
    left_out: list[LeftOutEntry]
    renamed: NotRequired[Renamed]
    timings_ms: dict[str, Annotated[float, Field(ge=0)]]


class OpenAIMessage(TypedDict):
    """A message of `chat.completions.create`."""

    role: Literal["system", "user", "assistant", "tool"]
    content: Words | None
    tool_calls: NotRequired[list[NestedCall]]
    tool_call_id: NotRequired[str]


class OpenAITool(TypedDict):
    """A tool of `chat.completions.create`."""

    type: Literal["function"]
    function: dict[str, Any]


class AnthropicMessage(TypedDict):
    """A message of `messages.create`."""

    role: Literal["user", "assistant"]
    content: list[dict[str, Any]]


class AnthropicTool(TypedDict):
    """A tool of `messages.create`."""

    name: str
    description: NotRequired[str]
    input_schema: dict[str, Any]


class GeminiContent(TypedDict):
    """One of the `contents` of `models.generate_content`."""

    role: Literal["user", "model"]
    parts: list[dict[str, Any]]


class GeminiSystem(TypedDict):
    """The `system_instruction` of `models.generate_content`."""

    parts: list[dict[str, Any]]


class GeminiTools(TypedDict):
    """The tools of `models.generate_content`."""

    function_declarations: list[dict[str, Any]]


class _Success(TypedDict):
    status: Literal["success"]
    layout: Layout
    context: Manifest
    degraded: list[Part]


class OpenAIContext(_Success):
    """A context in OpenAI's form."""

    format: NotRequired[Literal["openai"]]
    messages: list[OpenAIMessage]
    tools: list[OpenAITool]


class AnthropicContext(_Success):
    """A context in Anthropic's form."""

    format: Literal["anthropic"]
    system: NotRequired[list[dict[str, Any]]]
    messages: list[AnthropicMessage]
    tools: list[AnthropicTool]


class GeminiContext(_Success):
    """A context in Gemini's form."""

    format: Literal["gemini"]
    system: NotRequired[GeminiSystem]
    messages: list[GeminiContent]
    tools: list[GeminiTools]


class ErrorDetail(TypedDict):
    """What is wrong and where; `retryable`: a new request may succeed, after `retry_after_ms` where that is known."""

    code: ErrorCode
    message: str
    retryable: bool
    retry_after_ms: NotRequired[Count]


class ErrorContent(TypedDict):
    """The content of an error answer; both lists are empty."""

    status: Literal["error"]
    error: ErrorDetail
    messages: Annotated[list[Any], Field(max_length=0)]
    tools: Annotated[list[Any], Field(max_length=0)]


Answer = OpenAIContext | AnthropicContext | GeminiContext | ErrorContent


class GivenConstraint(TypedDict):
    """A rule for every answer; without more it is a `must` of the session."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]  # pydantic's name for it
    text: ConstraintText
    kind: NotRequired[ConstraintKind | None]
    scope: NotRequired[ConstraintScope | None]


GivenConstraints = Annotated[list[ConstraintText | GivenConstraint], Field(min_length=1, max_length=100)]


class AddConstraints(TypedDict):
    """Sets constraints."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]  # as above
    op: Literal["add"]
    constraints: GivenConstraints


class RetireConstraints(TypedDict):
    """Takes constraints back, by their ids or by what they say; it has one of the two."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]  # as above
    op: Literal["retire"]
    ids: NotRequired[Annotated[list[ConstraintId], Field(min_length=1, max_length=500)] | None]
    constraints: NotRequired[GivenConstraints | None]


ConstraintsChange = AddConstraints | RetireConstraints


class SearchQuery(TypedDict):
    """What to find in long-term memory: in a session, or in all of the owner's where none is named."""

    query: Annotated[str, Field(min_length=1, max_length=1_000)]
    scope: NotRequired[Scope | None]
    session_id: NotRequired[Identifier | None]
    limit: NotRequired[Annotated[int, Field(ge=1, le=50)] | None]


class Neighbour(TypedDict):
    """A message; of a long text the beginning, and a mark. What is unreadable is `""` as a role, null as a time."""

    id: str
    role: str
    timestamp: str | None
    text: str


class ScoreParts(TypedDict):
    """What a score is the sum of, `terms` by the words of the query."""

    terms: dict[str, float]
    session: float
    date: float
    similarity: float


class SearchHit(Neighbour):
    """A message that was found, and those beside it, oldest first."""

    session_id: str
    run_id: str
    score: float
    parts: ScoreParts
    around: list[Neighbour]


class SearchResult(TypedDict):
    """What was found, best first; `considered` counts the messages that were scored."""

    status: Literal["success"]
    query: str
    scope: Scope
    hits: list[SearchHit]
    considered: Count
    formula: Count
    generation: str


class StoredRow(TypedDict):
    """A recorded message, as in the collection `messages`; `timestamp` is a date there, in JSON `{"$date": …}`."""

    _id: NotRequired[Any]
    id: Identifier
    run_id: Identifier
    owner_key: Identifier
    session_id: Identifier
    role: Literal["HUMAN", "AI", "TOOL"]
    content: Any
    timestamp: Moment | dict[Literal["$date"], str | int | dict[str, str]]
    metadata: Metadata
