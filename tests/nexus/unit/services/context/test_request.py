"""What a request may ask, and what is said when it asks for something else (contract §1.3, §1.4)."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.core.errors import ErrorCode, RequestError
from nexus.core.models import Message, Role
from nexus.core.ports import RunOrigin
from nexus.services.context.request import BuildRequest, deadline_ms, read_history_size, read_request, reply_suffix
from nexus.services.history.rows import MAIN, Agent
from nexus.services.session_state.state import SessionState, Todo, TodoStatus

HUMAN: dict[str, Any] = {
    "id": "msg_h",
    "run_id": "run_1",
    "owner_key": "ada",
    "role": "HUMAN",
    "content": "hello",
    "timestamp": "2025-12-10T08:00:00Z",
}


def envelope(
    metadata: Any = None, *, history: Any = None, envelope_metadata: dict[str, Any] | None = None, **run: Any
) -> Message:
    """A request with this metadata and history in its run."""
    content = {
        "id": "run_1",
        "owner_key": "ada",
        "history": [HUMAN] if history is None else history,
        "metadata": metadata or {},
    } | run
    return Message(
        id="msg_1",
        run_id="run_1",
        owner_key="ada",
        role=Role.HUMAN,
        content=content,
        metadata=envelope_metadata or {},
    )


def asking(content: Any) -> Message:
    """A request whose input has this content."""
    return envelope(history=[{**HUMAN, "content": content}])


def read(metadata: Any = None, **run: Any) -> BuildRequest:
    """The request that was read."""
    return read_request(envelope(metadata, **run))


def refused(message: Message) -> tuple[ErrorCode, str]:
    """Code and message of the refusal."""
    with pytest.raises(RequestError) as caught:
        read_request(message)
    return caught.value.code, caught.value.message


def test_the_defaults() -> None:
    """A request that names nothing but its run."""
    request = read()
    assert (request.request_id, request.owner_key, request.run_id) == ("msg_1", "ada", "run_1")
    assert (request.session_id, request.layout, request.current_input) == ("default", "dialogue", "hello")
    assert (request.later, request.continuation, request.user_profile) == ((), False, None)
    assert (request.moment, request.timezone_offset, request.notes) == (None, 0, ())


@pytest.mark.parametrize(
    "key",
    [
        "layout",
        "session_id",
        "user_profile",
        "client_timestamp_utc",
        "client_timezone_offset",
        "format",
        "agent",
        "state",
        "task_context",
        "workspace_context",
        "thinking_rounds",
        "summary_detail_level",
    ],
)
def test_null_is_as_good_as_nothing(key: str) -> None:
    """A sender that writes every key gets the defaults for those without a value."""
    assert read({key: None}) == read()


def test_what_is_given_counts() -> None:
    """Each key of the contract's table."""
    profile = {"public_key": "ada", "config_overrides": {"history_context_size": 3}}
    request = read(
        {
            "layout": "dialogue",
            "session_id": "s1",
            "user_profile": profile,
            "client_timestamp_utc": "2025-12-10T08:00:00Z",
            "client_timezone_offset": -480,
            "format": "openai",
            "unknown": "ignored",
        }
    )
    assert (request.session_id, request.user_profile) == ("s1", profile)
    assert (request.moment, request.timezone_offset) == (datetime(2025, 12, 10, 8, tzinfo=UTC), -480)
    assert request.notes == ()


