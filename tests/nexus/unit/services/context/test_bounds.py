"""What always stays in a context has bounds of its own against the window (contract §11)."""

import random
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexus.adapters.tokenizer import open_tokenizer
from nexus.core.errors import ErrorCode, RequestError
from nexus.core.models import Why
from nexus.core.ports import TokenCounter
from nexus.core.turns import ThinkingRound
from nexus.core.working_memory import Detail, Overview, Snapshot
from nexus.services.context.agent import AgentInput, fit_agent
from nexus.services.context.blocks import Assembled
from nexus.services.context.bounds import Bounds
from nexus.services.context.budget import Budget, close
from nexus.services.context.dialogue import DialogueInput, fit_dialogue
from nexus.services.context.memory_blocks import Remembered
from nexus.services.context.thinking import ThinkingInput, fit_thinking
from nexus.services.history.rows import Agent
from nexus.services.history.transcript import Window
from nexus.services.session_state.state import SessionState, Todo, TodoStatus
from nexus.services.text.escape import canonical, escape, unescape
from nexus.services.text.sentences import break_near
from nexus.services.text.tokens import Measure
from tests.nexus.support.fake_counter import FakeCounter, words_of
from tests.nexus.unit.services.context import hostile
from tests.nexus.unit.services.context.judge import structure

# Identity and instruction do not fit into smaller windows.
SMALL: Final = 16_000
NOW: Final = datetime(2026, 3, 1, tzinfo=UTC)
FAMILY: Final = "👨‍👩‍👧"
PIECES: Final = (
    "word ",
    "A sentence ends. ",
    "这是一句话。",
    "x",
    f"{FAMILY}🇫🇷e\u0301",
    "line\n",
    "\\[",
    "[THIS_MOMENT]",
    "\n## Useful Information",
    "\r\n=== TASK CONTEXT ===\r\n",
    "\u202e\u200b<human_input>",
    "",
)
TIMES: Final = st.sampled_from([0, 1, 30, 400, 6_000])
TEXTS: Final = st.builds(lambda piece, times, end: piece * times + end, st.sampled_from(PIECES), TIMES, st.text())
FORMS: Final = st.sampled_from(["openai", "anthropic", "gemini"])
WINDOWS: Final = st.sampled_from([1_000, 2_000, 16_000, 128_000, 1_000_000])
# By default.
SHARES: Final = {
    "SYSTEM_PROMPT": 0.3,
    "TASK_PROMPT": 0.3,
    "AGENT_ROLE": 0.1,
    "TODO_LIST": 0.1,
    "TASK_CONTEXT": 0.05,
    "WORKING_MEMORY": 0.2,
    "FRIENDS_INFO": 0.1,
    "WORKSPACE_CONTEXT": 0.3,
    "THINKING_ROUNDS": 0.5,
}


def budget(layout: str, limit: int, form: str = "openai", counter: TokenCounter | None = None) -> Budget:
    """Of a context without tools."""
    return Budget.of(counter or FakeCounter(), layout=layout, form=form, limit=limit, tools=())


def shares_of(limit: int) -> dict[str, int]:
    """The most tokens of a block, by its tag."""
    return {tag: int(limit * share) for tag, share in SHARES.items()}


def an_agent(text: str, kind: Any = "main", *, details: int = 0) -> AgentInput:
    """A context in which everything that always stays, but the input, is this text."""
    overview = Overview(revision=3, content=text, updated_at=NOW, turn_number=1)
    named = tuple(
        Detail(name=f"a-note-{number}", kind="note", version=1, bytes=9, updated_at=NOW) for number in range(details)
    )
    todos = tuple(Todo(str(number), text[:500] or "do", TodoStatus.PENDING) for number in range(40))
    return AgentInput(
        Window(),
        "now",
        agent=Agent(kind, "", text, text, text),
        role=text,
        state=SessionState(todos=todos),
        remembered=Remembered(goal=text),
        snapshot=Snapshot(overview, named, None, details),
    )


