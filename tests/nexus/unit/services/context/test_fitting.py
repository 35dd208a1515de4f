"""How the window is shared out among the blocks that can grow, alone and through the three layouts (contract §15)."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexus.adapters.tokenizer import open_tokenizer
from nexus.core.errors import ErrorCode, RequestError
from nexus.core.models import Why
from nexus.core.person import Constraint
from nexus.core.ports import TokenCounter
from nexus.core.shares import BUDGET, Share
from nexus.core.turns import ThinkingRound
from nexus.core.wire import compact
from nexus.core.working_memory import Compaction, Overview, Snapshot
from nexus.services.context.agent import AgentInput, fit_agent
from nexus.services.context.blocks import Assembled, Block
from nexus.services.context.bounds import allocate
from nexus.services.context.budget import Budget
from nexus.services.context.dialogue import DialogueInput, fit_dialogue
from nexus.services.context.fitting import share_out
from nexus.services.context.memory_blocks import Meta, Remembered
from nexus.services.context.person_blocks import CONSTRAINTS, aside_blocks, known_facts
from nexus.services.context.request import BuildRequest, read_request
from nexus.services.context.run_messages import run_messages_in
from nexus.services.context.run_prefix import RunPrefix
from nexus.services.context.thinking import ThinkingInput, fit_thinking
from nexus.services.history.rows import Agent
from nexus.services.history.transcript import Window, faults
from nexus.services.person.statements import Origin, facts_of, statement
from nexus.services.session_state.state import FolderNote, Info, SessionState
from nexus.services.text.tokens import Measure
from nexus.services.turns.documents import RememberedTurn
from tests.nexus.support.fake_counter import FakeCounter
from tests.nexus.unit.services.context.test_agent import exchange
from tests.nexus.unit.services.context.test_dialogue import row
from tests.nexus.unit.services.parts import definition, request

NAMES: Final = ("history", "recall", "facts", "results")
AT: Final = datetime(2026, 3, 1, tzinfo=UTC)
LAYOUTS: Final = ("dialogue", "agent", "thinking")
WORDS: Final = ("beans", "quiet", "静かな", "[RECALL]", "\n", "## Folder Notes", "émigré", "0x7f", "…", "fridge,", "🫘")
# What joins items in one text takes no more tokens than this; it is in no item.
JOINT: Final = 40


@st.composite
def shares(draw: st.DrawFn) -> dict[str, Share]:
    """Of four blocks, their floors together 1 at most."""
    parts = [draw(st.floats(0, 1 / len(NAMES))) for _ in NAMES]
    return {
        name: Share(floor, draw(st.floats(floor, 1)), draw(st.integers(0, 3)))
        for name, floor in zip(NAMES, parts, strict=True)
    }


TOKENS: Final = st.fixed_dictionaries({name: st.integers(0, 5_000) for name in NAMES})


@settings(max_examples=300)
@given(st.integers(-100, 6_000), st.integers(1_000, 6_000), TOKENS, shares())
def test_allocate(room: int, limit: int, wanted: dict[str, int], parts: dict[str, Share]) -> None:
    """All of the room goes to those who want it, first below the floors, then by priority; the order says nothing."""
    given_tokens = allocate(room, limit, wanted, parts)
    assert given_tokens == allocate(room, limit, dict(reversed(wanted.items())), parts)
    floors = {name: min(wanted[name], int(limit * parts[name].floor)) for name in NAMES}
    mosts = {name: min(wanted[name], int(limit * parts[name].ceiling)) for name in NAMES}
    assert all(0 <= given_tokens[name] <= mosts[name] for name in NAMES)
    assert sum(given_tokens.values()) == max(min(room, sum(mosts.values())), 0)
    for name in NAMES:
        for other in NAMES:
            if given_tokens[name] < floors[name]:
                assert given_tokens[other] <= floors[other]
                assert not given_tokens[other] or parts[other].priority >= parts[name].priority
            if given_tokens[name] < mosts[name] and parts[other].priority < parts[name].priority:
                assert given_tokens[other] <= floors[other]


@given(st.integers(0, 6_000), st.integers(1_000, 6_000), TOKENS, shares(), st.integers(1, 900))
def test_what_one_leaves_over(
    room: int, limit: int, wanted: dict[str, int], parts: dict[str, Share], item: int
) -> None:
    """Of whole items nobody takes more than there is, and what is left over is too little for an item of anybody."""
    first, used = share_out(room, limit, wanted, parts, lambda _, tokens: tokens // item * item)
    assert first == allocate(room, limit, wanted, parts)
    assert sum(used.values()) <= room
    for name in NAMES:
        most = min(wanted[name], int(limit * parts[name].ceiling)) // item * item
        assert used[name] <= most
        assert used[name] == most or room - sum(used.values()) < item * len(NAMES)


@dataclass(frozen=True)
class Case:
    """Content of one context, with more than fits or less, and the tokens of the largest item of each block."""

    layout: str
    asked: BuildRequest
    content: Any
    largest: dict[str, int]


def a_case(layout: str, seed: int, limit: int, measure: Measure) -> Case:
    """One in which the blocks want from nothing to twice the window, in items of any size."""
    random = Random(seed)  # noqa: S311  # nothing is kept secret by it
    largest: dict[str, int] = {}

    def texts(name: str, most_items: int) -> list[str]:
        wanted, count = (
            int(limit * random.choice([0, 0.01, 0.1, 0.5, 1, 2]) * random.random()),
            random.randint(1, most_items),
        )
        said = [_said(random, random.randint(1, max(2 * wanted // count, 1))) for _ in range(count)] if wanted else []
        # An item may be indented or escaped, and a message is cut.
        largest[name] = max([2 * measure.text(text) for text in said], default=0) + JOINT
        return said

    later = list[dict[str, Any]]()
    for number, text in enumerate(texts("results", 6)):
        call = {"id": f"now{number}", "type": "function", "function": {"name": "look", "arguments": '{"q": "x"}'}}
        later.append({"id": f"a{number}", "role": "AI", "content": "", "metadata": {"tool_calls": [call]}})
        later.append({"id": f"t{number}", "role": "TOOL", "content": text, "metadata": {"call_id": call["id"]}})
    asked = read_request(request("and now?", later=later, run_metadata={"layout": layout}))
    turns = tuple(RememberedTurn(place + 1, f"t{place}", text) for place, text in enumerate(texts("turns", 20)))
    recalled = texts("recall", 1)[:1]
    recall = Block("RECALL", "user", f"[RECALL count=1]\n{recalled[0]}") if recalled else None
    mood = random.choice([None, Block("MOOD", "user", "[MOOD label=glad trend=same confidence=low] A guess.")])
    rules = [
        Constraint(id=f"c{number}", text=_said(random, 5), valid_from=AT) for number in range(random.randint(0, 3))
    ]
    also: dict[str, Any] = {"aside": aside_blocks(rules, recall, mood)}
    if layout == "thinking":
        largest["history"] = largest["turns"]
        rounds = [ThinkingRound(round_number=n, content=text) for n, text in enumerate(texts("rounds", 9), 1)]
        return Case(
            layout,
            asked,
            ThinkingInput("and now?", Remembered("the goal", turns=turns), rounds=rounds, **also),
            largest,
        )
    if layout == "dialogue":
        said = texts("history", 40)
        rows = [row(f"h{n}", "HUMAN", text, n % 60, run=f"p{n}") for n, text in enumerate(said)]
        facts = [
            statement(Origin("ada", f"f{n}", AT + timedelta(days=n)), f"topic {n}", text[:200].strip())
            for n, text in enumerate(texts("facts", 30))
        ]
        known = known_facts(facts_of(facts))
        return Case(
            layout,
            asked,
            DialogueInput([], rows, None, "and now?", history_size=200, truncate_chars=5_000, facts=known, **also),
            largest,
        )
    said = texts("history", 30)
    window = Window([item for n, text in enumerate(said) for item in exchange(n, "done", [text] * (n % 3))])
    largest["history"] = 2 * largest["history"]
    notes = texts("notes", 8)
    state = SessionState(
        useful_info=tuple(Info(str(n), text) for n, text in enumerate(notes[::2])),
        folder_notes=tuple(FolderNote(str(n), "src", text) for n, text in enumerate(notes[1::2])),
    )
    told = texts("summary", 1)[:1]
    compaction = (
        Compaction(number=1, created_at=AT, summary=told[0], count=2, total=2, since="00000001") if told else None
    )
    snapshot = Snapshot(Overview(revision=1, content="# Goal", updated_at=AT), (), compaction)
    made = AgentInput(
        window,
        "and now?",
        agent=Agent(system_prompt="You help."),
        remembered=Remembered("the goal", turns=turns),
        state=state,
        snapshot=snapshot,
        **also,
    )
    return Case(layout, asked, made, largest)


def _said(random: Random, words: int) -> str:
    """A text of about so many tokens."""
    return " ".join(random.choices(WORDS, k=max(words, 1))) + " ."


def answered(case: Case, limit: int, counter: TokenCounter, form: str, *, always: bool) -> tuple[Assembled, Any]:
    """The context of the layout, and the content of the answer or the error."""
    tools, said = [definition("look")], run_messages_in(case.asked)
    budget = Budget.of(
        counter,
        layout=case.layout,
        form=form,
        limit=limit,
        tools=tools,
        run=said.admitted().messages,
        always=always,
    )
    fit: Any = {"dialogue": fit_dialogue, "agent": fit_agent, "thinking": fit_thinking}[case.layout]
    made: Assembled = fit(case.content, budget)
    meta = Meta(limit) if case.layout == "agent" else None
    prefix = RunPrefix(made.messages, made.manifest, tools, [], [], made.left_out, meta=meta, results=made.results)
    try:
        return made, budget.close(lambda measure: prefix.continued(case.asked, said, measure), meta, made.results)
    except RequestError as error:
        return made, error


def check(layout: str, seed: int, limit: int, counter: TokenCounter, form: str, *, always: bool = False) -> None:
    """All that is promised of one context."""
    measure = Measure(counter, form)
    case = a_case(layout, seed, limit, measure)
    made, content = answered(case, limit, counter, form, always=always)
    again, same = answered(a_case(layout, seed, limit, Measure(counter, form)), limit, counter, form, always=always)
    assert compact(made.messages) == compact(again.messages)
    if isinstance(content, RequestError):
        # Nothing is left to go.
        assert content.code is ErrorCode.PAYLOAD_TOO_LARGE
        assert all(
            block["used"] == 0 for name, block in made.manifest["budget"]["blocks"].items() if name != "constraints"
        )
        return
    assert compact(content) == compact(same)
    assert faults(content["messages"]) == []
    assert measure.messages(content["messages"]) + measure.tools(content["tools"]) <= limit
    for block in (block for block in case.content.aside if block.tag == CONSTRAINTS):
        assert any(block.text in str(message["content"]) for message in content["messages"])
    if "budget" not in content["context"]:
        assert layout != "agent"
        assert not always
        return
    blocks = content["context"]["budget"]["blocks"]
    cut = {name for name, block in blocks.items() if block["used"] < block["wanted"]}
    for name, block in blocks.items():
        assert block["used"] <= block["wanted"]
        assert block["wanted"] <= block["ceiling"] or name in {"constraints", "results"} or BUDGET[name].ceiling == 1
        lacks = min(block["wanted"], block["floor"]) - block["used"]
        above = [
            other
            for other in blocks
            if other not in {name, "constraints"} and blocks[other]["used"] > blocks[other]["floor"]
        ]
        # Not for want of room, but since its next item is larger than what it lacks.
        assert lacks <= 0 or not above or lacks < case.largest[name], (name, block, above)
    left = limit - content["context"]["tokens"]["used"]
    assert not cut or Why.NO_ROOM in {each.why for each in content["context"]["left_out"]}
    if cut:
        # Whatever fits whole is not cut: what went would not have had room.
        assert left < sum(blocks[name]["wanted"] - blocks[name]["used"] for name in cut) + JOINT * len(blocks) + 200


# Larger ones take long to fill: NEXUS_TEST_EXPLORE tries many, and a million tokens are tried once a layout.
SMALL: Final = st.integers(4_000, 24_000)
WINDOWS: Final = st.one_of(SMALL, SMALL, SMALL, st.integers(24_000, 200_000))
SEEDS: Final = st.integers(0, 1 << 32)


@given(st.sampled_from(LAYOUTS), SEEDS, WINDOWS, st.sampled_from(["openai", "anthropic", "gemini"]), st.booleans())
def test_any_blocks_in_any_window(layout: str, seed: int, limit: int, form: str, always: bool) -> None:
    """From 4,000 tokens to a million: it fits, floors hold, the same is the same, and nothing is cut that fits."""
    check(layout, seed, limit, FakeCounter(), form, always=always)


@given(st.sampled_from(LAYOUTS), SEEDS, st.integers(4_000, 16_000))
def test_with_a_vocabulary(layout: str, seed: int, limit: int) -> None:
    """Where texts that are joined take other tokens than each by itself."""
    check(layout, seed, limit, open_tokenizer("o200k_base"), "openai")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_million_tokens(layout: str) -> None:
    """In the largest windows, with a vocabulary."""
    check(layout, 7, 1_000_000, open_tokenizer("o200k_base"), "openai")