@pytest.mark.parametrize(
    ("metadata", "code", "said"),
    [
        (
            {"layout": "poem"},
            ErrorCode.UNKNOWN_LAYOUT,
            "run.metadata.layout: 'poem' is unknown; allowed: dialogue, agent, thinking",
        ),
        ({"layout": ""}, ErrorCode.UNKNOWN_LAYOUT, "run.metadata.layout: '' is unknown; allowed: dialogue"),
        ({"layout": ["a"]}, ErrorCode.UNKNOWN_LAYOUT, "run.metadata.layout: a JSON list is unknown; allowed: dialogue"),
        ({"layout": 10**4_000}, ErrorCode.UNKNOWN_LAYOUT, "run.metadata.layout: a JSON int is unknown"),
        ({"format": "xml"}, ErrorCode.INVALID_REQUEST, "run.metadata.format: 'xml' is unknown; allowed: openai, anth"),
        ({"format": "OpenAI"}, ErrorCode.INVALID_REQUEST, "run.metadata.format: 'OpenAI' is unknown; allowed: openai"),
        ({"format": []}, ErrorCode.INVALID_REQUEST, "run.metadata.format: a JSON list is unknown; allowed: openai"),
        ({"agent": "main"}, ErrorCode.INVALID_REQUEST, "run.metadata.agent: a JSON object is needed"),
        ({"agent": {"kind": "x"}}, ErrorCode.INVALID_REQUEST, "run.metadata.agent.kind: 'x' is unknown; allowed: main"),
        (
            {"state": []},
            ErrorCode.INVALID_REQUEST,
            "run.metadata.state: a JSON object is needed, with any of role, sub",
        ),
        (
            {"state": {"useful_info": ["a", {"text": "b", "created_at": "soon"}]}},
            ErrorCode.INVALID_REQUEST,
            "run.metadata.state.useful_info[1].created_at: a time in ISO 8601 is needed",
        ),
        ({"session_id": ""}, ErrorCode.INVALID_REQUEST, "run.metadata.session_id: a text of 1 to 256 characters"),
        ({"session_id": 5}, ErrorCode.INVALID_REQUEST, "run.metadata.session_id: a text of 1 to 256 characters"),
        ({"session_id": "s\ufffd"}, ErrorCode.INVALID_REQUEST, "run.metadata.session_id: NUL, U+FFFD and half a"),
        ({"session_id": "x" * 257}, ErrorCode.INVALID_REQUEST, "run.metadata.session_id: a text of 1 to 256"),
        ({"user_profile": "x"}, ErrorCode.INVALID_REQUEST, "run.metadata.user_profile: a JSON object is needed"),
        (
            {"user_profile": {"public_key": "bob"}},
            ErrorCode.OWNER_MISMATCH,
            "run.metadata.user_profile.public_key: is not",
        ),
    ],
)
def test_wrong_metadata(metadata: dict[str, Any], code: ErrorCode, said: str) -> None:
    """The place, what is wrong, and what is allowed."""
    # What is about agents is read strictly in their layout only.
    layout = {"layout": "agent"} if {"agent", "state"} & set(metadata) else {}
    found, message = refused(envelope(metadata | layout))
    assert found is code
    assert message.startswith(said)


@pytest.mark.parametrize(
    ("metadata", "note"),
    [
        ({"agent": "assistant-1"}, "run.metadata.agent: a JSON object is needed; it was passed over"),
        ({"state": "IDLE"}, "run.metadata.state: a JSON object is needed, with any of"),
    ],
)
def test_what_is_of_no_use_may_be_wrong(metadata: dict[str, Any], note: str) -> None:
    """The dialogue layout knows no agents: other systems use these names for something else."""
    read = read_request(envelope(metadata))
    assert (read.agent, read.state) == (MAIN, SessionState())
    assert len(read.notes) == 1
    assert read.notes[0].startswith(note)
    assert read.notes[0].endswith("; it was passed over")


def test_a_long_wrong_layout_is_not_repeated_whole() -> None:
    """Sixty characters are enough to recognise it."""
    assert len(refused(envelope({"layout": "x" * 10_000}))[1]) < 150


