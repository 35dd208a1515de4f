"""`scripts/context_preview.py`: a context from sample data, through the real code, without any server."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "context_preview.py"


def _preview(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_it_shows_every_block_and_where_it_came_from() -> None:
    """Without options the five messages are shown, each with its block and size, and the manifest."""
    shown = _preview()
    assert shown.returncode == 0, shown.stderr
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


def test_the_limit_counts_messages_after_merging() -> None:
    """`--limit` shows the newest messages only."""
    messages = json.loads(_preview("--raw", "--limit", "3").stdout)
    assert messages[2]["content"].startswith("[SHARED_MEMORY count=3]\n")


def test_an_unknown_layout_is_refused() -> None:
    """A layout that is not there is named, with those that are, and the exit code is that of wrong usage."""
    refused = _preview("--layout", "monologue")
    assert refused.returncode == 2
    assert "'monologue' is unknown; allowed: dialogue" in refused.stderr
