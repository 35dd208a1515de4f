"""Old names, until the builder uses `Budget`."""

from nexus.services.context import dialogue, thinking
from nexus.services.context.blocks import Assembled
from nexus.services.context.budget import Budget
from nexus.services.context.layouts import DialogueInput, ThinkingInput


def fit_dialogue(given: DialogueInput, room: int) -> Assembled:
    """As `dialogue.fit_dialogue`."""
    return dialogue.fit_dialogue(given.new(), Budget(room, measure=given.measure))


def fit_thinking(given: ThinkingInput, room: int) -> Assembled:
    """As `thinking.fit_thinking`."""
    return thinking.fit_thinking(given.new(), Budget(room, measure=given.measure))
