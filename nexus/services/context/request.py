"""A build request (contract §1.3, §6): read once, checked, and passed on as a value. Pure.

A layout reads strictly the metadata that it shows. Other systems may use the same names for something else, so in other
layouts faulty metadata is ignored, with a note.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, Literal, NamedTuple, NotRequired, get_args

import anyio
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from nexus.core.errors import ErrorCode, RequestError
from nexus.core.models import Identifier, Message, Role, Run, named_agent, parse_moment
from nexus.core.payloads import ConstraintText, Layout, TraceContext
from nexus.core.person import Constraint, ConstraintKind
from nexus.core.ports import RunOrigin
from nexus.core.turns import LEVELS, Level, ThinkingRound
from nexus.core.wire import explain
from nexus.services.context.formats import FORMATS
from nexus.services.history.forms import Input, native, read_input
from nexus.services.history.parts import Media
from nexus.services.history.rows import (
    MAIN,
    Agent,
    Kind,
    invalid_request,
    owner_mismatch,
    parse_offset,
    read_agent,
    read_session_id,
    row_of,
)
from nexus.services.person.constraint_changes import MOST_IN_FORCE, Target, read_constraints
from nexus.services.session_state.state import SessionState, State, read_state
from nexus.services.text.checks import unknown_value
from nexus.services.text.escape import canonical

MAX_INPUT_CHARS: Final = 32_000
DEADLINE_MS: Final = (100, 60_000)
HISTORY_SIZES: Final = (1, 200)
AUTO: Final = "auto"
CONTEXT_WINDOWS: Final = (1_000, 10_000_000)
MOST_AFTER: Final = 100
REPLY_TO: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
DEFAULT_FORMAT: Final = "openai"
LAYOUTS: Final = get_args(Layout)
MAX_GOAL_CHARS: Final = 32_000
MOST_ROUNDS: Final = 100
# A number that every store can hold.
LARGEST_NUMBER: Final = 1_000_000_000

_NO_STATE: Final = SessionState()
_NAMED: Final = frozenset({"id", "run_id", "owner_key", "timestamp"})
_RUN: Final = TypeAdapter(Run)


class AnswerableMetadata(TraceContext, total=False):
    """The `metadata` of the envelope of what is answered."""

    reply_to: Annotated[str, Field(pattern=f"^{REPLY_TO.pattern}$")] | None
    deadline_ms: Annotated[float, Field(ge=DEADLINE_MS[0], le=DEADLINE_MS[1])] | None
    signature: str


class RequestMetadata(AnswerableMetadata, total=False):
    """The `metadata` of a request's envelope."""

    after: Annotated[list[str], Field(max_length=MOST_AFTER)] | None


class GivenAgent(TypedDict, total=False):
    """`run.metadata.agent`: whose context it is."""

    kind: Kind | None
    id: Annotated[str, Field(max_length=256)] | None
    role: str | None
    system_prompt: str | None
    task_prompt: str | None


class GivenRound(TypedDict):
    """One of `run.metadata.thinking_rounds`."""

    round_number: Annotated[int, Field(ge=1, le=LARGEST_NUMBER)]
    content: str
    tokens_used: NotRequired[Annotated[int, Field(ge=0, le=LARGEST_NUMBER)] | None]


