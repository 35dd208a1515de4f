"""Every setting, with its default and the allowed values (contract §9)."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, LiteralString
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
)
from pydantic_core import PydanticCustomError

from nexus.core.models import Identifier
from nexus.core.recall import Language
from nexus.core.records import RecordMode
from nexus.core.shares import BUDGET, SHARES
from nexus.core.signing import Signing
from nexus.core.turns import Level

# Sections that the `configurations` document of an environment may hold (contract §9).
STORED_SECTIONS: Final = ("memory", "layouts", "user_defaults")
# Of `memory`, what a service is built with before it reads that document.
NOT_STORED: Final = ("tokenizer", "working_memory")
# The type of pydantic's errors whose text is a rule of ours, and is said as it is.
RULE: Final = "rule"
# Bytes of a result that may be condensed.
_LEAST_CONDENSED: Final = 2_048

_NO_HASH_TAG: Final = (
    "bus.channel_prefix: needs a hash tag where bus.url is a cluster and bus.mode is streams, so that all keys are in "
    "one slot; for instance '{nexus}:'"
)

_PREFIX: Final = re.compile(r"[A-Za-z0-9._:-]*(\{[A-Za-z0-9._:-]+\}[A-Za-z0-9._:-]*)?")
_MAX_PREFIX: Final = 64
_NO_PREFIX: Final = (
    "At most 64 of A-Z a-z 0-9 . _ : - and one hash tag in braces are allowed; for instance 'prod:' or 'prod.{nexus}:'"
)


def _checked_prefix(prefix: str) -> str:
    if len(prefix) > _MAX_PREFIX or not _PREFIX.fullmatch(prefix):
        raise PydanticCustomError(RULE, _NO_PREFIX)
    return prefix


def _checked_address(address: SecretStr) -> SecretStr:
    text = address.get_secret_value()
    if not re.fullmatch(r"(https?://\S+)?", text):
        raise PydanticCustomError(RULE, "An address that begins with http:// or https:// is needed, or nothing")
    try:
        parts = urlsplit(text)
        names_a_place = bool(parts.hostname) and parts.port != 0
    except ValueError:
        names_a_place = False
    if text and not names_a_place:
        raise PydanticCustomError(RULE, "Names no host and port; http://host:port/v1 is allowed")
    return address


def _in_lower_case(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _off_in_yaml(value: Any) -> Any:
    # Without quotes `off` is YAML's false.
    return "off" if value is False else value


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SystemSettings(_Section):
    """The process itself."""

    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_in_lower_case)] = "info"
    log_format: Literal["auto", "json", "console"] = "auto"
    drain_seconds: float = Field(default=10.0, ge=0, le=600)
    http_host: str = Field(
        default="127.0.0.1", pattern=r"^[A-Za-z0-9._:%-]{1,253}$", description="an address or a name of this machine"
    )
    http_port: int = Field(default=0, ge=0, le=65_535)
    event_loop: Literal["auto", "asyncio", "uvloop"] = "auto"


_KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_MIN_SECRET: Final = 16
_NO_KEY: Final = (
    "bus.signing.required: needs a key to sign with: set bus.signing.keys, for instance "
    "NEXUS_BUS__SIGNING__KEYS='{k1: a secret of 16 characters or more}', or leave it at false"
)
_NO_MAPPING: Final = "Secrets by their ids are needed, for instance {k1: a secret of 16 characters or more}"


def _check_keys(keys: Any) -> Any:
    # As a whole, since the place of a fault would name the id, which may be a secret that was put on the wrong side.
    if keys is None:
        return {}
    if not isinstance(keys, Mapping):
        raise PydanticCustomError(RULE, _NO_MAPPING)
    for name, secret in keys.items():
        if wrong := _key_error(name, secret):
            raise PydanticCustomError(RULE, wrong)
    return keys


def _key_error(name: Any, secret: Any) -> LiteralString | None:
    text = secret.get_secret_value() if isinstance(secret, SecretStr) else secret
    if not isinstance(name, str):
        return "An id of a key is no text: put it in quotes"
    if not _KEY_ID.fullmatch(name):
        return "An id of a key is not of 1 to 64 of A-Z a-z 0-9 . _ -"
    if not isinstance(text, str):
        return "A secret is no text: put it in quotes, since what looks like a number or a date is none"
    return None if len(text) >= _MIN_SECRET else "A secret is shorter than 16 characters"


class SigningSettings(_Section):
    """Keys that messages are signed with: secret by key id. The first key signs, every key verifies (contract §1.7)."""

    keys: Annotated[dict[str, SecretStr], BeforeValidator(_check_keys)] = Field(default_factory=dict)
    required: bool = False


class BusSettings(_Section):
    """The bus and the promises about a request on it (contract §1.5, §1.6)."""

    mode: Literal["pubsub", "streams", "memory"] = "pubsub"
    url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    channel_prefix: Annotated[str, AfterValidator(_checked_prefix)] = ""
    request_deadline_ms: int = Field(default=5_000, ge=100, le=60_000)
    lease_ms: int = Field(default=2_000, ge=200, le=60_000)
    answer_ttl_s: int = Field(default=3_600, ge=1, le=604_800)
    stream_keep_s: int = Field(default=600, ge=60, le=604_800)
    max_payload_bytes: int = Field(default=1_048_576, ge=1_024, le=67_108_864)
    max_in_flight: int = Field(default=256, ge=1, le=65_536)
    max_in_flight_per_owner: int = Field(default=32, ge=1, le=65_536)
    heartbeat_s: float = Field(default=3.0, ge=0.05, le=60)
    dead_letter_bodies: bool = False
    dead_letter_max: int = Field(default=10_000, ge=1, le=1_000_000)
    signing: SigningSettings = SigningSettings()


class DatabaseSettings(_Section):
    """The document store."""

    driver: Literal["motor", "pymongo"] = "motor"
    uri: SecretStr = SecretStr("mongodb://127.0.0.1:27017")
    name: str = Field(
        default="nexus", pattern=r"^[A-Za-z0-9_-]{1,38}$", description="a name of 1 to 38 of A-Z a-z 0-9 _ -"
    )
    timeout_ms: int = Field(default=1_500, ge=50, le=60_000)
    server_selection_timeout_ms: int = Field(default=1_500, ge=50, le=60_000)


class ContextSettings(_Section):
    """How a context is built."""

    on_history_failure: Literal["degrade", "error"] = "degrade"
    mood: Annotated[Literal["off", "rules"], BeforeValidator(_off_in_yaml)] = "off"
    record: Annotated[RecordMode, BeforeValidator(_off_in_yaml)] = "full"
    record_days: int = Field(default=7, ge=1, le=3_650)


class ConsoleSettings(_Section):
    """The pages under `/console` of `system.http_port` (contract §16)."""

    enabled: bool = True
    token: SecretStr = SecretStr("")
    write: bool = False


# Among the owners of a token of `mcp.tokens`, all of them.
ANY_OWNER: Final = "*"


class McpToken(_Section):
    """A token of `nexus mcp --http`, and whose memory it opens."""

    token: SecretStr = Field(min_length=_MIN_SECRET)
    owners: tuple[Identifier, ...] = Field(min_length=1)


_TOKENS: Final = TypeAdapter(tuple[McpToken, ...])
_NO_TOKENS: Final = (
    "A list is needed, as [{token: a text of 16 characters or more, owners: [ada]}]; owners ['*'] stands for all"
)


def _checked_tokens(given: Any) -> tuple[McpToken, ...]:
    # As a whole: what stands where no key belongs may be a token.
    try:
        tokens = _TOKENS.validate_python(() if given is None else given)
    except ValidationError:
        raise PydanticCustomError(RULE, _NO_TOKENS) from None
    texts = [each.token.get_secret_value() for each in tokens]
    if any(text != text.strip() or not text.isprintable() for text in texts):
        rule = "A token has a line break, or white space at an end, which no header can carry"
        raise PydanticCustomError(RULE, rule)
    if len({*texts}) < len(texts):
        raise PydanticCustomError(RULE, "A token stands there twice; give it all its owners")
    return tokens


class McpSettings(_Section):
    """Who may ask `nexus mcp --http` (contract §16)."""

    tokens: Annotated[tuple[McpToken, ...], BeforeValidator(_checked_tokens)] = ()


# A smaller window would not hold the instructions of a layout alone.
_Window = Annotated[int, Field(ge=1_000, le=10_000_000)]


class TracingSettings(_Section):
    """Where `nexus serve` sends its spans (contract §16); all else is set by OpenTelemetry's own variables."""

    otlp_endpoint: Annotated[SecretStr, AfterValidator(_checked_address)] = SecretStr("")
    sample_ratio: float = Field(default=1.0, ge=0, le=1)


