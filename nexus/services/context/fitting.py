"""The layouts `dialogue` and `thinking` in so much room: the oldest of what they remember goes (CONTRACT §7). Pure."""

from nexus.services.context.assembled import Assembled
from nexus.services.context.budget import NO_ROOM, largest, without_oldest
from nexus.services.context.layouts import DialogueInput, ThinkingInput, assemble_dialogue, assemble_thinking


def fit_dialogue(given: DialogueInput, room: int) -> Assembled:
    """The five messages in so many tokens, as far as leaving out the oldest of the memory can bring that about."""

    def made(size: int) -> Assembled:
        return assemble_dialogue(given._replace(history_size=size))

    measure, whole = given.measure, assemble_dialogue(given)
    if measure is None or measure.messages(whole.messages) <= room:
        return whole
    return made(largest(0, given.history_size, lambda size: measure.messages(made(size).messages) <= room))


def fit_thinking(given: ThinkingInput, room: int) -> Assembled:
    """The two messages in so many tokens, as far as leaving out the oldest turns, then rounds, brings that about."""
    turns, rounds = len(given.remembered.turns), len(given.rounds)

    def made(kept: int) -> Assembled:
        remembered = without_oldest(given.remembered, turns - max(kept - rounds, 0))
        gone = max(rounds - kept, 0)
        return assemble_thinking(
            given._replace(
                remembered=remembered, rounds=given.rounds[gone:], rounds_dropped=given.rounds_dropped + gone
            )
        )

    measure, whole = given.measure, assemble_thinking(given)
    if measure is None or measure.messages(whole.messages) <= room:
        return whole
    fitting = made(largest(0, turns + rounds, lambda kept: measure.messages(made(kept).messages) <= room))
    tags = {block["tag"] for block in fitting.manifest["blocks"]}
    gone = [block["tag"] for block in whole.manifest["blocks"] if block["tag"] not in tags]
    return fitting._replace(repairs=[*fitting.repairs, *map(NO_ROOM.format, gone)])