class RunConstraint(TypedDict):
    """One of `run.metadata.constraints`, which holds for this run; without more it is a `must`."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]  # pydantic's name for it
    text: ConstraintText
    kind: NotRequired[ConstraintKind | None]
    scope: NotRequired[Literal["run"] | None]


class RunMetadata(TraceContext, total=False):
    """`run.metadata`. Keys that it does not name are ignored, and null is as good as nothing."""

    layout: Layout | None
    format: Annotated[str, Field(json_schema_extra={"enum": [*FORMATS]})] | None
    session_id: Identifier | None
    user_profile: dict[str, Any] | None
    client_timestamp_utc: str | None
    client_timezone_offset: int | str | None
    agent: GivenAgent | None
    state: State | None
    task_context: Annotated[str, Field(max_length=MAX_GOAL_CHARS)] | None
    workspace_context: str | None
    thinking_rounds: Annotated[list[GivenRound], Field(max_length=MOST_ROUNDS)] | None
    summary_detail_level: Level | None
    context_window: Annotated[int, Field(ge=CONTEXT_WINDOWS[0], le=CONTEXT_WINDOWS[1])] | None
    recall: bool | None
    constraints: Annotated[list[ConstraintText | RunConstraint], Field(max_length=MOST_IN_FORCE)] | None


@dataclass(frozen=True, slots=True)
class TurnMetadata:
    """Metadata for the run's turn, under the names of `run.metadata`.

    Attributes:
        task_context, workspace_context: `""` for none and for a blank one.
        thinking_rounds: ascending by their numbers, without duplicates.
        summary_detail_level: None for that of the settings.
    """

    task_context: str = ""
    workspace_context: str = ""
    thinking_rounds: tuple[ThinkingRound, ...] = ()
    summary_detail_level: Level | None = None


class BuildRequest(NamedTuple):
    """A request that can be built.

    Attributes:
        request_id: the id of the request's message.
        human: the run's first HUMAN message that says something.
        place: where it is in the request, such as `run.history[0]`.
        current_input: its text, with words for images and the like.
        media: those, in their order.
        later: the run's messages after it; with any, the request is a continuation (contract §4.6).
        user_profile: the profile in the request; None for the stored one.
        moment: the run's own time; None when none or unreadable.
        timezone_offset: minutes west of UTC.
        agent: whose context it is.
        state: the parts of the session's state in the request.
        context_window: tokens of the model's window; None for those of the settings.
        after: ids of the owner's messages that the requester has sent before, and that the context is to show.
        notes: on ignored metadata, for the manifest.
        recall: whether the context has `[RECALL]`; None for what the settings say.
        constraints: those that the request names for its run.
        origin: where the run belongs: to a sub-agent also where only its input is marked as internal to one.
    """

    request_id: str
    owner_key: str
    run_id: str
    session_id: str
    layout: str
    form: str
    human: Message
    place: str
    current_input: str
    later: tuple[Message, ...]
    user_profile: Mapping[str, Any] | None
    moment: datetime | None
    timezone_offset: int
    agent: Agent
    state: SessionState
    turn: TurnMetadata
    context_window: int | None
    after: tuple[str, ...]
    notes: tuple[str, ...]
    origin: RunOrigin
    media: tuple[Media, ...] = ()
    recall: bool | None = None
    constraints: tuple[Constraint, ...] = ()

    @property
    def continuation(self) -> bool:
        """Whether the run has gone on since its human input."""
        return bool(self.later)


class Deadline(NamedTuple):
    """When an answer is needed.

    Attributes:
        allowed_ms: how long the requester waits, in milliseconds from the request.
        ends_at: when the build has to end, by `anyio.current_time()`.
    """

    allowed_ms: int
    ends_at: float

    @property
    def left_s(self) -> float:
        """Seconds that are left; negative where it has passed."""
        return self.ends_at - anyio.current_time()

    def exceeded(self) -> RequestError:
        """The error of a deadline that has passed."""
        reason = f"metadata.deadline_ms: the {self.allowed_ms} ms have passed"
        return RequestError(ErrorCode.DEADLINE_EXCEEDED, reason)


def reply_suffix(message: Message) -> str:
    """`.<reply_to>` for the response topic, `""` where the request names none; INVALID_REQUEST for a malformed one."""
    reply_to = message.metadata.get("reply_to")
    if reply_to is None:
        return ""
    if not isinstance(reply_to, str) or not REPLY_TO.fullmatch(reply_to):
        raise invalid_request("metadata.reply_to: 1 to 64 letters, digits, '.', '_' or '-' are allowed")
    return f".{reply_to}"


def deadline_ms(message: Message, default: int) -> int:
    """How long the requester waits, in milliseconds; INVALID_REQUEST outside of `DEADLINE_MS`."""
    value = _given(message.metadata, "deadline_ms", default)
    low, high = DEADLINE_MS
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise invalid_request(f"metadata.deadline_ms: a number of milliseconds from {low} to {high} is allowed")
    return int(value)


def read_request(message: Message, *, default_layout: str = "dialogue") -> BuildRequest:
    """The request in the envelope `message`; `default_layout` is that of a request that names none.

    RequestError for an unusable one, with the code of contract §1.4 that fits, naming the place.
    """
    run = _read_run(message)
    metadata = run.metadata
    layout = _given(metadata, "layout", default_layout)
    if layout not in LAYOUTS:
        raise RequestError(ErrorCode.UNKNOWN_LAYOUT, unknown_value("run.metadata.layout", layout, LAYOUTS))
    form = _given(metadata, "format", DEFAULT_FORMAT)
    if not isinstance(form, str) or form not in FORMATS:
        raise invalid_request(unknown_value("run.metadata.format", form, FORMATS))
    index = _input_index(run)
    human = run.history[index]
    given = _read_input(human.content, index)
    agent, state, notes = _read_agency(metadata, strictly=layout == "agent")
    turn, turn_notes = read_turn_metadata(metadata, layout)
    notes += turn_notes
    if index:
        notes.append(f"run.history[:{index}]: before the input, so it is not shown")
    moment, offset = _read_clock(metadata, notes)
    session_id = _read_session(metadata)
    sub_agent = named_agent(human.metadata) if agent.sub_agent is None else agent.sub_agent
    return BuildRequest(
        request_id=message.id,
        owner_key=run.owner_key,
        run_id=run.id,
        session_id=session_id,
        layout=layout,
        form=form,
        human=human,
        place=f"run.history[{index}]",
        current_input=given.text,
        later=tuple(run.history[index + 1 :]),
        user_profile=_read_profile(metadata, run.owner_key),
        moment=moment,
        timezone_offset=offset,
        agent=agent,
        state=state,
        turn=turn,
        context_window=_read_window(metadata),
        after=_read_after(message.metadata),
        notes=tuple(notes),
        origin=RunOrigin(session_id, sub_agent),
        media=given.media,
        recall=_read_recall(metadata),
        constraints=_read_constraints(metadata, human, session_id),
    )


def read_history_size(profile: Mapping[str, Any] | None, default: int) -> tuple[int, list[str]]:
    """The number of messages that an owner's profile asks for (contract §4.3), and a note where it is not granted.

    `auto` asks for as many as are ever read: a context shows those that have room.
    """
    overrides = profile.get("config_overrides") if profile else None
    wanted = overrides.get("history_context_size") if isinstance(overrides, Mapping) else None
    if wanted is None:
        return default, []
    low, high = HISTORY_SIZES
    where = "user_profile.config_overrides.history_context_size"
    number = high if wanted == AUTO else _whole(wanted)
    if number is None:
        return default, [f"{where}: a whole number from {low} to {high}, or {AUTO}, is allowed, {default} is used"]
    size = min(max(number, low), high)
    return size, [] if size == number else [f"{where}: {low} to {high} are allowed, {size} is used"]


def _whole(value: Any) -> int | None:
    """A whole number, which JavaScript may have written as a float; None for anything else."""
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return int(value) if is_whole and not isinstance(value, bool) else None


def _input_index(run: Run) -> int:
    """The place of the run's input."""
    humans = [index for index, item in enumerate(run.history) if item.role is Role.HUMAN]
    if not humans:
        raise invalid_request("run.history: a message of role HUMAN is needed")
    return next((index for index in humans if not _is_results(run.history[index])), humans[0])