class TestInput:
    """The text of the first HUMAN message."""

    @pytest.mark.parametrize("history", [[], [{**HUMAN, "role": "AI"}], [{**HUMAN, "role": "SYSTEM"}]])
    def test_nobody_spoke(self, history: list[Any]) -> None:
        """A run without a human input cannot be built."""
        assert refused(envelope(history=history)) == (
            ErrorCode.INVALID_REQUEST,
            "run.history: a message of role HUMAN is needed",
        )

    def test_no_history_at_all(self) -> None:
        """The same for a run that has none."""
        message = envelope()
        del message.content["history"]
        assert refused(message)[1] == "run.history: a message of role HUMAN is needed"

    @pytest.mark.parametrize(
        "content", [None, "", " \n\t", "\u200b\u2060\ufeff", [], {}, [""], [{"type": "text", "text": " "}]], ids=repr
    )
    def test_empty(self, content: Any) -> None:
        """Nothing, blanks, or characters that nobody sees."""
        assert refused(asking(content)) == (ErrorCode.EMPTY_INPUT, "run.history[0].content: is empty")

    @pytest.mark.parametrize("content", [5, 0, True, {"q": "x"}, [5], [[1]], [{"q": "x"}]])
    def test_no_text(self, content: Any) -> None:
        """What is no text is not guessed at."""
        code, message = refused(asking(content))
        assert (code, message.split(",")[0]) == (ErrorCode.INVALID_REQUEST, "run.history[0].content: a text")

    @pytest.mark.parametrize(
        ("content", "text"),
        [
            ("hello", "hello"),
            (" hello ", " hello "),
            ([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "one\ntwo"),
            (["one", {"text": "two"}], "one\ntwo"),
            ({"text": "x"}, "x"),
            (
                {"role": "user", "parts": [{"text": "x"}, {"inlineData": {"mimeType": "image/png"}}]},
                "x\n[image: image/png]",
            ),
            ([{"type": "image_url", "image_url": {}}], "[image]"),
            ([{"type": "tool_result", "tool_use_id": "c", "content": "42"}, {"type": "text", "text": "So?"}], "So?"),
        ],
    )
    def test_a_text(self, content: Any, text: str) -> None:
        """As it is, and the parts of a list one under the other."""
        assert read_request(asking(content)).current_input == text

    def test_its_length(self) -> None:
        """32,000 characters are allowed, whatever they are in bytes."""
        assert len(read_request(asking("你" * 32_000)).current_input) == 32_000
        assert refused(asking("你" * 32_001)) == (
            ErrorCode.PAYLOAD_TOO_LARGE,
            "run.history[0].content: 32001 characters, at most 32000 are allowed",
        )

    def test_its_place_is_named(self) -> None:
        """The first HUMAN message need not be the first message."""
        history = [{**HUMAN, "role": "SYSTEM"}, {**HUMAN, "content": ""}, {**HUMAN, "content": "later"}]
        assert refused(envelope(history=history))[1] == "run.history[1].content: is empty"

    def test_a_result_under_a_humans_name_is_none(self) -> None:
        """As Anthropic and Gemini send them."""
        result = {**HUMAN, "content": [{"type": "tool_result", "tool_use_id": "c", "content": "42"}]}
        request = read(history=[result, HUMAN, result])
        assert request.current_input == HUMAN["content"]
        assert len(request.later) == 1

    def test_what_follows_is_a_continuation(self) -> None:
        """Messages after the input are the run's own; those before it, such as a greeting, are only noted."""
        system, answer = {**HUMAN, "role": "SYSTEM"}, {**HUMAN, "id": "msg_a", "role": "AI"}
        request = read(history=[system, HUMAN, answer])
        assert request.continuation
        assert [message.id for message in request.later] == ["msg_a"]
        assert request.notes == ("run.history[:1]: before the input, so it is not shown",)
        assert not read(history=[answer, HUMAN]).continuation
        assert read(history=[HUMAN, answer]).notes == ()


class TestIdentity:
    """Who asks, for which run."""

    @pytest.mark.parametrize(
        ("message", "where"),
        [
            (envelope(owner_key="bob"), "run.owner_key"),
            (envelope(history=[{**HUMAN, "owner_key": "bob"}]), "run.history[0].owner_key"),
            (envelope(history=[HUMAN, {**HUMAN, "role": "AI", "owner_key": "bob"}]), "run.history[1].owner_key"),
            (envelope({"user_profile": {"public_key": 5}}), "run.metadata.user_profile.public_key"),
        ],
    )
    def test_one_owner_throughout(self, message: Message, where: str) -> None:
        """Envelope, run, every message and the profile are of one owner; no other owner is named."""
        assert refused(message) == (ErrorCode.OWNER_MISMATCH, f"{where}: is not the owner_key of the envelope")

    @pytest.mark.parametrize("profile", [{}, {"public_key": ""}, {"public_key": None}, {"public_key": "ada"}])
    def test_a_profile_without_a_key_is_the_owners(self, profile: dict[str, Any]) -> None:
        """A profile need not say whose it is."""
        assert read({"user_profile": profile}).user_profile == profile

    def test_the_run_is_that_of_the_envelope(self) -> None:
        """Another id is refused, a missing one is the envelope's."""
        code, message = refused(envelope(id="run_2"))
        assert (code, message) == (ErrorCode.INVALID_REQUEST, "run.id: is not the run_id of the envelope")
        without = envelope()
        del without.content["id"]
        assert read_request(without).run_id == "run_1"

    def test_messages_are_of_their_run(self) -> None:
        """The input is recorded under the run that it came in, whatever run it names."""
        assert read(history=[{**HUMAN, "run_id": "run_of_somebody"}]).human.run_id == "run_1"

    def test_messages_without_an_id_always_get_the_same(self) -> None:
        """So that the input is recorded once, however often and wherever the request is read."""
        nameless = {key: value for key, value in HUMAN.items() if key not in {"id", "timestamp"}}
        message = envelope(history=[nameless, nameless])
        first, again = read_request(message), read_request(message)
        assert first == again
        assert first.human.timestamp == message.timestamp
        assert first.human.id != first.later[0].id
        assert first.human.id != read(history=[HUMAN, nameless]).later[0].id

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (None, "content: the run, a JSON object, is needed"),
            ("text", "content: the run, a JSON object, is needed"),
            ([], "content: the run, a JSON object, is needed"),
            ({}, "run.owner_key: Field required"),
            ({"owner_key": "ada", "history": "x"}, "run.history: Input should be a valid list"),
            ({"owner_key": "ada", "history": {}}, "run.history: Input should be a valid list"),
            ({"owner_key": "ada", "history": None}, "run.history: Input should be a valid list"),
            ({"owner_key": "ada", "history": ["x"]}, "run.history[0]: Input should be a valid dictionary"),
            (
                {"owner_key": "ada", "history": [{**HUMAN, "role": "GOD"}]},
                "run.history[0].role: Input should be 'HUMAN'",
            ),
            ({"owner_key": "ada", "status": 7}, "run.status"),
            ({"owner_key": "ada", "metadata": []}, "run.metadata: Input should be a valid dictionary"),
        ],
    )
    def test_what_is_no_run(self, content: Any, said: str) -> None:
        """The place is named from the run on."""
        message = Message(id="msg_1", run_id="run_1", owner_key="ada", role=Role.HUMAN, content=content)
        code, text = refused(message)
        assert code is ErrorCode.INVALID_REQUEST
        assert text.startswith(said)


