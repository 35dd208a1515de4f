"""Layout `agent`, from rows to messages, and what goes where it would take too much (contract §5, §7, §8)."""

import hashlib
import itertools
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, get_args

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nexus.core.models import Why
from nexus.core.shares import BUDGET
from nexus.core.wire import compact
from nexus.core.working_memory import Compaction, Overview, Snapshot
from nexus.services.context.agent import AgentInput, fit_agent
from nexus.services.context.blocks import Assembled
from nexus.services.context.budget import Budget
from nexus.services.context.formats import FORMATS
from nexus.services.context.formats.openai import to_openai
from nexus.services.context.memory_blocks import Remembered
from nexus.services.context.pinned import Placement
from nexus.services.context.prompts import PromptManager
from nexus.services.history.messages import HistoryMessage as Said
from nexus.services.history.rows import MAIN, Agent
from nexus.services.history.tool_calls import ToolCall
from nexus.services.history.transcript import Window, faults
from nexus.services.session_state.state import FolderNote, Info, SessionState, Todo
from nexus.services.text.tokens import Measure
from nexus.services.turns.documents import RememberedTurn
from tests.nexus.support.fake_counter import FakeCounter, words_of
from tests.nexus.support.providers import anthropic_faults, gemini_faults, openai_faults

CHECKS = {"openai": openai_faults, "anthropic": anthropic_faults, "gemini": gemini_faults}
PLACEMENTS: tuple[Placement, ...] = get_args(Placement)
SUB = Agent("sub", "reviewer", "You review.", "", "Review the change.")
STATE = SessionState(
    todos=(Todo("1", "write"),), useful_info=(Info("1", "80"),), folder_notes=(FolderNote("1", "src", "note"),)
)
PINNED = [
    *("## Agent Role Definition\n\nYou lead.", "## Current TODO List\n\n- [ ] write (ID: 1)"),
    *("## Useful Information\n\n- 80", "## Folder Notes\n\n### src\n- note"),
]
TODO_ONLY = SessionState(todos=STATE.todos)
TODO = PINNED[1]
TURNS = (RememberedTurn(1, "t1", "looked"), RememberedTurn(2, "t2", "found"))
GOAL = {"role": "user", "content": "[TASK_CONTEXT]\nUser's Goal: the goal"}
MEMORY = {"role": "user", "content": "[TURN_MEMORY level=brief count=2]\n[Turn 1] looked\n\n[Turn 2] found"}


def row(number: int, role: str, content: Any = "", run: str = "", **metadata: Any) -> dict[str, Any]:
    """The row of that number, in stored order; a run by itself unless it names one."""
    return {
        "_id": f"{number:024x}",
        "id": f"m{number}",
        "run_id": run or f"r{number}",
        "owner_key": "ada",
        "session_id": "s",
        "role": role,
        "content": content,
        "timestamp": f"2025-12-10T{number // 3600:02d}:{number // 60 % 60:02d}:{number % 60:02d}Z",
        "metadata": metadata,
    }


def talk(count: int) -> list[dict[str, Any]]:
    """So many rows without calls: a question, an answer, and so on."""
    return [
        row(number, "AI" if number % 2 else "HUMAN", f"text {number}", f"r{number // 2}") for number in range(count)
    ]


def call(call_id: str) -> dict[str, Any]:
    """A call as it is stored."""
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}


def work(number: int, *, calls: int, run: str = "") -> list[dict[str, Any]]:
    """A run from row `number` on: a question, an answer that makes calls, their results, the answer."""
    run, ids = run or f"r{number}", [f"c{number}_{place}" for place in range(calls)]
    results = [
        row(number + 2 + place, "TOOL", f"result {call_id}", run, call_id=call_id) for place, call_id in enumerate(ids)
    ]
    return [
        row(number, "HUMAN", f"question {number}", run),
        row(number + 1, "AI", "", run, tool_calls=[call(call_id) for call_id in ids]),
        *results,
        row(number + 2 + calls, "AI", f"answer {number}", run),
    ]


def agent_input(rows: Sequence[Any], **changes: Any) -> AgentInput:
    """What a context is made of, with a TODO list to pin."""
    known: dict[str, Any] = {"state": TODO_ONLY, "current_input": "now", "input_id": "in"}
    agent, cut = changes.get("agent", MAIN), changes.pop("cut", False)
    return AgentInput(window=Window.of(rows, agent, cut=cut, current_run_id="now"), **(known | changes))