def _is_results(message: Message) -> bool:
    """Whether these are results of tools alone, which may come under a human's name."""
    return all(row["role"] == Role.TOOL.value for row in native(row_of(message)))


def _read_input(content: Any, index: int) -> Input:
    where = f"run.history[{index}].content"
    said = Input("") if content in (None, []) else read_input(content)
    if said is None:
        raise invalid_request(f'{where}: a text, or a list of parts such as {{"type": "text", …}}, is needed')
    # Canonical first: a text of invisible characters alone is none.
    if not canonical(said.text).strip():
        raise RequestError(ErrorCode.EMPTY_INPUT, f"{where}: is empty")
    if len(said.text) > MAX_INPUT_CHARS:
        reason = f"{where}: {len(said.text)} characters, at most {MAX_INPUT_CHARS} are allowed"
        raise RequestError(ErrorCode.PAYLOAD_TOO_LARGE, reason)
    return said


def _read_session(metadata: Mapping[str, Any]) -> str:
    try:
        return read_session_id(metadata, "run.metadata.session_id")
    except ValueError as error:
        raise invalid_request(str(error)) from None


def _read_window(metadata: Mapping[str, Any]) -> int | None:
    window = metadata.get("context_window")
    if window is None:
        return None
    low, high = CONTEXT_WINDOWS
    number = _whole(window)
    if number is None or not low <= number <= high:
        raise invalid_request(f"run.metadata.context_window: a whole number of tokens from {low} to {high} is needed")
    return number


