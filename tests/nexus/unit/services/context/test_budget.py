"""What goes where a context would take more than it may, and in which order (CONTRACT §7)."""

from dataclasses import replace
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nexus.core.compact_json import compact
from nexus.core.working_memory import Compaction, Overview, Snapshot
from nexus.services.context.agents import Agent
from nexus.services.context.annotations import ToolCall
from nexus.services.context.assembled import Assembled
from nexus.services.context.budget import Room
from nexus.services.context.layouts import AgentInput, assemble_agent
from nexus.services.context.remembered import Remembered, RememberedTurn
from nexus.services.context.session_state import FolderNote, Info, SessionState, Todo
from nexus.services.context.tokens import Measure
from nexus.services.context.transcript import Said
from nexus.services.context.validity import faults
from nexus.services.context.window import Window
from tests.nexus.support.fake_counter import FakeCounter
from tests.nexus.unit.services.context.test_working import AT

ALWAYS = {"SYSTEM_PROMPT", "WORKING_MEMORY", "TASK_CONTEXT", "INPUT"}
PLENTY = 1 << 40


def words_of(count: int) -> str:
    """A text of so many tokens."""
    return " ".join(["word"] * count)


WORDS = st.integers(1, 60).map(words_of)


def exchange(number: int, answer: str, results: list[str]) -> list[Said]:
    """One run: an input, calls with their results if there are any, an answer."""
    run = f"r{number}"
    calls = tuple(ToolCall(f"{run}_{place}", "look", {}, "{}") for place in range(len(results)))
    return [
        Said("user", f"input {number}", source=f"{run}_in", run_id=run),
        *([Said("assistant", "", source=f"{run}_call", run_id=run, calls=calls)] if calls else []),
        *(
            Said("tool", text, source=f"{run}_{place}", run_id=run, call_id=f"{run}_{place}")
            for place, text in enumerate(results)
        ),
        Said("assistant", answer, source=f"{run}_out", run_id=run),
    ]


@st.composite
def inputs(draw: st.DrawFn) -> AgentInput:
    """What a context is made of, without a limit."""
    runs = draw(st.lists(st.tuples(WORDS, st.lists(WORDS, max_size=3)), max_size=5))
    turns = tuple(
        RememberedTurn(place + 1, f"t{place}", text) for place, text in enumerate(draw(st.lists(WORDS, max_size=4)))
    )
    state = SessionState(
        todos=(Todo("1", "pack"),),
        useful_info=tuple(
            Info(str(place), f"{place} {text}") for place, text in enumerate(draw(st.lists(WORDS, max_size=3)))
        ),
        folder_notes=tuple(
            FolderNote(str(place), folder, f"{place} {text}")
            for place, (folder, text) in enumerate(draw(st.lists(st.tuples(st.sampled_from("ab"), WORDS), max_size=3)))
        ),
    )
    told = Compaction(number=1, created_at=AT, summary=draw(WORDS), count=2, total=2, since="00000001")
    overview = Overview(revision=1, content=draw(WORDS), updated_at=AT)
    return AgentInput(
        window=Window([said for place, run in enumerate(runs) for said in exchange(place, *run)]),
        current_input="and now?",
        agent=Agent(system_prompt="You help."),
        remembered=Remembered("the goal", turns=turns, dropped=draw(st.integers(0, 2))),
        role=draw(st.sampled_from(["", "You plan."])),
        state=state,
        snapshot=Snapshot(overview, (), draw(st.sampled_from([None, told]))),
    )


def measure(form: str = "openai") -> Measure:
    """Counts for that form."""
    return Measure(FakeCounter(), form)


def within(given_input: AgentInput, tokens: int, form: str = "openai", **shares: int) -> Assembled:
    """The context in so many tokens."""
    return assemble_agent(replace(given_input, room=Room(measure(form), tokens, **shares)))


def block(made: Assembled, tag: str) -> dict[str, Any]:
    """What the manifest says of a block; `{}` where there is none."""
    return next((found for found in made.manifest["blocks"] if found["tag"] == tag), {})


