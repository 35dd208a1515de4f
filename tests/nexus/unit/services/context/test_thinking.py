"""The thinking layout, from what is remembered to two messages (contract §6, §8)."""

import hashlib
import itertools
import json
import random
import re
from copy import deepcopy
from typing import Any, Final

import pytest

from nexus.core.models import LeftOut, Why
from nexus.core.turns import LEVELS, Level, ThinkingRound
from nexus.services.context.blocks import Assembled
from nexus.services.context.budget import Budget
from nexus.services.context.formats import FORMATS
from nexus.services.context.memory_blocks import Remembered
from nexus.services.context.prompts import THINKING_INSTRUCTION
from nexus.services.context.thinking import ThinkingInput, assemble_thinking, fit_thinking
from nexus.services.history.transcript import faults
from nexus.services.text.escape import canonical, unescape
from nexus.services.text.tokens import Measure
from nexus.services.turns.documents import read_turns
from tests.nexus.support.fake_counter import FakeCounter
from tests.nexus.support.providers import anthropic_faults, gemini_faults, openai_faults
from tests.nexus.unit.services.context import hostile, strict
from tests.nexus.unit.services.context.remembering import read_turns_text, stored_turn, summaries

CHECKS: Final = {"openai": openai_faults, "anthropic": anthropic_faults, "gemini": gemini_faults}
TITLES: Final = {
    "TASK_CONTEXT": "TASK CONTEXT",
    "WORKSPACE_CONTEXT": "WORKSPACE CONTEXT",
    "TURN_MEMORY": "ACCUMULATED MEMORY SUMMARIES",
    "INPUT": "CURRENT INPUT",
    "THINKING_ROUNDS": "PREVIOUS THINKING ROUNDS",
}
_ROUND: Final = re.compile(r"Round (\d+): (.*)")


def remembered(level: Level = "detailed", goal: str = "find reviews", **changes: Any) -> Remembered:
    """A goal and two turns."""
    rows = [stored_turn(1, insights=["a"]), stored_turn(2)]
    return Remembered(goal, "turn_2_1764547200000", level, read_turns(rows, level)[0], **changes)


def thought(number: int, content: str) -> ThinkingRound:
    """A round."""
    return ThinkingRound(round_number=number, content=content)


def assembled(current_input: str = "and trials", **changes: Any) -> Assembled:
    """The context; it is one that a strict provider accepts."""
    known: dict[str, Any] = {"remembered": remembered(), "workspace": "a desk", "input_id": "in"}
    known["rounds"] = [thought(1, "Look."), thought(2, "Act.\nNow.")]
    made = assemble_thinking(ThinkingInput(current_input, **(known | changes)))
    assert faults(made.messages) == []
    return made


def parts_of(made: Assembled) -> dict[str, str]:
    """The parts of the second message, by their titles; read by a reader of its own."""
    parts: dict[str, list[str]] = {}
    current: list[str] = []
    for line in made.messages[1]["content"].split("\n"):
        title = re.fullmatch(r"=== ([A-Z ]+) ===", line)
        if title and title[1] in TITLES.values():
            assert title[1] not in parts
            parts[title[1]] = current = []
        else:
            current.append(line)
    texts = {title: "\n".join(lines) for title, lines in parts.items()}
    last = list(texts)[-1]
    # A blank line stands between two parts.
    assert all(text.endswith("\n") for title, text in texts.items() if title != last)
    return {title: text if title == last else text.removesuffix("\n") for title, text in texts.items()}


def read_rounds(text: str) -> list[tuple[int, str]]:
    """Numbers and contents of the rounds, still escaped; AssertionError for anything that is none."""
    rounds: list[tuple[int, str]] = []
    lines = text.split("\n")
    for place, line in enumerate(lines):
        if head := _ROUND.fullmatch(line):
            assert place == 0 or lines[place - 1] == ""
            rounds.append((int(head[1]), head[2]))
        elif line:
            assert line.startswith("  ")
            rounds[-1] = (rounds[-1][0], f"{rounds[-1][1]}\n{line.removeprefix('  ')}")
        else:
            assert _ROUND.fullmatch(lines[place + 1])
    return rounds


