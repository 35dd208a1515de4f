"""What a build request says of its run's turn: goal, surroundings, thought, level of detail (CONTRACT §1.3, §6). Pure.

What a layout shows is read strictly there. Other systems may use these names for something else, so in the other
layouts what is wrong is passed over, with a note.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from nexus.core.errors import RequestError
from nexus.core.turns import LEVELS, Level, ThinkingRound
from nexus.services.context.escape import canonical
from nexus.services.context.refusals import invalid, unknown

MAX_GOAL_CHARS: Final = 32_000
MOST_ROUNDS: Final = 100
# More than anybody counts to, and a number that every store can hold.
LARGEST_NUMBER: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class TurnMetadata:
    """What came along for the run's turn, under the names of `run.metadata`.

    Attributes:
        task_context, workspace_context: `""` where nothing is to be seen of it.
        thinking_rounds: ascending by their numbers, each of which is there once.
        summary_detail_level: None for that of the settings.
    """

    task_context: str = ""
    workspace_context: str = ""
    thinking_rounds: tuple[ThinkingRound, ...] = ()
    summary_detail_level: Level | None = None


_NOTHING: Final = TurnMetadata()


def read_turn_metadata(metadata: Mapping[str, Any], layout: str) -> tuple[TurnMetadata, list[str]]:
    """What the request says, and notes on what is of no use to the layout and wrong.

    Raises:
        RequestError: INVALID_REQUEST, naming the place.
    """
    notes: list[str] = []
    if _READERS.keys().isdisjoint(metadata):
        return _NOTHING, notes
    given: dict[str, Any] = {}
    for key, read in _READERS.items():
        if metadata.get(key) is None:
            continue
        try:
            given[key] = read(metadata[key], f"run.metadata.{key}")
        except RequestError as error:
            if key in _SHOWN.get(layout, ()):
                raise
            notes.append(f"{error.message}; it was passed over")
    return TurnMetadata(**given), notes


def _read_goal(value: Any, where: str) -> str:
    goal = _read_text(value, where)
    if len(goal) > MAX_GOAL_CHARS:
        raise invalid(f"{where}: {len(goal)} characters, at most {MAX_GOAL_CHARS} are allowed")
    return goal


def _read_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise invalid(f"{where}: a text is needed")
    return value if canonical(value).strip() else ""


def _read_rounds(value: Any, where: str) -> tuple[ThinkingRound, ...]:
    if not isinstance(value, list):
        raise invalid(f"{where}: a list is needed")
    if len(value) > MOST_ROUNDS:
        raise invalid(f"{where}: {len(value)} rounds, at most {MOST_ROUNDS} are allowed")
    rounds: list[ThinkingRound] = []
    for index, item in enumerate(value):
        read = _read_round(item, f"{where}[{index}]")
        if rounds and read.round_number <= rounds[-1].round_number:
            raise invalid(f"{where}[{index}].round_number: a larger one than that of the round before is needed")
        rounds.append(read)
    return tuple(rounds)


def _read_round(value: Any, where: str) -> ThinkingRound:
    if not isinstance(value, Mapping):
        raise invalid(f"{where}: a JSON object is needed")
    if not isinstance(value.get("content"), str):
        raise invalid(f"{where}.content: a text is needed")
    used = value.get("tokens_used")
    return ThinkingRound(
        round_number=_read_number(value.get("round_number"), f"{where}.round_number", least=1),
        content=value["content"],
        tokens_used=0 if used is None else _read_number(used, f"{where}.tokens_used", least=0),
    )


def _read_number(value: Any, where: str, *, least: int) -> int:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole or not least <= value <= LARGEST_NUMBER:
        raise invalid(f"{where}: a whole number from {least} to {LARGEST_NUMBER} is needed")
    return int(value)


def _read_level(value: Any, where: str) -> Level:
    level = next((known for known in LEVELS if known == value), None)
    if level is None:
        raise invalid(unknown(where, value, LEVELS))
    return level


_READERS: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    "task_context": _read_goal,
    "workspace_context": _read_text,
    "thinking_rounds": _read_rounds,
    "summary_detail_level": _read_level,
}
# What of it each layout shows, or goes by.
_SHOWN: Final[Mapping[str, frozenset[str]]] = {
    "agent": frozenset({"task_context", "summary_detail_level"}),
    "thinking": frozenset(_READERS),
}