class TestClock:
    """The client's time and offset never make a request fail."""

    @pytest.mark.parametrize(
        ("offset", "minutes"),
        [(-480, -480), ("-480", -480), (480.0, 480), (" 60 ", 60), (0, 0), ("0", 0), (840, 840), (-840, -840), ("", 0)],
    )
    def test_an_offset(self, offset: Any, minutes: int) -> None:
        """A number or a text, up to fourteen hours."""
        request = read({"client_timezone_offset": offset})
        assert (request.timezone_offset, request.notes) == (minutes, ())

    @pytest.mark.parametrize("offset", ["west", 841, -841, 1.5, True, [], {}, "1e400", 10**4_000, "nan"])
    def test_an_offset_that_is_none(self, offset: Any) -> None:
        """It counts as 0 and is noted."""
        request = read({"client_timezone_offset": offset})
        note = "client_timezone_offset: unreadable or beyond 14 hours, counted as 0"
        assert (request.timezone_offset, request.notes) == (0, (note,))

    @pytest.mark.parametrize("timestamp", ["yesterday", "5", [], {"a": 1}, "2025-13-01", " ", "0001-01-01T00:00+14:00"])
    def test_a_timestamp_that_is_none(self, timestamp: Any) -> None:
        """There is no time then, and a note; nothing at all is no fault."""
        request = read({"client_timestamp_utc": timestamp})
        noted = ("client_timestamp_utc: unreadable, so there is no <current_time>",) if timestamp else ()
        assert (request.moment, request.notes) == (None, noted)