class PlainLayoutSettings(_Section):
    """A layout for dialogues (contract §4), or for rounds of thought (contract §6)."""

    max_tokens: _Window | None = None
    recall: bool = False


class DialogueLayoutSettings(PlainLayoutSettings):
    """The layout for dialogues, and the memory tools that it offers."""

    tools: list[Literal["pin_constraint", "remember", "search_memory"]] = []


class AgentLayoutSettings(_Section):
    """The layout for tool-using agents (contract §5)."""

    max_tokens: _Window | None = None
    recall: bool = False
    history_messages: int = Field(default=1_000, ge=1, le=10_000)
    placement: Literal["from_end", "before_assistant", "tail"] = "from_end"
    pinned_from_end: int = Field(default=5, ge=0, le=1_000)


class LayoutSettings(_Section):
    """Recipes for the message list."""

    default: Literal["dialogue", "agent", "thinking"] = "dialogue"
    dialogue: DialogueLayoutSettings = DialogueLayoutSettings()
    agent: AgentLayoutSettings = AgentLayoutSettings()
    thinking: PlainLayoutSettings = PlainLayoutSettings()

    @property
    def with_recall(self) -> frozenset[str]:
        """The layouts whose contexts have `[RECALL]`."""
        wanted = {"dialogue": self.dialogue.recall, "agent": self.agent.recall, "thinking": self.thinking.recall}
        return frozenset(name for name in wanted if wanted[name])

    def conflicts(self, *, working_memory: bool, recall: bool) -> Iterator[str]:
        """What needs working memory or long-term memory where that is off."""
        if self.dialogue.tools and not working_memory:
            yield "layouts.dialogue.tools: needs memory.working_memory, which brings the tools"
        if not recall:
            yield from (f"layouts.{name}.recall: needs recall.enabled" for name in sorted(self.with_recall))