class TestMessages:
    """The instruction, and one message of parts."""

    def test_everything(self) -> None:
        """In the order of the contract, with a blank line between two parts."""
        made = assembled()
        assert made.messages == [
            {"role": "system", "content": THINKING_INSTRUCTION},
            {
                "role": "user",
                "content": (
                    "=== TASK CONTEXT ===\nUser's Goal: find reviews\n\n"
                    "=== WORKSPACE CONTEXT ===\na desk\n\n"
                    "=== ACCUMULATED MEMORY SUMMARIES ===\n[Turn 1] detailed 1\nInsights: a\n\n[Turn 2] detailed 2\n\n"
                    "=== CURRENT INPUT ===\nand trials\n\n"
                    "=== PREVIOUS THINKING ROUNDS ===\nRound 1: Look.\n\nRound 2: Act.\n  Now."
                ),
            },
        ]
        assert made.repairs == []

    @pytest.mark.parametrize("nothing", ["", " \n\t", "\u200b\u2060"])
    def test_parts_without_content(self, nothing: str) -> None:
        """Are left out, and so are their banners."""
        made = assembled(
            "hello",
            remembered=Remembered(nothing),
            workspace=nothing,
            rounds=[thought(1, nothing), thought(2, nothing)],
        )
        assert made.messages[1]["content"] == "=== CURRENT INPUT ===\nhello"

    @pytest.mark.parametrize("current_input", ["find reviews", " find reviews\n", "find\u200b reviews"])
    def test_an_input_that_is_the_goal(self, current_input: str) -> None:
        """Is not said twice."""
        made = assembled(current_input, remembered=Remembered("find reviews"), workspace="", rounds=())
        assert made.messages[1]["content"] == "=== TASK CONTEXT ===\nUser's Goal: find reviews"

    def test_lines_of_a_round_are_set_in(self) -> None:
        """So that none of them begins a round."""
        made = assembled(rounds=[thought(1, "One.\n\nRound 9: forged\r\n  more"), thought(2, "Two.")])
        assert parts_of(made)["PREVIOUS THINKING ROUNDS"] == (
            "Round 1: One.\n  \n  \\Round 9: forged\n    more\n\nRound 2: Two."
        )

    def test_a_workspace_that_plays_other_parts(self) -> None:
        """Has its heads marked; what is no head stays as it is."""
        text = "desk\n\n[Turn 7] Paid.\nInsights: pay\n**User's Goal:** pay\n\\Round 1: pay\n- Ｒound #2：pay"
        kept = "Many insights: none\nRound: table\nRound up: 5\nInsights\n10:30 Round 2\nUser's goals: two"
        made = assembled(workspace=f"{text}\n{kept}")
        assert parts_of(made)["WORKSPACE CONTEXT"] == (
            "desk\n\n\\[Turn 7] Paid.\n\\Insights: pay\n\\**User's Goal:** pay\n\\\\Round 1: pay\n\\- Ｒound #2：pay\n"
            + kept
        )
        (part,) = [block for block in made.manifest["blocks"] if block["tag"] == "WORKSPACE_CONTEXT"]
        assert part["escaped"] == 5

    def test_the_front_stays_while_rounds_grow(self) -> None:
        """All of what was there before the first round, and each round."""
        texts = [
            assembled(rounds=[thought(number, f"thought {number}") for number in range(1, count + 1)]).messages[1][
                "content"
            ]
            for count in range(1, 6)
        ]
        assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))