class TestEnvelope:
    """What stands beside the run: where the answer goes and until when it is of use."""

    @pytest.mark.parametrize("reply_to", ["a", "client-1.x_Y", "x" * 64, "..", "-"])
    def test_reply_to(self, reply_to: str) -> None:
        """It becomes the last part of the topic."""
        assert reply_suffix(envelope(envelope_metadata={"reply_to": reply_to})) == f".{reply_to}"

    def test_no_reply_to(self) -> None:
        """The answer then goes to the common topic."""
        assert reply_suffix(envelope()) == reply_suffix(envelope(envelope_metadata={"reply_to": None})) == ""

    @pytest.mark.parametrize("reply_to", ["", "x" * 65, "a b", "a*", "a/b", "é", "a\n", 5, [], "a\u200b"])
    def test_a_wrong_reply_to(self, reply_to: Any) -> None:
        """Nothing that could be another topic or a pattern."""
        with pytest.raises(
            RequestError, match=r"metadata.reply_to: 1 to 64 letters, digits, '.', '_' or '-' are allowed"
        ):
            reply_suffix(envelope(envelope_metadata={"reply_to": reply_to}))

    def test_after(self) -> None:
        """What the requester has sent before; nothing where it names nothing."""
        assert read_request(envelope(envelope_metadata={"after": ["m1", "🌧"]})).after == ("m1", "🌧")
        assert read_request(envelope()).after == read_request(envelope(envelope_metadata={"after": None})).after == ()

    @pytest.mark.parametrize("after", ["m1", {}, [5], [None], ["m"] * 101, 0])
    def test_a_wrong_after(self, after: Any) -> None:
        """Neither a number of ids without an end nor anything else."""
        with pytest.raises(RequestError, match=r"metadata\.after: a list of at most 100 message ids is allowed"):
            read_request(envelope(envelope_metadata={"after": after}))

    @pytest.mark.parametrize(("given_ms", "ms"), [(100, 100), (60_000, 60_000), (250.7, 250), (None, 5_000)])
    def test_a_deadline(self, given_ms: Any, ms: int) -> None:
        """From a tenth of a second to a minute."""
        assert deadline_ms(envelope(envelope_metadata={"deadline_ms": given_ms}), 5_000) == ms
        assert deadline_ms(envelope(), 700) == 700

    @pytest.mark.parametrize("given_ms", [99, 60_001, 0, -1, "500", True, [], 10**4_000])
    def test_a_wrong_deadline(self, given_ms: Any) -> None:
        """The limits are named."""
        with pytest.raises(RequestError, match=r"metadata.deadline_ms: a number of milliseconds from 100 to 60000"):
            deadline_ms(envelope(envelope_metadata={"deadline_ms": given_ms}), 5_000)


class TestAgent:
    """What the agent layout is asked with."""

    @pytest.mark.parametrize("layout", ["dialogue", "agent", "thinking"])
    def test_layouts(self, layout: str) -> None:
        """Each can be asked for, and may be the default."""
        assert read({"layout": layout}).layout == layout
        assert read_request(envelope(), default_layout=layout).layout == layout

    def test_an_agent_and_a_state(self) -> None:
        """Are read as values; the run then belongs to the agent in that session."""
        agent = {"kind": "sub", "id": "reviewer", "role": "You review.", "task_prompt": "Review."}
        state = {"role": "You lead.", "todos": [{"id": "1", "text": "a", "status": "in_progress"}]}
        request = read({"layout": "agent", "session_id": "s1", "agent": agent, "state": state})
        assert request.agent == Agent("sub", "reviewer", "You review.", "", "Review.")
        assert request.state == SessionState(role="You lead.", todos=(Todo("1", "a", TodoStatus.IN_PROGRESS),))
        assert request.origin == RunOrigin("s1", "reviewer")
        assert request.notes == ()

    def test_the_main_agents_run(self) -> None:
        """Is nobody's in particular, whatever the agent's id is."""
        assert read({"agent": {"kind": "main", "id": "boss"}}).origin == RunOrigin("default", None)
        assert read({"agent": {"kind": "sub"}}).origin == RunOrigin("default", "")

    def test_what_is_of_no_use_is_noted(self) -> None:
        """In the manifest's notes."""
        notes = read({"agent": {"task_prompt": "x"}, "client_timezone_offset": "?"}).notes
        assert [note.split(":")[0] for note in notes] == ["run.metadata.agent.task_prompt", "client_timezone_offset"]