def _read_recall(metadata: Mapping[str, Any]) -> bool | None:
    wanted = metadata.get("recall")
    if wanted is None or isinstance(wanted, bool):
        return wanted
    raise invalid_request("run.metadata.recall: true or false is allowed")


def _read_constraints(metadata: Mapping[str, Any], human: Message, session_id: str) -> tuple[Constraint, ...]:
    given = metadata.get("constraints")
    if given in (None, []):
        return ()
    target = Target(human.owner_key, session_id, human.run_id)
    try:
        read = read_constraints(
            given,
            "run.metadata.constraints",
            target,
            at=human.timestamp,
            source_message_id=human.id,
            default_scope="run",
            scopes=("run",),
        )
    except ValueError as error:
        raise invalid_request(str(error)) from None
    return tuple(read)


def _read_after(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    ids = _given(metadata, "after", [])
    if not isinstance(ids, list) or len(ids) > MOST_AFTER or not all(isinstance(each, str) for each in ids):
        raise invalid_request(f"metadata.after: a list of at most {MOST_AFTER} message ids is allowed")
    return tuple(ids)


def _read_agency(metadata: Mapping[str, Any], *, strictly: bool) -> tuple[Agent, SessionState, list[str]]:
    """The agent and the parts of the session's state in the request; with notes on faulty ones if not `strictly`."""
    agent, state = MAIN, _NO_STATE
    notes: list[str] = []
    if metadata.get("agent") is None and metadata.get("state") is None:
        return agent, state, notes
    try:
        agent, notes = read_agent(metadata)
        state = read_state(_given(metadata, "state", {}), "run.metadata.state")
    except RequestError as error:
        if strictly:
            raise
        notes = [f"{error.message}; it was passed over"]
    except ValueError as error:
        if strictly:
            raise invalid_request(str(error)) from None
        notes = [*notes, f"{error}; it was passed over"]
    return agent, state, notes


def _read_profile(metadata: Mapping[str, Any], owner_key: str) -> Mapping[str, Any] | None:
    profile = metadata.get("user_profile")
    if profile is None:
        return None
    if not isinstance(profile, dict):
        raise invalid_request("run.metadata.user_profile: a JSON object is needed")
    if profile.get("public_key") not in (None, "", owner_key):
        raise owner_mismatch("run.metadata.user_profile.public_key")
    return profile


def _read_clock(metadata: Mapping[str, Any], notes: list[str]) -> tuple[datetime | None, int]:
    timestamp = metadata.get("client_timestamp_utc")
    moment = parse_moment(timestamp) if timestamp else None
    if timestamp and moment is None:
        notes.append("client_timestamp_utc: unreadable, so there is no <current_time>")
    given = metadata.get("client_timezone_offset")
    offset = 0 if given in (None, "") else parse_offset(given)
    if offset is None:
        notes.append("client_timezone_offset: unreadable or beyond 14 hours, counted as 0")
    return moment, offset or 0


def _given(metadata: Mapping[str, Any], key: str, default: Any) -> Any:
    """The value under `key`; the default also for `null`."""
    value = metadata.get(key)
    return default if value is None else value


def _read_run(message: Message) -> Run:
    """The run in `message`, its messages with the run's id and with ids and times of their own."""
    if not isinstance(message.content, dict):
        raise invalid_request("content: the run, a JSON object, is needed")
    try:
        run = _RUN.validate_python({"id": message.run_id, **message.content, "history": _identified(message)})
    except ValidationError as error:
        raise invalid_request(explain(error, "run")) from None
    if run.owner_key != message.owner_key:
        raise owner_mismatch("run.owner_key")
    for index, item in enumerate(run.history):
        if item.owner_key != run.owner_key:
            raise owner_mismatch(f"run.history[{index}].owner_key")
    if run.id != message.run_id:
        raise invalid_request("run.id: is not the run_id of the envelope")
    # Rows of a run are found under its id, whatever id its messages name.
    history = [item if item.run_id == run.id else item.model_copy(update={"run_id": run.id}) for item in run.history]
    return run.model_copy(update={"history": history})


def _identified(message: Message) -> Any:
    """The run's history, with id, run, owner and time for every message that has none, as other systems' have.

    The ids derive from the request, so that they are the same each time and the message is recorded once.
    """
    history = message.content.get("history", [])
    if not isinstance(history, list):
        return history
    known = {"run_id": message.run_id, "owner_key": message.owner_key, "timestamp": message.timestamp}
    return [
        _named(item, message.run_id, index, known) if isinstance(item, dict) else item
        for index, item in enumerate(history)
    ]


def _named(item: dict[str, Any], run_id: str, index: int, known: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in item.items() if name not in _NAMED or value is not None}
    return {"id": _derived_id(run_id, index), **known, **given}


def _derived_id(run_id: str, index: int) -> str:
    return f"msg_{hashlib.sha256(f'{run_id}/{index}'.encode()).hexdigest()[:32]}"


def read_turn_metadata(metadata: Mapping[str, Any], layout: str) -> tuple[TurnMetadata, list[str]]:
    """The metadata for the run's turn, and notes on faulty keys that the layout does not show."""
    notes: list[str] = []
    given: dict[str, Any] = {}
    for key, read in _READERS.items():
        if metadata.get(key) is None:
            continue
        try:
            given[key] = read(metadata[key], f"run.metadata.{key}")
        except RequestError as error:
            if key in _SHOWN.get(layout, ()):
                raise
            notes.append(f"{error.message}; it was passed over")
    return TurnMetadata(**given), notes


def _read_goal(value: Any, where: str) -> str:
    goal = _read_text(value, where)
    if len(goal) > MAX_GOAL_CHARS:
        raise invalid_request(f"{where}: {len(goal)} characters, at most {MAX_GOAL_CHARS} are allowed")
    return goal


def _read_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise invalid_request(f"{where}: a text is needed")
    return value if canonical(value).strip() else ""


def _read_rounds(value: Any, where: str) -> tuple[ThinkingRound, ...]:
    if not isinstance(value, list):
        raise invalid_request(f"{where}: a list is needed")
    if len(value) > MOST_ROUNDS:
        raise invalid_request(f"{where}: {len(value)} rounds, at most {MOST_ROUNDS} are allowed")
    rounds: list[ThinkingRound] = []
    for index, item in enumerate(value):
        read = _read_round(item, f"{where}[{index}]")
        if rounds and read.round_number <= rounds[-1].round_number:
            raise invalid_request(
                f"{where}[{index}].round_number: a larger one than that of the round before is needed"
            )
        rounds.append(read)
    return tuple(rounds)


def _read_round(value: Any, where: str) -> ThinkingRound:
    if not isinstance(value, Mapping):
        raise invalid_request(f"{where}: a JSON object is needed")
    if not isinstance(value.get("content"), str):
        raise invalid_request(f"{where}.content: a text is needed")
    used = value.get("tokens_used")
    return ThinkingRound(
        round_number=_read_number(value.get("round_number"), f"{where}.round_number", least=1),
        content=value["content"],
        tokens_used=0 if used is None else _read_number(used, f"{where}.tokens_used", least=0),
    )


def _read_number(value: Any, where: str, *, least: int) -> int:
    number = _whole(value)
    if number is None or not least <= number <= LARGEST_NUMBER:
        raise invalid_request(f"{where}: a whole number from {least} to {LARGEST_NUMBER} is needed")
    return number


def _read_level(value: Any, where: str) -> Level:
    level = next((known for known in LEVELS if known == value), None)
    if level is None:
        raise invalid_request(unknown_value(where, value, LEVELS))
    return level


_READERS: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    "task_context": _read_goal,
    "workspace_context": _read_text,
    "thinking_rounds": _read_rounds,
    "summary_detail_level": _read_level,
}
# The keys that each layout shows or follows.
_SHOWN: Final[Mapping[str, frozenset[str]]] = {
    "agent": frozenset({"task_context", "summary_detail_level"}),
    "thinking": frozenset(_READERS),
}
