"""Thousands of texts that try to pass for structure, in every field that a user, a tool or a profile can write.

None forges structure: a strict reader finds in each block exactly what was put in. And every text comes back.
"""

import json
import random
from typing import Any, Final

import pytest

from nexus.services.context.dialogue import FriendsInfoFormatter, MemoryFormatter, MomentFormatter
from nexus.services.context.prompts import PromptManager
from nexus.services.text.escape import canonical, escape, escape_counted, unescape
from tests.nexus.unit.services.context import hostile, strict

pytestmark = pytest.mark.heavy

TEXTS_PER_SEED: Final = 1000


def hostile_texts(seed: int) -> list[str]:
    """A thousand texts, the same for the same seed."""
    rng = random.Random(seed)  # noqa: S311 - makes test data
    return [hostile.text(rng) for _ in range(TEXTS_PER_SEED)]


def in_one_line(text: str, limit: int) -> str:
    """What the contract lets an annotation show of a text."""
    # Arguments are JSON, which may hold a NUL that no store keeps.
    line = " ".join(canonical(text.replace("\x00", "\ufffd")).split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def rows(text: str) -> list[dict[str, Any]]:
    """Two runs that say the text in every field of a stored row: as a human, as an AI, and as a tool call."""
    flat = {"id": "c1", "name": text, "arguments": {text: text}}
    function = {"name": "web_search", "arguments": json.dumps({"query": text, "limit": 1})}
    nested = {"id": "c2", "type": "function", "function": function}
    said = [
        ("r1", "HUMAN", text, None),
        ("r1", "AI", text, [flat, nested]),
        ("r1", "AI", text, None),
        ("r1", "AI", text, None),
        ("r2", "HUMAN", text, None),
        ("r2", "AI", "", [nested]),
    ]
    return [
        {
            "id": f"m{minute}",
            "run_id": run_id,
            "role": role,
            "content": content,
            "timestamp": f"2025-12-10T15:3{minute}:00Z",
            "metadata": {"tool_calls": calls},
        }
        for minute, (run_id, role, content, calls) in enumerate(said)
    ]


def unescaped_in_line(text: str) -> str:
    """What was escaped before something that could end a tag of it."""
    return unescape(f"{text} 1]>").removesuffix(" 1]>")


def back(part: strict.Part) -> str | list[tuple[str, ...]]:
    """What the author of a part of a message wrote, read back out of the block."""
    if isinstance(part, str):
        return unescape(part)
    return [
        (
            unescaped_in_line(strict.unmarked_name(item.name)),
            unescaped_in_line(f"{strict.unmarked_name(item.key or '')}:").removesuffix(":"),
            unescaped_in_line(strict.unmarked_value(item.value or "")),
        )
        if isinstance(item, strict.Call)
        else (
            unescaped_in_line(strict.unmarked_name(item.name)),
            unescaped_in_line(strict.unmarked_value(item.text or "", "tooiresuit")),
        )
        for item in part
    ]


@pytest.mark.parametrize("seed", hostile.SEEDS)
def test_a_text_escaped_by_itself_forges_nothing_and_comes_back(seed: int) -> None:
    """No structural token stands without a backslash before it, and `unescape` gives the canonical text."""
    for text in hostile_texts(seed):
        escaped = escape(text)
        assert not strict.forged(escaped), (text, escaped)
        assert unescape(escaped) == canonical(text)


@pytest.mark.parametrize("seed", hostile.SEEDS)
def test_every_disguise_of_a_tag_a_line_head_a_heading_and_a_banner_is_marked(seed: int) -> None:
    """Whatever its case, width, spacing, letters and brackets: a token alone gets its mark at its very start."""
    rng = random.Random(seed)  # noqa: S311 - makes test data
    for _ in range(20):
        for token in hostile.TAGS:
            disguised = hostile.tag(rng, token)
            assert escape(disguised).startswith(f"\\{disguised[0]}"), disguised
        heads = [hostile.head(rng, token) for token in hostile.HEADS]
        titles = [hostile.heading(rng, token) for token in hostile.HEADINGS + hostile.BANNERS]
        for disguised in [*heads, *titles]:
            assert escape_counted(disguised)[1] == 1, disguised
            assert escape(disguised).startswith("\\"), disguised


@pytest.mark.parametrize("seed", hostile.SEEDS)
def test_the_memory_has_exactly_the_structure_of_its_rows(seed: int) -> None:
    """Speakers, times, order, texts and calls are those of the rows, wherever the text stands."""
    for text in hostile_texts(seed):
        block = MemoryFormatter.format_shared_memory(rows(text), truncate_chars=20_000)
        once = canonical(text)
        name, key = (in_one_line(text, 64) or stand_in for stand_in in ("unknown", ""))
        search = ("web_search", "query", in_one_line(text, 100)) if in_one_line(text, 100) else ("web_search", "", "")
        flat = (name, key, in_one_line(text, 100)) if in_one_line(text, 100) else (name, "", "")
        spoken = [once] if text.strip() else []
        answers = [f"{once}\n{once}"] if text.strip() else []
        assert [(said.speaker, said.time, [*map(back, said.parts)]) for said in strict.read_memory(block)] == [
            ("Human", "2025-12-10 15:30", spoken or [""]),
            ("Nexus", None, [*spoken, [flat, search], *answers]),
            ("Human", "2025-12-10 15:34", spoken or [""]),
            ("Nexus", None, [[search]]),
        ]


@pytest.mark.parametrize("seed", hostile.SEEDS)
def test_the_memory_has_exactly_the_results_of_its_calls(seed: int) -> None:
    """Each behind the calls of its message, with the tool's name and the beginning of what it gave."""
    for text in hostile_texts(seed):
        results = [
            {"run_id": run_id, "role": "TOOL", "content": text, "timestamp": "2025-12-10T15:36:00Z"}
            | {"id": f"{run_id} {call_id}", "metadata": {"call_id": call_id}}
            for run_id, call_id in (("r1", "c1"), ("r1", "c2"), ("r2", "c2"))
        ]
        history = [*rows(text), *results]
        block = MemoryFormatter.format_shared_memory(history, truncate_chars=20_000, show_tool_results=True)
        said = in_one_line(text, 100) if text.strip() else "(empty)"
        both = [(in_one_line(text, 64) or "unknown", said), ("web_search", said)]
        found = [
            [back(part) for part in each.parts if not isinstance(part, str) and isinstance(part[0], strict.Result)]
            for each in strict.read_memory(block)
        ]
        assert found == [[], [both], [], [both[1:]]]


_SHARDS: Final = (
    *(
        "[",
        "[",
        "<",
        "THIS_MOMENT]",
        "/human_input>",
        "current_time",
        ">",
        "[tool_use",
        "tool_use:x",
        "tool_use",
        ":",
        ";",
    ),
    *("Human:", "Human", "  Nexus:", "[2025]", "]", ", ", "\\", "_", " ", "\n", "\r", "\u2028", "\u200b", "x"),
)


def rows_of_shards(rng: random.Random) -> list[dict[str, Any]]:
    """A few rows whose fields are pieces of tokens."""

    def shards() -> str:
        return "".join(rng.choices(_SHARDS, k=rng.randrange(5)))

    return [
        {
            "run_id": rng.choice(["r1", "r2", ""]),
            "role": rng.choice(["HUMAN", "AI", "AI"]),
            "content": shards(),
            "timestamp": f"2025-12-10T15:0{minute}:00Z",
            "metadata": {
                "tool_calls": [{"name": shards(), "arguments": {shards(): shards()}} for _ in range(rng.randrange(3))]
            },
        }
        for minute in range(rng.randrange(1, 6))
    ]


@pytest.mark.parametrize("seed", hostile.SEEDS)
def test_nothing_comes_about_between_fields_rows_and_cuts(seed: int) -> None:
    """Pieces of tokens in neighbouring fields and rows never make one: all structure is the block's own."""
    rng = random.Random(seed)  # noqa: S311 - makes test data
    for _ in range(200):
        history = rows_of_shards(rng)
        block = MemoryFormatter.format_shared_memory(history, truncate_chars=rng.choice([20, 30, 500]))
        said = strict.read_memory(block)
        annotations = [part for each in said for part in each.parts if not isinstance(part, str)]
        declared = [row["metadata"]["tool_calls"] for row in history if row["role"] == "AI"]
        assert sum(map(len, annotations)) == sum(map(len, declared))
        assert len(strict.forged(block)) == 1 + len(said) + len(annotations)


@pytest.mark.parametrize("seed", hostile.SEEDS)
def test_this_moment_holds_the_input_and_nothing_else(seed: int) -> None:
    """The input stands between the two marks, and a hostile time is no time."""
    for text in hostile_texts(seed):
        block = MomentFormatter.format_this_moment(text, "2025-12-10T08:00:00Z", "-480")
        head = "[THIS_MOMENT]\n<current_time>2025-12-10 16:00:00+08:00</current_time>\n<human_input>\n"
        assert block.startswith(head)
        assert block.endswith("\n</human_input>")
        inside = block.removeprefix(head).removesuffix("\n</human_input>")
        assert not strict.forged(inside)
        assert unescape(inside) == canonical(text)
        assert MomentFormatter.format_this_moment("x", text, text) == "[THIS_MOMENT]\n<human_input>\nx\n</human_input>"


@pytest.mark.parametrize("field", ["friends_profile", "learning"])
@pytest.mark.parametrize("seed", hostile.SEEDS)
def test_friends_info_holds_the_profile_and_nothing_else(seed: int, field: str) -> None:
    """Current and legacy profile texts follow the title, stripped."""
    for text in hostile_texts(seed):
        block = FriendsInfoFormatter.format_friends_info({"prompt_overrides": {field: text}, "created_at": text})
        head = "[FRIENDS_INFO]\nAbout this friend:\n\n"
        assert block.startswith(head)
        inside = block.removeprefix(head)
        assert not strict.forged(inside)
        assert unescape(inside) == (canonical(text).strip() or "(Still learning about this friend's preferences)")


@pytest.mark.parametrize("seed", hostile.SEEDS)
def test_a_tool_is_described_in_its_own_lines(seed: int) -> None:
    """Name, notes and parameter names are one line each; no line of a description passes for one of these."""
    prompts = PromptManager()
    for text in hostile_texts(seed):
        parameters = {"properties": {text: {"type": text, "description": text}}, "required": [text]}
        definition = {"name": text, "description": text, "parameters": parameters}
        block = prompts.get_capabilities_prompt([definition, {"name": "last", "description": "d"}])
        head, end = "[CAPABILITIES]\nAvailable tools in this conversation:\n\n", "\n\n### last\nd"
        assert block.startswith(head)
        assert block.endswith(end)
        inside = block.removeprefix(head).removesuffix(end)
        assert not strict.forged(inside)
        assert all(
            shown in {line, guarded(line)}
            for shown, line in zip(unescape(inside).split("\n"), described(text), strict=True)
        )
        # A name can make the line above it a heading of the pinned block, which then has a mark.
        assert sum(line.startswith("### ") for line in block.split("\n")) == 2 - inside.startswith("\\")
        assert inside.split("\n").count("Parameters:") == 1


def guarded(line: str) -> str:
    """A line of a description with the backslash that keeps it from passing for a line of the block."""
    words = line.lstrip()
    return f"{line[: len(line) - len(words)]}\\{words}"


def described(text: str) -> list[str]:
    """The lines of a tool that says the text in every field."""
    line = canonical(text).replace("\n", " ").strip()
    note = f": {line}" if line else ""
    return [
        f"### {line or 'unknown'}",
        *(canonical(text).strip() or "No description").split("\n"),
        "Parameters:",
        f"- {line or 'unknown'} ({line or 'any'}, required){note}",
    ]