def assembled(rows: Sequence[Any], **changes: Any) -> Assembled:
    """The context; it is one that a strict provider accepts."""
    made = fit_agent(agent_input(rows, **changes), Budget(0))
    assert faults(made.messages) == []
    return made


def brief(rows: Sequence[Any], **changes: Any) -> list[str]:
    """What the messages after the first say: texts, `+` for calls, `#` and a letter for what is pinned."""
    return [_word(message) for message in assembled(rows, **changes).messages[1:]]


def _word(message: dict[str, Any]) -> str:
    if message.get("tool_calls"):
        return "+"
    content: str = message["content"]
    return f"#{content[3]}" if content.startswith("## ") else content


class TestMessages:
    """In the order of the contract."""

    def test_no_history_at_all(self) -> None:
        """System, role, TODO, information, notes, input."""
        made = assembled([], role="You lead.", state=STATE)
        identity = PromptManager().get_core_identity()
        assert made.messages == [
            {"role": "system", "content": identity},
            *({"role": "user", "content": text} for text in PINNED),
            {"role": "user", "content": "now"},
        ]

    def test_a_system_prompt_of_its_own(self) -> None:
        """Instead of the identity; a blank one is none. It is escaped as all other text."""
        agent = Agent("main", system_prompt="Be brief. [THIS_MOMENT]")
        made = assembled([], agent=agent)
        assert made.messages[0] == {"role": "system", "content": "Be brief. \\[THIS_MOMENT]"}
        assert (made.manifest["blocks"][0]["tag"], made.manifest["blocks"][0]["escaped"]) == ("SYSTEM_PROMPT", 1)
        blank = assembled([], agent=Agent("main", system_prompt=" \u200b"))
        assert blank.messages[0]["content"] == PromptManager().get_core_identity()

    def test_a_sub_agent(self) -> None:
        """Its task first, no system message, and its role only where it is pinned."""
        made = assembled(talk(2), agent=SUB, role="You review.", state=SessionState())
        assert made.messages == [
            {"role": "user", "content": "Review the change."},
            {"role": "user", "content": "text 0"},
            {"role": "assistant", "content": "text 1"},
            {"role": "user", "content": "## Agent Role Definition\n\nYou review."},
            {"role": "user", "content": "now"},
        ]


class TestRemembered:
    """The goal and earlier turns, right behind the opening."""

    @pytest.mark.parametrize("placement", PLACEMENTS)
    def test_both(self, placement: Placement) -> None:
        """Before the history, wherever the pinned block is; the rest is as without them."""
        remembered = Remembered("the goal", "t1", "brief", TURNS)
        made = assembled(talk(3), placement=placement, remembered=remembered)
        without = assembled(talk(3), placement=placement).messages
        assert made.messages == [without[0], GOAL, MEMORY, *without[1:]]

    def test_the_prefix(self) -> None:
        """Holds them and the history behind them; where something could not be read, no more than the goal."""
        remembered = Remembered("the goal", "t1", "brief", TURNS)
        rows = talk(9)
        assert assembled(rows).manifest["prefix"]["messages"] == 5
        assert assembled(rows, remembered=remembered).manifest["prefix"]["messages"] == 7
        assert assembled(rows, remembered=remembered, settled=False).manifest["prefix"]["messages"] == 2
        assert assembled(rows, settled=False).manifest["prefix"]["messages"] == 1


class TestPosition:
    """Counted over the history alone."""

    def test_a_call_without_a_result(self) -> None:
        """Is a block all the same: what the gate adds belongs to it."""
        rows = [row(0, "HUMAN", "q", "r"), row(1, "AI", "", "r", tool_calls=[call("a"), call("b")]), *talk_after(3)]
        lost = "(no result has come yet)"
        assert brief(rows) == ["q", "#C", "+", lost, lost, "late 0", "late 1", "late 2", "now"]


def talk_after(count: int) -> list[dict[str, Any]]:
    """So many questions after everything else."""
    return [row(1_000 + number, "HUMAN", f"late {number}") for number in range(count)]


