"""The layouts: recipes for the message list (CONTRACT §4). Pure: the same inputs give the same bytes."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nexus.services.context.blocks import Block
from nexus.services.context.escape import CountingEscape
from nexus.services.context.formatters import FriendsInfoFormatter, MemoryFormatter, MomentFormatter
from nexus.services.context.prompts import PromptManager

# Of the dialogue layout the next build of the same owner shares the identity and the tools; the memory moves on.
_DIALOGUE_PREFIX: Final = 2


@dataclass(frozen=True, slots=True)
class DialogueInput:
    """Everything that the five messages of the dialogue layout are made of.

    Attributes:
        tools: tool definitions, in the order in which they are shown.
        history: stored rows, in any order.
        timestamp_utc: the run's own time; `""` for none.
        timezone_offset: minutes west of UTC.
        input_id: id of the message that the input came in.
    """

    tools: Sequence[Mapping[str, Any]]
    history: Sequence[Any]
    user_profile: Mapping[str, Any] | None
    current_input: str
    current_run_id: str = ""
    timestamp_utc: str = ""
    timezone_offset: int = 0
    history_size: int = 20
    truncate_chars: int = 500
    default_profile: str = ""
    input_id: str = ""


@dataclass(frozen=True, slots=True)
class Assembled:
    """A message list and the manifest of how it came to be (CONTRACT §8), without notes and timings."""

    messages: list[dict[str, Any]]
    manifest: dict[str, Any]


def assemble_dialogue(given: DialogueInput) -> Assembled:
    """The five messages of CONTRACT §4."""
    prompts = PromptManager()
    tools_escape = CountingEscape()
    capabilities = prompts.get_capabilities_prompt(given.tools, escape=tools_escape)
    memory = MemoryFormatter.render(
        given.history,
        given.history_size,
        current_run_id=given.current_run_id,
        truncate_chars=given.truncate_chars,
        timezone_offset=given.timezone_offset,
    )
    sources = (given.input_id,) if given.input_id else ()
    blocks = [
        Block("CORE_IDENTITY", "system", prompts.get_core_identity()),
        Block("CAPABILITIES", "user", capabilities, escaped=tools_escape.marked),
        memory.block,
        FriendsInfoFormatter.render(given.user_profile, given.default_profile),
        MomentFormatter.render(given.current_input, given.timestamp_utc, given.timezone_offset, sources=sources),
    ]
    messages = [block.message() for block in blocks]
    manifest = {
        "layout": "dialogue",
        "blocks": [block.describe(index) for index, block in enumerate(blocks)],
        "history": {
            # Whether the run's own input is among the rows already depends on who was faster, and shall not show.
            "fetched": sum(not _is_of_run(row, given.current_run_id) for row in given.history),
            "merged": memory.merged,
            "shown": memory.shown,
            "repaired": memory.repaired,
        },
        "prefix": describe_prefix(messages, _DIALOGUE_PREFIX),
    }
    return Assembled(messages, manifest)


def _is_of_run(row: Any, run_id: str) -> bool:
    return bool(run_id) and isinstance(row, Mapping) and row.get("run_id") == run_id


def describe_prefix(messages: Sequence[Mapping[str, Any]], count: int) -> dict[str, Any]:
    """The leading `count` messages and the SHA-256 of their compact JSON in UTF-8 (CONTRACT §8)."""
    text = json.dumps(messages[:count], ensure_ascii=False, separators=(",", ":"))
    return {"messages": count, "sha256": hashlib.sha256(text.encode()).hexdigest()}