# With a window of 1,000 tokens, a block has to hold its heading and the line that says that it is cut.
_FixedShare = Annotated[float, Field(ge=0.05, le=1)]


class MemorySharesSettings(_Section):
    """How much of the window the blocks take at most that always stay (contract §11)."""

    instructions: _FixedShare = SHARES["instructions"]
    role: _FixedShare = SHARES["role"]
    todos: _FixedShare = SHARES["todos"]
    goal: _FixedShare = SHARES["goal"]
    working_memory: Annotated[float, Field(ge=0.15, le=1)] = SHARES["working_memory"]
    profile: _FixedShare = SHARES["profile"]
    workspace: _FixedShare = SHARES["workspace"]


class ShareSettings(_Section):
    """What a block has of the window when room is short, and what it takes at most; the higher priority grows first."""

    floor: float = Field(ge=0, le=1)
    ceiling: _FixedShare
    priority: int = Field(ge=0, le=100)


class ConstraintsShareSettings(_Section):
    """`[CONSTRAINTS]`, which is never cut: more than the ceiling is refused when it is set."""

    ceiling: _FixedShare = BUDGET["constraints"].ceiling


def _share(block: str) -> ShareSettings:
    return ShareSettings.model_construct(set(), **BUDGET[block]._asdict())


class BudgetSettings(_Section):
    """How the window is shared out among the blocks that can grow, in all layouts (contract §15)."""

    history: ShareSettings = _share("history")
    recall: ShareSettings = _share("recall")
    facts: ShareSettings = _share("facts")
    constraints: ConstraintsShareSettings = ConstraintsShareSettings()
    turns: ShareSettings = _share("turns")
    notes: ShareSettings = _share("notes")
    summary: ShareSettings = _share("summary")
    rounds: ShareSettings = _share("rounds")
    results: ShareSettings = _share("results")

    @field_validator("*", mode="wrap")
    @classmethod
    def _complete(cls, given: Any, check: ValidatorFunctionWrapHandler, field: ValidationInfo) -> Any:
        """What is not given of a block is as by default, and does not count as given."""
        if not isinstance(given, Mapping):
            return check(given)
        default = cls.model_fields[str(field.field_name)].default
        whole = check({**dict(default), **given})
        return type(whole).model_construct({*given}, **dict(whole))

    @property
    def shares(self) -> dict[str, ShareSettings]:
        """Those of the blocks that are cut where room is short."""
        return {name: share for name, share in self if isinstance(share, ShareSettings)}

    def conflicts(self) -> Iterator[str]:
        """As `Settings.conflicts`."""
        shares = self.shares
        for name, share in shares.items():
            if share.floor > share.ceiling:
                yield f"memory.budget.{name}.floor: {share.floor} is allowed only up to its ceiling, {share.ceiling}"
        together = round(sum(share.floor for share in shares.values()) + self.constraints.ceiling, 6)
        if together > 1:
            yield f"memory.budget: the floors and constraints.ceiling are {together} together; at most 1 is allowed"


