"""`scripts/context_preview.py`: a context from sample data, through the real code, without any server."""

import json
from typing import Final

import pytest
import typer
from typer.testing import CliRunner, Result

from nexus.services.text.escape import PINNED_TAGS
from scripts.context_preview import main

pytestmark = pytest.mark.once

APP: Final = typer.Typer()
APP.command()(main)


def _preview(*arguments: str) -> Result:
    return CliRunner().invoke(APP, arguments)


def test_it_shows_every_block_and_where_it_came_from() -> None:
    """Without options the five messages are shown, each with its block and size, and the manifest."""
    shown = _preview()
    assert shown.exit_code == 0, shown.stderr
    for block in ("CORE_IDENTITY", "CAPABILITIES", "SHARED_MEMORY", "FRIENDS_INFO", "THIS_MOMENT"):
        assert f"[{block}]" in shown.stdout
    assert "Where it came from" in shown.stdout


def test_raw_prints_the_messages_as_json() -> None:
    """`--raw` prints the list as a model is given it, the same bytes every time, Chinese unescaped."""
    raw = _preview("--raw")
    messages = json.loads(raw.stdout)
    assert [message["role"] for message in messages] == ["system", *["user"] * 4]
    assert messages[2]["content"].startswith("[SHARED_MEMORY count=12]\n")
    assert "天目山" in raw.stdout
    assert _preview("--raw").stdout == raw.stdout


def test_the_agent_layout_marks_the_pinned_block() -> None:
    """A session with parallel calls: the block stands before them, and each part of it is marked."""
    shown = _preview("--layout", "agent")
    assert shown.exit_code == 0, shown.stderr
    titles = [line for line in shown.stdout.split("\n") if line.startswith("╭")]
    pinned = [place for place, line in enumerate(titles) if "pinned" in line]
    assert [tag for place in pinned for tag in PINNED_TAGS if f"[{tag}]" in titles[place]] == list(PINNED_TAGS)
    assert pinned == list(range(pinned[0], pinned[0] + 4))
    raw = json.loads(_preview("--layout", "agent", "--raw").stdout)
    following = raw[pinned[-1] + 1]
    assert len(following["tool_calls"]) == 3
    assert [message["role"] for message in raw[pinned[-1] + 2 :][:3]] == ["tool"] * 3


def test_the_agent_layout_shows_the_memory() -> None:
    """Working memory, goal and turns first, the length of the list last; the manifest has the tokens of each block."""
    raw = json.loads(_preview("--layout", "agent", "--level", "brief", "--raw").stdout)
    tags = [message["content"].partition("\n")[0] for message in (*raw[1:4], raw[-1])]
    assert [tag.split(" ")[0].strip("[]") for tag in tags] == [
        *("WORKING_MEMORY", "TASK_CONTEXT", "TURN_MEMORY", "CONTEXT_META"),
    ]
    assert tags[0].endswith(" details=1]")
    assert tags[2] == "[TURN_MEMORY level=brief count=2]"
    shown = _preview("--layout", "agent").stdout
    assert "TOKENS" in shown.partition("Where it came from")[2]
    # The sample has room.
    assert "Left out" not in shown


def test_the_thinking_layout_shows_every_part() -> None:
    """One message of five parts, all of them in the manifest."""
    shown = _preview("--layout", "thinking")
    assert shown.exit_code == 0, shown.stderr
    for tag in ("TASK_CONTEXT", "WORKSPACE_CONTEXT", "TURN_MEMORY", "INPUT", "THINKING_ROUNDS"):
        assert tag in shown.stdout.partition("Where it came from")[2]


@pytest.mark.parametrize("form", ["openai", "anthropic", "gemini"])
@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (("--layout", "thinking", "--level", "comprehensive"), "[Turn 5] "),
        *(
            (("--layout", "agent", "--placement", placement), "## Current TODO List")
            for placement in ("from_end", "before_assistant", "tail")
        ),
    ],
)
def test_every_placement_in_every_format(options: tuple[str, ...], shown: str, form: str) -> None:
    """As JSON, the same bytes every time."""
    raw = _preview(*options, "--format", form, "--raw")
    assert raw.exit_code == 0, raw.stderr
    assert json.loads(raw.stdout)
    assert shown in raw.stdout
    assert _preview(*options, "--format", form, "--raw").stdout == raw.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--from-end", "3"), "says nothing in the layout dialogue"),
        (("--layout", "agent", "--limit", "3"), "says nothing in the layout agent"),
        (("--level", "brief"), "says nothing in the layout dialogue"),
        (("--layout", "thinking", "--from-end", "3"), "says nothing in the layout thinking"),
        (("--layout", "thinking", "--level", "short"), "'short' is unknown; allowed: brief, detailed, comprehensive"),
        (
            ("--layout", "agent", "--placement", "middle"),
            "'middle' is unknown; allowed: from_end, before_assistant, tail",
        ),
        (("--layout", "monologue"), "'monologue' is unknown; allowed: dialogue"),
        (("--format", "xml"), "'xml' is unknown; allowed: openai, anthropic, gemini"),
    ],
)
def test_options_that_are_wrong(options: tuple[str, ...], said: str) -> None:
    """Are refused rather than passed over."""
    refused = _preview(*options)
    assert refused.exit_code == 2
    assert said in " ".join(refused.stderr.replace("│", " ").split())
