"""The dialogue layout: five messages, and a manifest that says how they came to be (contract §4, §8)."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.core.models import LeftOut, Why
from nexus.core.shares import BUDGET
from nexus.services.context.blocks import Assembled
from nexus.services.context.budget import Budget
from nexus.services.context.dialogue import DialogueInput, MemoryFormatter, assemble_dialogue, fit_dialogue
from nexus.services.text.escape import BLOCK_TAGS, escape
from nexus.services.text.tokens import Measure
from tests.nexus.support.fake_counter import FakeCounter, words_of

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "web_search",
        "description": "Search the web for information",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "The search query"}},
            "required": ["query"],
        },
    },
}


def row(row_id: str, role: str, content: str, minute: int, *, run: str = "run_1", **metadata: Any) -> dict[str, Any]:
    """A stored row."""
    return {
        "_id": f"{minute:024x}",
        "id": row_id,
        "run_id": run,
        "owner_key": "ada",
        "role": role,
        "content": content,
        "timestamp": f"2025-12-10T15:{minute:02d}:00Z",
        "metadata": metadata,
    }


SEARCH = {"id": "c1", "type": "function", "function": {"name": "web_search", "arguments": '{"query": "AI in 2025"}'}}
HISTORY = [
    row("h1", "HUMAN", "Search for AI", 30),
    row("a1", "AI", "I'll search...", 31, tool_calls=[SEARCH]),
    row("t1", "TOOL", "(many results)", 32),
    row("a2", "AI", "Based on search results...", 33),
    row("now", "HUMAN", "What's the capital of France?", 40, run="run_2"),
]
GIVEN = DialogueInput(
    tools=[TOOL],
    history=HISTORY[::-1],
    user_profile={"public_key": "ada", "prompt_overrides": {"friends_profile": "Likes tea.\n[THIS_MOMENT]"}},
    current_input="What's the capital of France?",
    current_run_id="run_2",
    timestamp_utc="2025-12-10T16:00:00.123Z",
    timezone_offset=-480,
    input_id="msg_in",
)


@given(st.text(), st.permutations(HISTORY))
def test_the_same_inputs_give_the_same_bytes(text: str, history: list[dict[str, Any]]) -> None:
    """Also when the rows come in another order; and nobody's input changes what is before it."""
    given_now = DialogueInput(
        tools=[TOOL], history=history, user_profile=None, current_input=text, current_run_id="run_2"
    )
    first, again = assemble_dialogue(given_now), assemble_dialogue(given_now)
    assert first == again
    other = assemble_dialogue(
        DialogueInput(tools=[TOOL], history=HISTORY, user_profile=None, current_input="", current_run_id="run_2")
    )
    assert first.messages[:4] == other.messages[:4]
    assert first.manifest["prefix"] == other.manifest["prefix"]


SAID = [row(f"h{number}", "HUMAN", f"said {number} and more", number, run=f"past_{number}") for number in range(12)]


def within(asked: DialogueInput, tokens: int) -> Assembled:
    """The context in so many tokens."""
    return fit_dialogue(asked, Budget(tokens, measure=Measure(FakeCounter())))


def test_every_block_has_a_tag_that_nobody_else_can_write() -> None:
    """And the model is told of it in the first message."""
    made = assemble_dialogue(GIVEN)
    tags = [block["tag"] for block in made.manifest["blocks"]]
    assert len(tags) == len(made.messages)
    assert {*tags} <= {*BLOCK_TAGS}
    for tag, message in [*zip(tags, made.messages, strict=True)][1:]:
        assert message["content"].startswith(f"[{tag}")
        assert escape(message["content"]).startswith(f"\\[{tag}")
        assert f"[{tag}" in made.messages[0]["content"]


@given(st.integers(0, 200))
def test_as_much_as_fits(beside: int) -> None:
    """The newest messages of the memory stay, as many as there is room for; the other blocks stay as they are."""
    measure = Measure(FakeCounter())
    asked = replace(GIVEN, history=SAID)
    least = measure.messages(assemble_dialogue(replace(asked, history_size=0)).messages)
    made = within(asked, least + beside)
    whole = assemble_dialogue(asked)
    memory = made.manifest["blocks"][2]
    assert [made.messages[place] for place in (0, 1, 3, 4)] == [whole.messages[place] for place in (0, 1, 3, 4)]
    assert measure.messages(made.messages) <= least + beside
    shown = made.manifest["history"]["shown"]
    assert memory["dropped"] == len(SAID) - shown
    assert [f"said {number} " in made.messages[2]["content"] for number in range(12)] == [
        number >= 12 - shown for number in range(12)
    ]
    if shown < len(SAID):
        more = assemble_dialogue(replace(asked, history_size=shown + 1))
        assert measure.messages(more.messages) > least + beside
    assert made == within(asked, least + beside)


@pytest.mark.parametrize("ceiling", [0.05, 0.1, 0.3, 1.0])
def test_as_many_as_their_share_holds(ceiling: float) -> None:
    """Of as many as are ever read, also in a context that fits; the block says how many these are."""
    measure, limit = Measure(FakeCounter()), 8_000
    said = [row(f"h{number}", "HUMAN", words_of(60), number % 60, run=f"p{number}") for number in range(200)]
    asked = replace(GIVEN, history=said, history_size=200)
    shares = {**BUDGET, "history": BUDGET["history"]._replace(ceiling=ceiling)}
    made = fit_dialogue(asked, Budget(limit, measure=measure, blocks=shares))
    shown = made.manifest["history"]["shown"]
    assert made.messages[2]["content"].startswith(f"[SHARED_MEMORY count={shown}]\n")

    def tokens(kept: int) -> int:
        return measure.text(MemoryFormatter.format_shared_memory(said, kept, current_run_id="run_2"))

    share = min(int(limit * ceiling), limit - measure.messages(made.messages) + tokens(shown) - tokens(0))
    assert tokens(shown) - tokens(0) <= share < tokens(shown + 1) - tokens(0)


def counted(made: Assembled) -> Assembled:
    """Without what only a context has that was fitted."""
    manifest = {name: value for name, value in made.manifest.items() if name != "budget"}
    return made._replace(manifest=manifest, weights=None)


def test_room_enough_or_none() -> None:
    """With room it is the whole context, and without counting too; what cannot go stays where there is none."""
    measure = Measure(FakeCounter())
    assert counted(within(GIVEN, 1 << 40)) == assemble_dialogue(GIVEN, measure)
    assert fit_dialogue(GIVEN, Budget(0)) == assemble_dialogue(GIVEN)
    none = assemble_dialogue(replace(GIVEN, history_size=0), measure)
    (asked_for,) = none.left_out
    assert asked_for == ("older messages", "SHARED_MEMORY", Why.TOO_MANY)
    assert counted(within(GIVEN, 0)) == none._replace(left_out=[LeftOut("2 messages", "SHARED_MEMORY", Why.NO_ROOM)])
