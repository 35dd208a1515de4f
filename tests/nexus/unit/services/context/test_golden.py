"""A request, stored rows and stored turns, from files, give the response in a last file, to the byte."""

import hashlib
import json
from pathlib import Path
from typing import Any, Final

import pytest

from nexus.core.models import Message
from nexus.services.context.prompts import THINKING_INSTRUCTION, PromptManager
from tests.nexus.support.builder_settings import settings_with
from tests.nexus.support.recall_source import WordCounts
from tests.nexus.unit.services.parts import opened
from tests.nexus.unit.services.remembering_turns import FakeTurns

GOLDEN: Final = Path(__file__).parent / "golden"
# Two of the three runs of the session are shown as they were said.
SETTINGS: Final = settings_with(history_messages=6)
OPENINGS: Final = {"agent": PromptManager().get_core_identity(), "thinking": THINKING_INSTRUCTION}


def load(layout: str, name: str) -> Any:
    """One of the files."""
    return json.loads((GOLDEN / layout / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("layout", ["agent", "thinking"])
async def test_the_golden_request(layout: str) -> None:
    """The opening is in the code and has tests of its own; the files would only repeat it."""
    turns = FakeTurns()
    turns.plant(*load(layout, "turns"))
    async with opened(turns=turns, settings=SETTINGS) as parts:
        parts.store.plant("messages", load(layout, "rows") if layout == "agent" else [])
        content = await parts.build(Message.model_validate(load(layout, "request")))
    prefix = content["context"]["prefix"]
    front = json.dumps(content["messages"][: prefix["messages"]], ensure_ascii=False, separators=(",", ":")).encode()
    assert prefix.pop("sha256") == hashlib.sha256(front).hexdigest()
    assert content["messages"].pop(0) == {"role": "system", "content": OPENINGS[layout]}
    assert content["context"]["blocks"][0].pop("bytes") == len(OPENINGS[layout].encode())
    assert set(content["context"].pop("timings_ms")) == {"gather", "assemble", "build"}
    expected = (GOLDEN / layout / "response.json").read_text(encoding="utf-8")
    assert json.dumps(content, ensure_ascii=False, indent=2) + "\n" == expected


@pytest.mark.parametrize("layout", ["dialogue", "agent", "thinking"])
async def test_the_golden_request_with_recall(layout: str) -> None:
    """The agent's request, in each layout: what is shown behind the opening, and what the manifest says of it."""
    asked, turns = load("agent", "request"), FakeTurns()
    asked["content"]["metadata"] |= {"layout": layout, "recall": True, "client_timezone_offset": -60}
    turns.plant(*load("agent", "turns"))
    recall = WordCounts(load("recall", "rows"))
    async with opened(turns=turns, recall=recall, settings=SETTINGS) as parts:
        parts.store.plant("messages", load("agent", "rows"))
        content = await parts.build(Message.model_validate(asked))
    manifest = content["context"]
    shown = {"messages": content["messages"][1:], "blocks": manifest["blocks"][1:], "recall": manifest["recall"]}
    expected = (GOLDEN / "recall" / f"{layout}.json").read_text(encoding="utf-8")
    assert json.dumps(shown, ensure_ascii=False, indent=2) + "\n" == expected