def history(made: Assembled) -> list[dict[str, Any]]:
    """The messages of the history that are shown."""
    parts = [found for found in made.manifest["blocks"] if found["tag"] == "HISTORY"]
    return [made.messages[part["index"] + place] for part in parts for place in range(part["messages"])]


def lines(made: Assembled, tag: str) -> list[str]:
    """Those of a block that are items."""
    found = block(made, tag)
    text = made.messages[found["index"]]["content"] if found else ""
    return [line for line in text.split("\n") if line.startswith(("- ", "[Turn "))]


FORMS = st.sampled_from(["openai", "anthropic", "gemini"])


@settings(max_examples=60)
@given(inputs(), st.integers(0, 900), FORMS)
def test_whatever_the_room(given_input: AgentInput, tokens: int, form: str) -> None:
    """It fits if what stays does; the oldest goes first, calls go with their results, what stays is all there."""
    whole, made = within(given_input, PLENTY, form), within(given_input, tokens, form)
    assert faults(made.messages) == []
    used = measure(form).messages(made.messages)
    shown, every = history(made), history(whole)
    assert shown == every[len(every) - len(shown) :]
    assert not shown or shown[0]["role"] != "tool"
    assert used <= tokens or not (shown or block(made, "TURN_MEMORY") or block(made, "USEFUL_INFORMATION"))
    tags = {found["tag"] for found in made.manifest["blocks"]}
    assert tags >= ALWAYS | {"TODO_LIST"} | ({"AGENT_ROLE"} if given_input.role else set())
    for tag in tags & (ALWAYS | {"TODO_LIST", "AGENT_ROLE"}):
        assert lines(made, tag) == lines(whole, tag)
    turns, all_turns = lines(made, "TURN_MEMORY"), lines(whole, "TURN_MEMORY")
    assert turns == all_turns[len(all_turns) - len(turns) :]
    # The order in which things go: turns, history, what is pinned, the summary.
    if block(whole, "CONVERSATION_SUMMARY") and not block(made, "CONVERSATION_SUMMARY"):
        assert not shown and not lines(made, "USEFUL_INFORMATION") and not lines(made, "FOLDER_NOTES")  # noqa: PT018
    assert not turns or shown == every
    assert compact(made.messages) == compact(within(given_input, tokens, form).messages)


def test_no_call_without_its_results() -> None:
    """However much room there is, down to the token: a call and its results go together, and nothing else with them."""
    said = [item for number in range(4) for item in exchange(number, "done", [words_of(5), words_of(9), words_of(2)])]
    given_input = AgentInput(Window(said), "and now?", agent=Agent(system_prompt="You help."))
    every, starts = assemble_agent(given_input).messages[1:-1], set()
    for tokens in range(measure().messages(every) + 50):
        made = within(given_input, tokens)
        assert faults(made.messages) == []
        shown = made.messages[1:-1]
        starts.add(len(every) - len(shown))
    assert starts == {place for place in range(len(every) + 1) if place == len(every) or every[place]["role"] != "tool"}


@settings(max_examples=60)
@given(inputs(), st.integers(0, 900))
def test_what_went_is_said(given_input: AgentInput, tokens: int) -> None:
    """Counted in its block, or in a note where no block is left; nothing else is noted."""
    whole, made = within(given_input, PLENTY), within(given_input, tokens)
    notes = set(made.repairs)
    for tag in ("TURN_MEMORY", "USEFUL_INFORMATION", "FOLDER_NOTES", "CONVERSATION_SUMMARY", "HISTORY"):
        before, after = block(whole, tag), block(made, tag)
        assert (f"window: there is no room for {tag}" in notes) is bool(before and not after)
        if after and tag != "HISTORY":
            gone = len(lines(whole, tag)) - len(lines(made, tag)) if tag != "CONVERSATION_SUMMARY" else 0
            assert after["dropped"] - before["dropped"] == gone
    parts = [found for found in made.manifest["blocks"] if found["tag"] == "HISTORY"]
    if parts:
        assert sum(part["dropped"] for part in parts) == len(history(whole)) - len(history(made))
    assert made.manifest["history"]["shown"] == len(history(made))


