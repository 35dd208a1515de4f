"""What takes how much of a context: each block, and each kind of content. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from nexus.core.wire import compact
from nexus.services.records.explain import Explained, Sent, ShownBlock

Kind = Literal[
    "instructions", "what was said", "tool results", "tool calls", "tool definitions", "memory", "the person", "state"
]

_KINDS: Final[Mapping[str, Kind]] = {
    **dict.fromkeys(("CORE_IDENTITY", "SYSTEM_PROMPT", "TASK_PROMPT", "CAPABILITIES"), "instructions"),
    **dict.fromkeys(("THINKING_INSTRUCTION", "AGENT_ROLE"), "instructions"),
    **dict.fromkeys(("WORKING_MEMORY", "CONVERSATION_SUMMARY", "TURN_MEMORY", "RECALL", "THINKING_ROUNDS"), "memory"),
    **dict.fromkeys(("FRIENDS_INFO", "CONSTRAINTS", "MOOD"), "the person"),
    **dict.fromkeys(("TASK_CONTEXT", "WORKSPACE_CONTEXT", "CONTEXT_META"), "state"),
    **dict.fromkeys(("TODO_LIST", "USEFUL_INFORMATION", "FOLDER_NOTES"), "state"),
}
_SAID: Final[Kind] = "what was said"
_TOOLS: Final[Kind] = "tool definitions"


@dataclass(frozen=True, slots=True)
class Portion:
    """What a block takes, or the definitions of tools, which are of no block.

    Attributes:
        kind: of the block; `parts`: by kind what it consists of.
        percent: of all.
    """

    tag: str
    kind: Kind
    size: int
    percent: float
    parts: Mapping[Kind, int]


@dataclass(frozen=True, slots=True)
class Window:
    """What takes how much of a context.

    Attributes:
        unit: `bytes` where tokens were not counted, as it is for contexts that are far from the limit.
        used: of all, with what the blocks do not have, such as marks between messages.
        limit: tokens of the window; None where nothing was counted.
        portions: the definitions of tools, then the blocks in their order.
        kinds: by kind the size and the percentage, the largest first.
        by_entry: tool results and calls are told from the words around them; not where only the manifest is known.
    """

    unit: Literal["tokens", "bytes"]
    used: int
    limit: int | None
    portions: tuple[Portion, ...]
    kinds: Mapping[Kind, tuple[int, float]]
    by_entry: bool

    @property
    def percent(self) -> float | None:
        """Of the window's limit."""
        return 100 * self.used / self.limit if self.limit else None


def window_of(explained: Explained) -> Window:
    """What takes how much of this context."""
    counted = explained.tokens
    in_tokens = isinstance(counted.get("used"), int) and all(block.tokens is not None for block in explained.blocks)
    sizes = [(block.tokens or 0) if in_tokens else block.bytes for block in explained.blocks]
    # Before all messages, as providers have them.
    tools = _number(counted.get("tools")) if in_tokens else sum(len(compact(tool)) for tool in explained.tools)
    total = tools + sum(sizes)

    def percent(size: float) -> float:
        return 100 * size / total if total else 0.0

    portions = [Portion("tools", _TOOLS, tools, percent(tools), {_TOOLS: tools})] if tools else []
    portions += [
        Portion(block.tag, _kind_of(block), size, percent(size), dict(_split(explained, block, size)))
        for block, size in zip(explained.blocks, sizes, strict=True)
    ]
    kinds = Counter[Kind]()
    for portion in portions:
        kinds.update(portion.parts)
    return Window(
        "tokens" if in_tokens else "bytes",
        _number(counted["used"]) if in_tokens else total,
        _number(counted.get("limit")) or None,
        tuple(portions),
        {kind: (size, percent(size)) for kind, size in kinds.most_common()},
        by_entry=explained.has_texts,
    )


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _split(explained: Explained, block: ShownBlock, size: int) -> Iterator[tuple[Kind, int]]:
    """The block's size by kinds; recorded messages are told apart, each with its part of the block by its bytes."""
    entries = explained.sent[block.first : block.end]
    if _kind_of(block) != _SAID or not entries:
        yield _kind_of(block), size
        return
    weights = Counter[Kind]()
    for entry in entries:
        weights[_kind_of_entry(entry)] += entry.size
    (largest, _), *others = weights.most_common()
    parts = {kind: size * weight // sum(weights.values()) for kind, weight in others}
    yield largest, size - sum(parts.values())
    yield from parts.items()


def _kind_of(block: ShownBlock) -> Kind:
    return _KINDS.get(block.tag, _SAID)


def _kind_of_entry(entry: Sent) -> Kind:
    body = entry.body
    if entry.role == "tool" or body.get("type") == "tool_result" or "function_response" in body:
        return "tool results"
    if body.get("tool_calls") or body.get("type") == "tool_use" or "function_call" in body:
        return "tool calls"
    return _SAID
