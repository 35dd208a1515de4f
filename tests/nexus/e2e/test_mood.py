"""`[MOOD]` from a running service: one line where it is wanted, and no byte anywhere else (contract §15)."""

import json
import re
from typing import Any

import pytest

from nexus.client import new_run
from tests.nexus.e2e.harness import PATIENCE_S, Environment, serving
from tests.nexus.e2e.test_client import client_of

FORMATS = ("openai", "anthropic", "gemini")


async def contexts(environment: Environment, owner: str) -> list[dict[str, Any]]:
    """The contexts of three runs in each layout and format, of which each says how the person feels."""
    found: list[dict[str, Any]] = []
    async with serving(environment), client_of(environment) as client:
        for layout in ("dialogue", "agent", "thinking"):
            for form in FORMATS:
                run = new_run(
                    owner, "明天考试，我好紧张，睡不着！", layout=layout, format=form, session_id=f"{layout} {form}"
                )
                run.metadata["client_timestamp_utc"] = "2026-03-01T12:00:00Z"
                content = await client.build(run, timeout=PATIENCE_S)
                assert content["degraded"] == []
                await client.record_answer(run, "Sleep is the best revision.", timeout=PATIENCE_S)
                again = await client.build(run, timeout=PATIENCE_S)
                found += [content, again]
    return found


def without_mood(messages: list[Any]) -> tuple[str, int]:
    """The messages as JSON without the block, and how often it was there: a message, a part of one, or a line of it."""
    # When something was said is when the test ran, and what `[CONTEXT_META]` counts is all that is there.
    varying = r"(tokens_used|tokens_percent|messages): [0-9.]+|\[[0-9-]+ [0-9:]+\]"
    text = re.sub(varying, "…", json.dumps(messages, ensure_ascii=False))
    # In the layout `thinking` the goal stands before it.
    line = r"\[MOOD label=worried trend=[a-z]+ confidence=0\.\d+\] [^\"\\]*"
    return re.subn(rf'\{{(?:"(?:role|type)": "\w+", )?"(?:content|text)": "{line}"\}}, |\\n\\n{line}', "", text)


@pytest.mark.heavy
@pytest.mark.once
async def test_on_and_off(environment: Environment) -> None:
    """The same conversation with one owner while the setting is `rules`, and with another while it is off."""
    environment["NEXUS_BUS__MODE"] = "streams"
    on = await contexts(environment | {"NEXUS_CONTEXT__MOOD": "rules"}, "ada")
    off = await contexts(environment, "bob")
    for with_mood, without in zip(on, off, strict=True):
        assert "[MOOD label" not in str(without["messages"])
        assert without_mood(with_mood["messages"]) == (without_mood(without["messages"])[0], 1)
        assert with_mood["context"]["prefix"] == without["context"]["prefix"]
        assert with_mood.get("system") == without.get("system")