class TestHistorySize:
    """How many messages an owner wants to be shown."""

    @pytest.mark.parametrize(
        "profile", [None, {}, {"config_overrides": None}, {"config_overrides": {}}, {"config_overrides": 5}]
    )
    def test_no_wish(self, profile: Any) -> None:
        """The default."""
        assert read_history_size(profile, 20) == (20, [])

    @pytest.mark.parametrize(("wanted", "size"), [(1, 1), (200, 200), (7, 7), (7.0, 7), ("auto", 200)])
    def test_a_wish(self, wanted: Any, size: int) -> None:
        """As wanted, a whole number in whatever type."""
        assert read_history_size({"config_overrides": {"history_context_size": wanted}}, 20) == (size, [])

    @pytest.mark.parametrize(("wanted", "size"), [(0, 1), (-5, 1), (201, 200), (10**4_000, 200), (1e300, 200)])
    def test_a_wish_beyond_the_limits(self, wanted: Any, size: int) -> None:
        """The nearest limit, and a note."""
        found, notes = read_history_size({"config_overrides": {"history_context_size": wanted}}, 20)
        assert found == size
        assert notes == [f"user_profile.config_overrides.history_context_size: 1 to 200 are allowed, {size} is used"]

    @pytest.mark.parametrize("wanted", ["many", "7", "Auto", True, [], 7.5, float("inf"), float("nan")])
    def test_nonsense(self, wanted: Any) -> None:
        """The default, and a note."""
        found, notes = read_history_size({"config_overrides": {"history_context_size": wanted}}, 20)
        assert found == 20
        allowed = "a whole number from 1 to 200, or auto, is allowed, 20 is used"
        assert notes == [f"user_profile.config_overrides.history_context_size: {allowed}"]


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["HUMAN", "ada", "run_1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "id",
                    "owner_key",
                    "history",
                    "metadata",
                    "role",
                    "content",
                    "run_id",
                    "layout",
                    "text",
                    "agent",
                    "state",
                    "task_context",
                    "thinking_rounds",
                    "round_number",
                    "summary_detail_level",
                ]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=15,
)


@given(_VALUES)
def test_any_content_is_a_request_or_a_request_error(content: Any) -> None:
    """No other exception, whatever the run is."""
    message = Message(id="msg_1", run_id="run_1", owner_key="ada", role=Role.HUMAN, content=content)
    with suppress(RequestError):
        assert read_request(message).owner_key == "ada"


class TestWindow:
    """How many tokens the model takes."""

    @pytest.mark.parametrize(
        ("wanted", "window"), [(None, None), (1_000, 1_000), (32_000.0, 32_000), (10_000_000, 10_000_000)]
    )
    @pytest.mark.parametrize("layout", ["dialogue", "agent", "thinking"])
    def test_a_window(self, wanted: Any, window: int | None, layout: str) -> None:
        """A whole number in every layout; JavaScript writes it as a float."""
        assert read({"context_window": wanted, "layout": layout}).context_window == window

    @pytest.mark.parametrize(
        "wanted", [0, -1, 999, 10_000_001, 1e300, 1_000.5, float("inf"), float("nan"), True, "32000", "", [], {}]
    )
    def test_no_window(self, wanted: Any) -> None:
        """Anything else is refused, and said what is allowed: a context of another length would be of no use."""
        code, said = refused(envelope(metadata={"context_window": wanted}))
        assert code is ErrorCode.INVALID_REQUEST
        assert said == "run.metadata.context_window: a whole number of tokens from 1000 to 10000000 is needed"