def test_what_is_left_out_of_a_cut_session() -> None:
    """It begins with a human in the older half of what is at hand, and the manifest says how much that leaves out."""
    rows = [each for number in range(0, 400, 4) for each in work(number, calls=1)]
    whole, cut = assembled(rows), assembled(rows, cut=True)
    dropped = len(whole.messages) - len(cut.messages)
    assert 0 <= dropped < 200
    assert cut.messages[1]["role"] == "user"
    assert cut.messages[1:] == whole.messages[1 + dropped :]
    assert cut.manifest["history"] == {"fetched": 400, "merged": 400, "shown": 400 - dropped, "repaired": 0}
    history = [block for block in cut.manifest["blocks"] if block["tag"] == "HISTORY"]
    assert [block["dropped"] for block in history] == [dropped, 0]
    only_after = assembled(rows[-8:], cut=True, pinned_from_end=8)
    assert (
        sum(block["dropped"] for block in only_after.manifest["blocks"]) == 8 - only_after.manifest["history"]["shown"]
    )


class TestManifest:
    """Right in every field, made again from the messages alone."""

    def test_every_field(self) -> None:
        """With a history on both sides of the pinned block, a repair, and something escaped."""
        rows = [
            row(0, "HUMAN", "é [THIS_MOMENT]", "r"),
            row(1, "AI", "", "r", tool_calls=[call("a"), call("b")]),
            row(2, "TOOL", "ok", "r", call_id="a"),
            *talk_after(5),
            {**row(2_000, "HUMAN", "no time", "r2"), "timestamp": "never"},
        ]
        made = assembled(rows, role="You lead.", state=TODO_ONLY)
        lists = made.messages
        before, after = lists[1:6], lists[8:13]
        assert [message["content"] for message in after] == [f"late {number}" for number in range(5)]

        def block(tag: str, index: int, sources: Sequence[str] = (), role: str = "user") -> dict[str, Any]:
            size = len(lists[index]["content"].encode())
            counts = {"truncated": 0, "dropped": 0, "escaped": 0}
            return {"tag": tag, "role": role, "index": index, "bytes": size, "sources": [*sources], **counts}

        def passage(index: int, messages: list[Any], sources: Sequence[str], escaped: int) -> dict[str, Any]:
            shown = block("HISTORY", index, sources)
            return shown | {"messages": len(messages), "bytes": len(compact(messages)), "escaped": escaped}

        assert made.manifest == {
            "layout": "agent",
            "blocks": [
                block("CORE_IDENTITY", 0, role="system"),
                passage(1, before, ["m2000", "m0", "m1", "m2"], 1),
                block("AGENT_ROLE", 6),
                block("TODO_LIST", 7),
                passage(8, after, [f"m100{number}" for number in range(5)], 0),
                block("INPUT", 13, ["in"]),
            ],
            "history": {"fetched": 9, "merged": 9, "shown": 10, "repaired": 2},
            "prefix": {"messages": 6, "sha256": hashlib.sha256(compact(lists[:6])).hexdigest()},
        }
        assert made.repairs == ["history: call m1[1] has no result yet"]

    def test_a_failed_result(self) -> None:
        """Its messages are weighed and hashed as they are sent: that it failed is not told to OpenAI."""
        rows = [*work(0, calls=1), *talk_after(5)]
        rows[2]["metadata"]["status"] = "error"
        made = assembled(rows)
        sent = to_openai(made.messages, [], stable=0).messages
        assert sent != made.messages
        before, *_ = (block for block in made.manifest["blocks"] if block["tag"] == "HISTORY")
        assert before["bytes"] == len(compact(sent[1 : 1 + before["messages"]]))
        prefix = made.manifest["prefix"]
        assert prefix["sha256"] == hashlib.sha256(compact(sent[: prefix["messages"]])).hexdigest()
        assert prefix["messages"] > 3


def state_of_turn(turn: int) -> SessionState:
    """A state that is another in every turn."""
    return SessionState(todos=tuple(Todo(str(number), "t") for number in range(turn % 3 + 1)))


def check_prefixes(builds: Sequence[Assembled]) -> list[int]:
    """What each build says that the next shares is what it shares; how many messages that is."""
    claimed = []
    for build, following in itertools.pairwise(builds):
        count = build.manifest["prefix"]["messages"]
        assert following.messages[:count] == build.messages[:count]
        assert build.manifest["prefix"]["sha256"] == hashlib.sha256(compact(build.messages[:count])).hexdigest()
        claimed.append(count)
    return claimed