_NUMBER_OF_MESSAGES: Final = TypeAdapter(Annotated[int, Field(ge=1, le=200)])


def _checked_size(value: Any) -> Any:
    if value is None or value == "auto":
        return value
    try:
        return _NUMBER_OF_MESSAGES.validate_python(value)
    except ValidationError:
        raise PydanticCustomError(RULE, "a whole number from 1 to 200, or auto, is needed") from None


# `auto`: as many as have room.
_HistorySize = Annotated[int | Literal["auto"], BeforeValidator(_checked_size)]


class MemorySettings(_Section):
    """How much of the past is shown, and how it is kept (contract §4.3, §6, §7)."""

    history_context_size: _HistorySize = 20
    truncate_chars: int = Field(default=500, ge=20, le=20_000)
    show_tool_results: Annotated[Literal["off", "short"], BeforeValidator(_off_in_yaml)] = "off"
    summary_detail_level: Level = "detailed"
    turns_shown: int = Field(default=100, ge=1, le=1_000)
    turn_idle_s: float = Field(default=300, ge=1, le=86_400)
    working_memory: bool = True
    context_window: _Window = 128_000
    shares: MemorySharesSettings = MemorySharesSettings()
    budget: BudgetSettings = BudgetSettings()
    tokenizer: Literal["o200k_base", "cl100k_base", "o200k_harmony", "llama3", "qwen3"] = "o200k_base"
    count_tokens: Literal["needed", "always"] = "needed"
    compact_at: float = Field(default=0.75, ge=0.1, le=0.95)
    compact_to: float = Field(default=0.4, ge=0.05, le=0.9)
    summary_max_tokens: int = Field(default=1_500, ge=100, le=100_000)
    overview_max_bytes: int = Field(default=5_120, ge=256, le=65_536)
    detail_max_bytes: int = Field(default=65_536, ge=1_024, le=1_048_576)
    keep_revisions: int = Field(default=100, ge=20, le=100_000)


_Days = Annotated[int, Field(ge=1, le=10_000)]


class RetentionDays(_Section):
    """How many days things are kept; None for ever."""

    messages_days: _Days | None = None
    turns_days: _Days | None = None
    memory_revisions_days: _Days | None = None
    details_days: _Days | None = None
    dead_letters_days: _Days | None = None


class LlmSettings(_Section):
    """The model that writes summaries: any endpoint that speaks the OpenAI protocol (contract §6)."""

    base_url: Annotated[SecretStr, AfterValidator(_checked_address)] = SecretStr("")
    api_key: SecretStr = SecretStr("")
    model: Annotated[str, StringConstraints(strip_whitespace=True, max_length=200)] = ""
    timeout_s: float = Field(default=30, ge=0.1, le=600)
    retries: int = Field(default=2, ge=0, le=10)
    max_concurrency: int = Field(default=4, ge=1, le=64)
    max_input_tokens: int = Field(default=24_000, ge=1_000, le=2_000_000)
    max_calls_per_turn: int = Field(default=8, ge=1, le=1_000)
    max_calls_per_compaction: int = Field(default=20, ge=1, le=1_000)
    settle_s: float = Field(default=5, ge=0, le=600)
    again_s: float = Field(default=30, ge=0.1, le=86_400)
    breaker_failures: int = Field(default=5, ge=1, le=100)
    breaker_rest_s: float = Field(default=30, ge=0.1, le=3_600)

    @property
    def enabled(self) -> bool:
        """Whether there is a model to ask."""
        return bool(self.base_url.get_secret_value() and self.model)


class RecallSettings(_Section):
    """Long-term memory, and the embedder by which it finds meanings, too (contract §14)."""

    enabled: bool = True
    language: Annotated[Language, BeforeValidator(_in_lower_case)] = "english"
    embedder: Annotated[Literal["off", "packaged", "endpoint"], BeforeValidator(_off_in_yaml)] = "off"
    base_url: Annotated[SecretStr, AfterValidator(_checked_address)] = SecretStr("")
    api_key: SecretStr = SecretStr("")
    model: Annotated[str, StringConstraints(strip_whitespace=True, max_length=200)] = ""
    timeout_s: float = Field(default=10, ge=0.1, le=600)
    question_prefix: str = Field(default="", max_length=200)
    text_prefix: str = Field(default="", max_length=200)


class FactSettings(_Section):
    """Where what is known of persons comes from besides what others say (contract §15)."""

    extract: Annotated[Literal["off", "model"], BeforeValidator(_off_in_yaml)] = "off"


