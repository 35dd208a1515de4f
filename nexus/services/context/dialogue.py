"""Layout `dialogue`: five messages, from the identity to this moment (contract §4). Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from nexus.services.context.blocks import Assembled, Block, put_together, source_of
from nexus.services.context.budget import Budget, largest
from nexus.services.context.formatters import FriendsInfoFormatter, MemoryFormatter, MomentFormatter
from nexus.services.context.prompts import PromptManager, identity_block
from nexus.services.history.transcript import count_others
from nexus.services.text.escape import CountingEscape
from nexus.services.text.tokens import Measure

# The next build of the same owner shares the identity and the tools; the memory moves on. Where the tools may not be
# all there, it shares the identity alone.
_STABLE: Final = 2
_STABLE_WITHOUT_TOOLS: Final = 1


@dataclass(frozen=True, slots=True)
class DialogueInput:
    """Everything that the five messages are made of.

    Attributes:
        tools: tool definitions, in the order in which they are shown.
        tools_complete: there are no others.
        history: stored rows, in any order.
        timestamp_utc: the run's own time, read or as it was sent; `""` for none.
        timezone_offset: minutes west of UTC.
        input_id: id of the message that the input came in.
    """

    tools: Sequence[Mapping[str, Any]]
    history: Sequence[Any]
    user_profile: Mapping[str, Any] | None
    current_input: str
    current_run_id: str = ""
    timestamp_utc: str | datetime = ""
    timezone_offset: int = 0
    history_size: int = 20
    truncate_chars: int = 500
    default_profile: str = ""
    tools_complete: bool = True
    input_id: str = ""


def fit_dialogue(given: DialogueInput, budget: Budget) -> Assembled:
    """The five messages within the budget, as far as leaving out the oldest of the memory can bring that about."""
    uncounted = assemble_dialogue(given)
    measure = budget.measure
    if measure is None or budget.surely_fits(uncounted.messages):
        return uncounted

    def with_memory(size: int) -> Assembled:
        return assemble_dialogue(replace(given, history_size=size), measure)

    def fits(size: int) -> bool:
        return measure.messages(with_memory(size).messages) <= budget.room

    if measure.messages(uncounted.messages) <= budget.room:
        return assemble_dialogue(given, measure)
    return with_memory(largest(0, given.history_size, fits))


def assemble_dialogue(given: DialogueInput, measure: Measure | None = None) -> Assembled:
    """The five messages; with a measure the manifest has tokens."""
    memory = MemoryFormatter.render(
        given.history,
        given.history_size,
        current_run_id=given.current_run_id,
        truncate_chars=given.truncate_chars,
        timezone_offset=given.timezone_offset,
    )
    sections = [
        identity_block(),
        _capabilities(given.tools),
        memory.block,
        FriendsInfoFormatter.render(given.user_profile, given.default_profile),
        MomentFormatter.render(
            given.current_input, given.timestamp_utc, given.timezone_offset, sources=source_of(given.input_id)
        ),
    ]
    return put_together(
        "dialogue",
        sections,
        rows={
            "fetched": count_others(given.history, given.current_run_id),
            "merged": memory.merged,
            "shown": memory.shown,
            "repaired": memory.repaired,
        },
        stable=_STABLE if given.tools_complete else _STABLE_WITHOUT_TOOLS,
        measure=measure,
    )


def _capabilities(tools: Sequence[Mapping[str, Any]]) -> Block:
    escape = CountingEscape()
    text = PromptManager().get_capabilities_prompt(tools, escape=escape)
    return Block("CAPABILITIES", "user", text, escaped=escape.marked)