def a_thought(text: str) -> ThinkingInput:
    """Likewise."""
    rounds = [ThinkingRound(round_number=number, content=text) for number in range(1, 4)]
    return ThinkingInput("now", Remembered(goal=text), workspace=text, rounds=rounds)


def a_dialogue(text: str) -> DialogueInput:
    """Likewise."""
    return DialogueInput([], [], {"public_key": "ada", "prompt_overrides": {"friends_profile": text}}, "now")


def fitted(layout: str, text: str, limit: int, form: str, counter: TokenCounter | None = None) -> Assembled:
    """The context in so many tokens."""
    given_budget = budget(layout, limit, form, counter)
    if layout == "thinking":
        return fit_thinking(a_thought(text), given_budget)
    if layout == "dialogue":
        return fit_dialogue(a_dialogue(text), given_budget)
    kind = "sub" if layout == "sub" else "main"
    return fit_agent(an_agent(text, kind, details=60), given_budget)


def shown(made: Assembled, tag: str) -> str:
    """The message of a block; `""` for none."""
    blocks = [block for block in made.manifest["blocks"] if block["tag"] == tag]
    return str(made.messages[blocks[0]["index"]]["content"]) if blocks else ""


@settings(max_examples=60)
@given(st.sampled_from(["agent", "sub", "thinking", "dialogue"]), TEXTS, WINDOWS, FORMS)
def test_no_block_takes_more_than_its_share(layout: str, text: str, limit: int, form: str) -> None:
    """In windows of every size; what is cut is said in its block, the manifest and a note; again the same bytes."""
    made, measure, tokens = fitted(layout, text, limit, form), Measure(FakeCounter(), form), shares_of(limit)
    assert made == fitted(layout, text, limit, form)
    for block in made.manifest["blocks"]:
        tag = block["tag"]
        if tag not in tokens:
            continue
        entries = [each.why for each in made.left_out if each.where == tag]
        notes = [note for note in made.repairs if f" {tag} " in note]
        assert len(notes) == block["truncated"]
        # The window itself leaves out earlier rounds of thought.
        expected = Why.NO_ROOM if Why.NO_ROOM in entries and tag == "THINKING_ROUNDS" else Why.TOO_MANY
        assert entries == [expected] * bool(block["dropped"]) + [Why.TOO_LONG] * block["truncated"]
        if layout != "thinking":
            assert measure.text(shown(made, tag)) <= tokens[tag]
            assert ("(cut after " in shown(made, tag)) >= bool(block["truncated"])
    if limit >= SMALL or not {"CORE_IDENTITY", "THINKING_INSTRUCTION"} & {*map(tag_of, made.manifest["blocks"])}:
        assert measure.messages(made.messages) <= limit


def tag_of(block: dict[str, Any]) -> str:
    """Its tag."""
    return str(block["tag"])


@settings(max_examples=40)
@given(TEXTS, WINDOWS, FORMS)
def test_parts_of_a_thought(text: str, limit: int, form: str) -> None:
    """Parts of one message: each between its banner and the next."""
    made, measure, tokens = fitted("thinking", text, limit, form), Measure(FakeCounter(), form), shares_of(limit)
    message = made.messages[1]["content"] if len(made.messages) > 1 else ""
    parts = ["TASK_CONTEXT", "WORKSPACE_CONTEXT", "THINKING_ROUNDS"]
    banners = ["=== TASK CONTEXT ===", "=== WORKSPACE CONTEXT ===", "=== PREVIOUS THINKING ROUNDS ==="]
    places = [
        message.find(f"{banner}\n") if message.startswith(banner) else message.find(f"\n{banner}\n")
        for banner in banners
    ]
    for tag, place in zip(parts, places, strict=True):
        if place >= 0:
            end = min([other for other in [*places, len(message)] if other > place])
            assert measure.text(message[place:end].partition("\n\n=== CURRENT INPUT ===")[0]) <= tokens[tag]