@settings(max_examples=40)
@given(inputs(), st.integers(0, 900))
def test_enough_room(given_input: AgentInput, tokens: int) -> None:
    """Where all of it fits, it is what it is without a limit, and the next build can begin with as much of it."""
    free, made = assemble_agent(given_input), within(given_input, tokens)
    assert made.weights
    enough = made.weights.total <= tokens
    assert (made.messages == free.messages) or not enough
    assert made.manifest["prefix"] == free.manifest["prefix"] or not enough
    # A list counts its end once; parts that are counted by themselves may do so more than once.
    assert 0 <= made.weights.total - measure().messages(free.messages) <= 3
    assert within(given_input, PLENTY).weights == made.weights


@settings(max_examples=40)
@given(inputs(), st.integers(0, 900), st.integers(1, 3))
def test_what_can_be_used_again(given_input: AgentInput, tokens: int, runs: int) -> None:
    """The next run, whose session is longer, begins with what was promised, also where something has gone."""
    made = within(given_input, tokens)
    more = [said for number in range(runs) for said in exchange(10 + number, "word", ["word word"])]
    later = replace(given_input, window=Window([*given_input.window.messages, *more]), current_input="next")
    stable, following = made.manifest["prefix"]["messages"], within(later, tokens)
    assert made.weights
    assert following.weights
    # What fitted to the last token may be the first to go.
    assume(made.weights.total > tokens or following.weights.total <= tokens)
    assert following.messages[:stable] == made.messages[:stable]


@settings(max_examples=40)
@given(inputs(), st.integers(0, 200), st.integers(0, 200))
def test_shares(given_input: AgentInput, turns: int, pinned: int) -> None:
    """Two blocks take no more than theirs although there is room, as far as role and TODO list let them."""
    made = within(given_input, PLENTY, turns=turns, pinned=pinned)
    shown = block(made, "TURN_MEMORY")
    assert not shown or measure().message(made.messages[shown["index"]]) <= turns
    tags = ("AGENT_ROLE", "TODO_LIST", "USEFUL_INFORMATION", "FOLDER_NOTES")
    blocks = [made.messages[block(made, tag)["index"]] for tag in tags if block(made, tag)]
    movable = block(made, "USEFUL_INFORMATION") or block(made, "FOLDER_NOTES")
    assert not movable or sum(map(measure().message, blocks)) <= pinned
    assert history(made) == history(within(given_input, PLENTY))


@settings(max_examples=30)
@given(inputs(), st.integers(0, 900), FORMS)
def test_tokens_in_the_manifest(given_input: AgentInput, tokens: int, form: str) -> None:
    """Those of a block are of its text, those of a passage of its messages; each by a count of its own."""
    made = within(given_input, tokens, form)
    count, halves = FakeCounter().count, {"openai": 2, "anthropic": 4, "gemini": 3}[form]
    for found in made.manifest["blocks"]:
        if found["tag"] != "HISTORY":
            text = made.messages[found["index"]]["content"]
            assert found["tokens"] == -(-count(text) * halves // 2)
            continue
        expected = 0
        for message in made.messages[found["index"] : found["index"] + found["messages"]]:
            one = 3 + count(message["role"]) + count(message["content"] or "") + 8 * (message["role"] == "tool")
            one += sum(12 + count("look") + count("{}") for _ in message.get("tool_calls", ()))
            expected += -(-one * halves // 2)
        assert found["tokens"] == expected


def test_unreadable_memory() -> None:
    """The block may be there again in the next context, behind the instructions, so these are all that can be used."""
    given_input = AgentInput(Window(exchange(1, "a", [])), "hi", remembered=Remembered("the goal"), memory_missing=True)
    assert assemble_agent(given_input).manifest["prefix"]["messages"] == 1