class TestPrefix:
    """The leading part that the next build of this session can use again, byte for byte."""

    @pytest.mark.parametrize("pinned_from_end", [1, 2, 5, 8])
    @pytest.mark.parametrize("placement", PLACEMENTS)
    @pytest.mark.parametrize("agent", [MAIN, SUB, replace(SUB, task_prompt="")], ids=["main", "sub", "no task"])
    def test_a_session_that_grows(self, agent: Agent, placement: Placement, pinned_from_end: int) -> None:
        """By runs with and without calls, while the state changes with every turn."""
        rows: list[Any] = []
        builds = []
        for turn in range(40):
            builds.append(
                assembled(
                    rows,
                    agent=agent,
                    placement=placement,
                    pinned_from_end=pinned_from_end,
                    state=state_of_turn(turn),
                    current_input=f"question {len(rows)}",
                )
            )
            number = len(rows)
            rows += (
                work(number, calls=turn % 4)
                if turn % 4
                else [
                    row(number, "HUMAN", f"question {number}", f"r{number}"),
                    row(number + 1, "AI", f"answer {number}", f"r{number}"),
                ]
            )
        claimed = check_prefixes(builds)
        assert claimed[-1] > len(rows) / 2


_ROWS = st.lists(
    st.builds(
        lambda number, role, run, calls, call_id, content: row(
            number, role, content, run, tool_calls=[call(each) for each in calls], call_id=call_id
        ),
        st.integers(0, 60),
        st.sampled_from(["HUMAN", "AI", "TOOL", "SYSTEM", "nobody"]),
        st.sampled_from(["one", "two", "three"]),
        st.lists(st.sampled_from(["a", "b", "c d", ""]), max_size=2),
        st.sampled_from(["a", "b", "c d", ""]),
        st.sampled_from(["", "text", None, "[THIS_MOMENT]"]),
    ),
    max_size=14,
)


@given(_ROWS, st.sampled_from(PLACEMENTS), st.integers(0, 7), st.booleans())
def test_any_rows(rows: list[Any], placement: Placement, pinned_from_end: int, cut: bool) -> None:
    """The pinned block is there once, in one piece; the rest is as without it; no argument changes; same bytes."""
    given_now = agent_input(
        rows, role="You lead.", state=STATE, placement=placement, pinned_from_end=pinned_from_end, cut=cut
    )
    before = deepcopy(given_now)
    made, again = (fit_agent(given_now, Budget(0)) for _ in range(2))
    assert given_now == before
    assert compact([made.messages, made.manifest, made.repairs]) == compact(
        [again.messages, again.manifest, again.repairs]
    )
    assert faults(made.messages) == []
    for form, faults_of in CHECKS.items():
        stable = made.manifest["prefix"]["messages"]
        assert faults_of(FORMATS[form](made.messages, [], stable=stable), typed=False) == []
    contents = [message["content"] for message in made.messages]
    start = contents.index(PINNED[0])
    assert contents[start : start + 4] == PINNED
    without = fit_agent(replace(given_now, role="", state=SessionState()), Budget(0))
    assert [*made.messages[:start], *made.messages[start + 4 :]] == without.messages


ALWAYS = {"SYSTEM_PROMPT", "WORKING_MEMORY", "TASK_CONTEXT", "INPUT"}
AT = datetime(2026, 3, 1, tzinfo=UTC)
PLENTY = 1 << 40


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


def within(given_input: AgentInput, tokens: int, form: str = "openai", **ceilings: float) -> Assembled:
    """The context in so many tokens; blocks have no bounds but these."""
    shares = {name: share._replace(ceiling=ceilings.get(name, 1.0)) for name, share in BUDGET.items()}
    return fit_agent(given_input, Budget(tokens, measure=measure(form), blocks=shares))


def part(made: Assembled, tag: str) -> dict[str, Any]:
    """What the manifest says of a block; `{}` where there is none."""
    return next((found for found in made.manifest["blocks"] if found["tag"] == tag), {})