def _large_or_none(value: int) -> int:
    if 0 < value < _LEAST_CONDENSED:
        raise PydanticCustomError(RULE, f"0, or {_LEAST_CONDENSED} bytes and more, is allowed; some 1,500 are shown")
    return value


class ToolSettings(_Section):
    """Where tools come from (contract §3)."""

    modules: tuple[str, ...] = ()
    refresh_seconds: float = Field(default=30.0, ge=1, le=3_600)
    unknown_after_ms: int | None = Field(default=None, ge=0, le=600_000)
    condense_above: Annotated[int, AfterValidator(_large_or_none)] = Field(default=8_192, ge=0, le=1 << 24)


class UserConfigDefaults(_Section):
    """Settings of owners without their own."""

    history_context_size: _HistorySize | None = None


class FriendsProfileDefault(_Section):
    """The profile text of owners without one, and how an editor describes it."""

    content: str = ""
    editable: bool = True
    description: str = "About this friend - preferences, patterns, and context"


class UserPromptDefaults(_Section):
    """Prompts of owners without their own."""

    friends_profile: FriendsProfileDefault = FriendsProfileDefault()


class UserDefaults(_Section):
    """Defaults of every owner, until the owner sets others."""

    config: UserConfigDefaults = UserConfigDefaults()
    prompts: UserPromptDefaults = UserPromptDefaults()


class Sections(_Section):
    """All settings, as a file and the environment variables hold them."""

    system: SystemSettings = SystemSettings()
    bus: BusSettings = BusSettings()
    database: DatabaseSettings = DatabaseSettings()
    context: ContextSettings = ContextSettings()
    console: ConsoleSettings = ConsoleSettings()
    mcp: McpSettings = McpSettings()
    tracing: TracingSettings = TracingSettings()
    layouts: LayoutSettings = LayoutSettings()
    memory: MemorySettings = MemorySettings()
    retention: RetentionDays = RetentionDays()
    llm: LlmSettings = LlmSettings()
    recall: RecallSettings = RecallSettings()
    facts: FactSettings = FactSettings()
    tools: ToolSettings = ToolSettings()
    user_defaults: UserDefaults = UserDefaults()


class Settings(Sections):
    """Every setting of Nexus. `config.example.yml` lists them with their defaults and meanings."""

    environment: str = "development"

    @property
    def condense_above(self) -> int:
        """The bytes above which results are condensed; 0 for none: they are read whole by a tool of working memory."""
        return self.tools.condense_above if self.memory.working_memory else 0

    def conflicts(self) -> Iterator[str]:
        """The faults of values together, one line an item."""
        bus, memory, llm, recall = self.bus, self.memory, self.llm, self.recall
        on_cluster = bus.url.get_secret_value().startswith(("redis+cluster:", "rediss+cluster:"))
        if on_cluster and bus.mode == "streams" and "{" not in bus.channel_prefix:
            yield _NO_HASH_TAG
        if bus.signing.required and not bus.signing.keys:
            yield _NO_KEY
        if memory.compact_to >= memory.compact_at:
            yield f"memory.compact_to: {memory.compact_to} is allowed only below memory.compact_at, {memory.compact_at}"
        yield from memory.budget.conflicts()
        yield from self.layouts.conflicts(working_memory=memory.working_memory, recall=recall.enabled)
        if bool(llm.base_url.get_secret_value()) != bool(llm.model):
            given, other = ("model", "base_url") if llm.model else ("base_url", "model")
            yield f"llm.{given}: needs llm.{other}; give both, or neither for summaries by rules alone"
        if self.facts.extract == "model" and not llm.enabled:
            yield "facts.extract: model needs llm.base_url and llm.model"
        of_endpoint = {
            "base_url": recall.base_url.get_secret_value(),
            "model": recall.model,
            "question_prefix": recall.question_prefix,
            "text_prefix": recall.text_prefix,
        }
        for name, value in of_endpoint.items():
            if recall.embedder != "endpoint" and value:
                yield f"recall.{name}: is for an endpoint; set recall.embedder to endpoint, or leave this out"
            if recall.embedder == "endpoint" and not value and name in {"base_url", "model"}:
                yield f"recall.embedder: endpoint needs recall.{name}"


def signing_of(settings: SigningSettings) -> Signing | None:
    """The keys of the bus; None where there are none, and signatures are ignored."""
    if not settings.keys:
        return None
    secrets = {name: secret.get_secret_value().encode() for name, secret in settings.keys.items()}
    return Signing(secrets, required=settings.required)