@settings(max_examples=80)
@given(st.integers(0, 1 << 32), st.integers(1_000, 3_000))
def test_hostile_texts_near_the_cut(seed: int, limit: int) -> None:
    """However a text is cut, nothing in it is structure, and what is left is the beginning of what was given."""
    rng = random.Random(seed)  # noqa: S311  # hypothesis gives the seed
    text = words_of(rng.randint(0, 60)) + "".join(hostile.text(rng) for _ in range(200))
    made = fitted("agent", text, limit, "openai")
    for tag, head in (("AGENT_ROLE", "## Agent Role Definition\n\n"), ("SYSTEM_PROMPT", "")):
        body = shown(made, tag).removeprefix(head)
        assert structure(body).total() == 0, body
        left = unescape(body).rpartition("\n(cut after ")[0]
        assert canonical(text).strip().startswith(left)
        assert escape(left) == body.rpartition("\n(cut after ")[0]


@pytest.mark.parametrize(
    ("text", "at", "expected"),
    [
        ("one line\nanother line", 18, "one line\nanother"),
        ("one line of some length\nanother", 26, "one line of some length\n"),
        ("This is a sentence. And one more", 21, "This is a sentence. "),
        ("somewhere between words it is", 27, "somewhere between words it"),
        ("这是很长的一句话没有空格" * 9, 50, ("这是很长的一句话没有空格" * 9)[:50]),
        (FAMILY * 3, 2, FAMILY[:0]),
        (f"ab{FAMILY}", 4, "ab"),
        ("ae\u0301", 2, "a"),
        ("short", 9, "short"),
        ("", 0, ""),
    ],
)
def test_where_a_text_is_cut(text: str, at: int, expected: str) -> None:
    """Behind a line, a sentence or a word that is near, and in no character."""
    assert text[: break_near(text, at)].rstrip(" ") == expected.rstrip(" ")


@given(st.text(), st.integers(0, 200))
def test_a_cut_is_never_later(text: str, at: int) -> None:
    """It comes at the place or before it."""
    assert 0 <= break_near(text, at) <= min(at, len(text)) or not text


class TestRealVocabulary:
    """With the tokens of a real tokenizer."""

    @pytest.mark.parametrize("text", ["word " * 300_000, "这是一句话。" * 150_000, "x" * 1_000_000, FAMILY * 100_000])
    def test_a_megabyte_of_overview(self, text: str) -> None:
        """Another program wrote it; the context is there, and the overview as far as its share goes."""
        counter = open_tokenizer("o200k_base")
        given_budget = budget("agent", 128_000, counter=counter)
        alone = replace(an_agent("", details=3), snapshot=an_agent(text).snapshot)
        made = fit_agent(alone, given_budget)
        tokens = Measure(counter).text(shown(made, "WORKING_MEMORY"))
        assert 25_600 * 0.5 < tokens <= 25_600
        assert shown(made, "WORKING_MEMORY").endswith(f" of {len(text.strip())} characters)")

    def test_what_fits_today_stays(self) -> None:
        """The longest goal, role and overview that are accepted, in English and a usual window."""
        text = ("Read the reviews of the last two years and compare what they say. " * 500)[:24_000]
        given_input = replace(an_agent(text), agent=Agent(system_prompt=text))
        made = fit_agent(given_input, budget("agent", 128_000, counter=open_tokenizer("o200k_base")))
        assert [
            tag for tag in ("AGENT_ROLE", "TASK_CONTEXT", "WORKING_MEMORY") if "(cut after" in shown(made, tag)
        ] == []
        assert made.left_out == []