def history_of(made: Assembled) -> list[dict[str, Any]]:
    """The messages of the history that are shown."""
    parts = [found for found in made.manifest["blocks"] if found["tag"] == "HISTORY"]
    return [made.messages[part["index"] + place] for part in parts for place in range(part["messages"])]


def lines(made: Assembled, tag: str) -> list[str]:
    """Those of a block that are items."""
    found = part(made, tag)
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
    shown, every = history_of(made), history_of(whole)
    assert shown == every[len(every) - len(shown) :]
    assert not shown or shown[0]["role"] != "tool"
    assert used <= tokens or not (shown or part(made, "TURN_MEMORY") or part(made, "USEFUL_INFORMATION"))
    tags = {found["tag"] for found in made.manifest["blocks"]}
    assert tags >= ALWAYS | {"TODO_LIST"} | ({"AGENT_ROLE"} if given_input.role else set())
    for tag in tags & (ALWAYS | {"TODO_LIST", "AGENT_ROLE"}):
        assert lines(made, tag) == lines(whole, tag)
    turns, all_turns = lines(made, "TURN_MEMORY"), lines(whole, "TURN_MEMORY")
    assert turns == all_turns[len(all_turns) - len(turns) :]
    assert compact(made.messages) == compact(within(given_input, tokens, form).messages)


def _reasons(before: dict[str, Any], after: dict[str, Any]) -> list[Why]:
    """Why a block that was `before` shows less now, if it does."""
    if before and (not after or after["dropped"] > before["dropped"]):
        return [Why.NO_ROOM]
    return [Why.TOO_MANY] if before and before["dropped"] else []


def test_no_call_without_its_results() -> None:
    """However much room there is, down to the token: a call and its results go together, and nothing else with them."""
    said = [item for number in range(4) for item in exchange(number, "done", [words_of(5), words_of(9), words_of(2)])]
    given_input = AgentInput(Window(said), "and now?", agent=Agent(system_prompt="You help."))
    every, starts = fit_agent(given_input, Budget(0)).messages[1:-1], set()
    for tokens in range(measure().messages(every) + 50):
        made = within(given_input, tokens)
        assert faults(made.messages) == []
        shown = made.messages[1:-1]
        starts.add(len(every) - len(shown))
    assert starts == {place for place in range(len(every) + 1) if place == len(every) or every[place]["role"] != "tool"}


@settings(max_examples=60)
@given(inputs(), st.integers(0, 900))
def test_what_went_is_said(given_input: AgentInput, tokens: int) -> None:
    """Counted in its block, and named with its reason."""
    whole, made = within(given_input, PLENTY), within(given_input, tokens)
    for tag in ("TURN_MEMORY", "USEFUL_INFORMATION", "FOLDER_NOTES", "CONVERSATION_SUMMARY", "HISTORY"):
        before, after = part(whole, tag), part(made, tag)
        assert [each.why for each in made.left_out if each.where == tag] == _reasons(before, after)
        if after and tag != "HISTORY":
            gone = len(lines(whole, tag)) - len(lines(made, tag)) if tag != "CONVERSATION_SUMMARY" else 0
            assert after["dropped"] - before["dropped"] == gone
    parts = [found for found in made.manifest["blocks"] if found["tag"] == "HISTORY"]
    if parts:
        assert sum(part["dropped"] for part in parts) == len(history_of(whole)) - len(history_of(made))
    assert made.manifest["history"]["shown"] == len(history_of(made))


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
def test_ceilings(given_input: AgentInput, turns: int, notes: int) -> None:
    """Two blocks take no more than theirs although there is room."""
    made = within(given_input, 100_000, turns=turns / 100_000, notes=notes / 100_000)
    for most, tags in ((turns, ["TURN_MEMORY"]), (notes, ["USEFUL_INFORMATION", "FOLDER_NOTES"])):
        blocks = [made.messages[part(made, tag)["index"]] for tag in tags if part(made, tag)]
        assert sum(map(measure().message, blocks)) <= most
    assert history_of(made) == history_of(within(given_input, PLENTY))


def test_unreadable_memory() -> None:
    """The block may be there again in the next context, behind the instructions, so these are all that can be used."""
    given_input = AgentInput(Window(exchange(1, "a", [])), "hi", remembered=Remembered("the goal"), memory_missing=True)
    assert fit_agent(given_input, Budget(0)).manifest["prefix"]["messages"] == 1