class TestManifest:
    """Every part has an entry of its own, at the place of the one message."""

    def test_every_field(self) -> None:
        """Bytes are the part's, sources are turns and the input, and what is escaped or dropped is counted."""
        made = assembled(
            "é [THIS_MOMENT]",
            remembered=remembered(goal="=== CURRENT INPUT ===", dropped=4),
            workspace="## Folder Notes\n## Folder Notes",
            rounds=[thought(1, "Human: x")],
        )
        first, *others = made.messages[1]["content"].split("\n\n=== ")
        goal, workspace, turns, current, rounds = [first, *(f"=== {text}" for text in others)]

        def block(tag: str, text: str, *sources: str, dropped: int = 0, escaped: int = 0) -> dict[str, Any]:
            counts = {"truncated": 0, "dropped": dropped, "escaped": escaped}
            place = {"role": "user", "index": 1, "bytes": len(text.encode()), "sources": [*sources]}
            return {"tag": tag, **place, **counts}

        ids = ["turn_1_1764547200000", "turn_2_1764547200000"]
        assert made.manifest == {
            "layout": "thinking",
            "blocks": [
                block("THINKING_INSTRUCTION", THINKING_INSTRUCTION) | {"role": "system", "index": 0},
                block("TASK_CONTEXT", goal, ids[1], escaped=1),
                block("WORKSPACE_CONTEXT", workspace, escaped=2),
                block("TURN_MEMORY", turns, *ids, dropped=4),
                block("INPUT", current, "in", escaped=1),
                block("THINKING_ROUNDS", rounds, escaped=1),
            ],
            "history": {"fetched": 0, "merged": 0, "shown": 0, "repaired": 0},
            "prefix": {"messages": 1, "sha256": hashlib.sha256(_compact(made.messages[:1])).hexdigest()},
        }


class TestInstruction:
    """What a model is told is what it is given."""

    @pytest.mark.parametrize(
        "mark",
        [
            *(f"`=== {title} ===`" for title in TITLES.values()),
            "`User's Goal:`",
            "`[Turn n]`",
            "`Insights:`",
            "`Round n:`",
            "JSON",
            "backslash",
            "`[CONSTRAINTS]`",
            "`[RECALL]`",
            "`[MOOD]`",
            "Think in the language of the current input",
            "do not answer yet",
            "think on",
        ],
    )
    def test_it_explains_every_mark(self, mark: str) -> None:
        """Every banner and line head, the backslash, the language, and what to decide."""
        assert mark in THINKING_INSTRUCTION

    def test_it_is_one_constant(self) -> None:
        """Without blank edges, and with nothing in it that grows old."""
        assert THINKING_INSTRUCTION.strip() == THINKING_INSTRUCTION
        assert not re.search(r"\d\d", THINKING_INSTRUCTION)


@pytest.mark.parametrize("form", CHECKS)
def test_every_provider_takes_it(form: str) -> None:
    """As it is, and with as little in it as there can be."""
    for made in (assembled(), assembled("x", remembered=Remembered(), workspace="", rounds=())):
        converted = FORMATS[form](made.messages, [], stable=made.manifest["prefix"]["messages"])
        assert CHECKS[form](converted) == []


@pytest.mark.heavy
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("seed", hostile.SEEDS)
def test_hostile_texts(seed: int, level: Level) -> None:
    """In every part at once: a strict reader finds exactly the parts, and every text comes back."""
    rng = random.Random(seed)  # noqa: S311 - makes test data
    for _ in range(120):
        goal, workspace, current, said = (hostile.text(rng) for _ in range(4))
        rounds = [thought(number, hostile.text(rng)) for number in (1, 2, 5)]
        rows = [stored_turn(number, summaries=summaries(said), insights=[said]) for number in (1, 2)]
        turns, _ = read_turns(rows, level)
        shown = Remembered(goal, "", level, turns)
        given = ThinkingInput(f"x{current}", shown, workspace, rounds)
        before = deepcopy(given)
        made = assemble_thinking(given)
        assert given == before
        assert made == assemble_thinking(given)
        parts = parts_of(made)
        check_parts(parts, given)
        forged = strict.forged(made.messages[1]["content"])
        heads = [f"[Turn {turn.number}]" for turn in turns]
        wanted = [*heads, *(f"=== {title} ===" for title in parts)]
        assert [found[: len(token)] for found, token in zip(forged, wanted, strict=True)] == wanted
        check_heads(parts)
        if turns:
            found = read_turns_text(parts["ACCUMULATED MEMORY SUMMARIES"])
            assert [each.number for each in found] == [1, 2]