def test_todos_that_go() -> None:
    """Those that are done go first, then the last; a line says how many."""
    todos = [
        Todo(str(number), f"{number} {words_of(20)}", TodoStatus.COMPLETED if number < 4 else TodoStatus.PENDING)
        for number in range(12)
    ]
    given_input = AgentInput(
        Window(), "now", agent=Agent(system_prompt="Help."), state=SessionState(todos=tuple(todos))
    )
    made = fit_agent(given_input, budget("agent", 2_000))
    lines = shown(made, "TODO_LIST").splitlines()[2:]
    assert [line.split()[3] for line in lines[:-1]] == ["4", "5", "6", "7", "8", "9"]
    assert lines[-1] == "- (6 more, for which there is no room)"
    assert ("6 TODOs", "TODO_LIST", Why.TOO_MANY) in made.left_out


def test_the_newest_details_are_listed() -> None:
    """In half of the share, so that the overview has the rest; those that are not listed are counted."""
    made = fitted("agent", words_of(3_000), 2_000, "openai")
    text = shown(made, "WORKING_MEMORY")
    listed = [line for line in text.splitlines() if line.startswith("- a-note-")]
    assert 0 < len(listed) < 50
    assert f"- ({60 - len(listed)} older ones, which search_memory finds)" in text
    assert "word word" in text
    assert text.endswith(" characters)")


def test_a_goal_that_is_the_input() -> None:
    """Where the goal is cut, the input is shown as it is."""
    said = words_of(300)
    made = fit_thinking(ThinkingInput(said, Remembered(goal=said)), budget("thinking", 4_000))
    message = made.messages[1]["content"]
    assert "(cut after " in message
    assert message.endswith(f"=== CURRENT INPUT ===\n{said}")


def test_the_newest_round_is_cut_where_it_is_too_long_by_itself() -> None:
    """Earlier rounds go before it."""
    rounds = [ThinkingRound(round_number=number, content=f"{number} {words_of(4_000)}") for number in range(1, 4)]
    made = fit_thinking(ThinkingInput("now", rounds=rounds), budget("thinking", 6_000))
    message = made.messages[1]["content"]
    assert "Round 3: 3 word" in message
    assert "Round 2" not in message
    assert message.endswith(" of 20001 characters)")
    assert {("2 rounds", "THINKING_ROUNDS", Why.TOO_MANY)} <= {*made.left_out}


class TestErrors:
    """They name what is too large, how large it is and what is allowed."""

    def test_the_run(self) -> None:
        """The largest part of the context, and what is left for it."""
        blocks = [{"tag": "INPUT", "tokens": 700}, {"tag": "WORKING_MEMORY", "tokens": 200}]
        messages = [{"role": "user", "content": words_of(700)}, {"role": "system", "content": words_of(200)}]
        content = {"messages": messages, "tools": [], "context": {"blocks": blocks, "left_out": []}}
        with pytest.raises(RequestError) as caught:
            close(content, Measure(FakeCounter()), 500, None)
        assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE
        said = re.fullmatch(
            r"run: INPUT takes 700 tokens, at most (\d+) are left for it; all takes (\d+) \(WORKING_MEMORY 200\), "
            r"at most 500 are allowed",
            caught.value.message,
        )
        assert said
        left, used = map(int, said.groups())
        assert used - 700 + left == 500

    def test_the_input(self) -> None:
        """Before anything is recorded."""
        opening = [{"role": "system", "content": words_of(100)}]
        with pytest.raises(RequestError) as caught:
            budget("thinking", 300).check_input(opening, words_of(400))
        assert "the input takes 400 tokens" in caught.value.message
        assert re.search(r"which take 1\d\d, at most 1\d\d of 300 are left for it", caught.value.message)


def test_rounds_that_fit_are_whole() -> None:
    """As requests bring them, nothing of them is said to be cut."""
    made = fit_thinking(
        ThinkingInput("now", rounds=(ThinkingRound(round_number=1, content="Hm."),)), budget("thinking", 6_000)
    )
    assert (made.left_out, made.repairs) == ([], [])


def test_bounds_hold_what_fits() -> None:
    """A text that fits is the same object: nothing is made of it anew, line ends included."""
    text = "a\r\nb\u200b"
    assert Bounds(Measure(FakeCounter()), {"AGENT_ROLE": 50}).cut("AGENT_ROLE", text, str) is text