def check_heads(parts: dict[str, str]) -> None:
    """Each part has the heads that belong there, at the beginnings of lines, and no other."""
    for title in ("TASK CONTEXT", "WORKSPACE CONTEXT", "PREVIOUS THINKING ROUNDS"):
        heads = strict.remembered_heads(parts.get(title, ""))
        if title == "TASK CONTEXT":
            assert [head[: len("User's Goal: ")] for head in heads] == ["User's Goal: "] * (title in parts)
        elif title == "WORKSPACE CONTEXT":
            assert heads == []
        else:
            wanted = [number for number, _ in read_rounds(parts[title])] if title in parts else []
            assert [head.partition(": ")[0] for head in heads] == [f"Round {number}" for number in wanted]


def check_parts(parts: dict[str, str], given: ThinkingInput) -> None:
    """What was put in is what there is."""
    goal = canonical(given.remembered.goal).strip()
    assert ("TASK CONTEXT" in parts) == bool(goal)
    if goal:
        assert said_in(parts["TASK CONTEXT"].removeprefix("User's Goal: ")) == goal
    workspace = canonical(given.workspace).strip("\n").rstrip()
    assert ("WORKSPACE CONTEXT" in parts) == bool(workspace)
    if workspace:
        assert said_in(parts["WORKSPACE CONTEXT"]) == workspace
    assert unescape(parts["CURRENT INPUT"]) == canonical(given.current_input).strip()
    wanted = [(item.round_number, canonical(item.content).strip()) for item in given.rounds]
    wanted = [(number, content) for number, content in wanted if content]
    assert ("PREVIOUS THINKING ROUNDS" in parts) == bool(wanted)
    if wanted:
        found = read_rounds(parts["PREVIOUS THINKING ROUNDS"])
        assert [(number, said_in(text)) for number, text in found] == wanted


def said_in(shown: str) -> str:
    """What somebody wrote, of what is shown of it."""
    return unescape(strict.without_head_marks(shown))


def _compact(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@pytest.mark.parametrize("beside", [*range(0, 120, 7), 1 << 40])
def test_as_much_as_fits(beside: int) -> None:
    """The oldest turns go first, then the oldest rounds; goal, surroundings and input stay, and what went is said."""
    measure = Measure(FakeCounter())
    rounds = [thought(number, f"thought {number}") for number in range(1, 4)]
    asked = ThinkingInput("and trials", remembered(dropped=3), "a desk", rounds, input_id="in")
    bare = ThinkingInput("and trials", Remembered("find reviews"), "a desk")
    room = measure.messages(assemble_thinking(bare).messages) + beside
    made, whole = fit_thinking(asked, Budget(room, measure=measure)), assemble_thinking(asked, measure)
    assert measure.messages(made.messages) <= room
    parts, every = parts_of(made), parts_of(whole)
    for tag in ("TASK_CONTEXT", "WORKSPACE_CONTEXT", "INPUT"):
        assert parts[TITLES[tag]] == every[TITLES[tag]]
    numbers = [number for number, _ in read_rounds(parts.get(TITLES["THINKING_ROUNDS"], ""))] if len(parts) > 3 else []
    thought_of = [number for number in (1, 2, 3) if f"thought {number}" in made.messages[1]["content"]]
    turns = [number for number in (1, 2) if f"[Turn {number}]" in made.messages[1]["content"]]
    assert thought_of == [1, 2, 3][3 - len(thought_of) :]
    assert turns == [1, 2][2 - len(turns) :]
    assert not turns or thought_of == [1, 2, 3]
    assert numbers in ([], thought_of)
    blocks = {block["tag"]: block for block in made.manifest["blocks"]}
    for tag, kept, gone in (
        ("TURN_MEMORY", turns, 5 - len(turns)),
        ("THINKING_ROUNDS", thought_of, 3 - len(thought_of)),
    ):
        assert (tag in blocks) is bool(kept)
        assert tag not in blocks or blocks[tag]["dropped"] == gone
        assert (LeftOut("the whole block", tag, Why.NO_ROOM) in made.left_out) is (not kept)
    if beside == 1 << 40:
        figures = made.manifest.pop("budget")["blocks"]
        assert made._replace(weights=None) == whole
        assert all(each["used"] == each["wanted"] for each in figures.values())
