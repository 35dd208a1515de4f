"""What a run, or a part of one, comes to, on one line. Pure.

A boundary may lie within a run, and where tools alone are compacted there is neither question nor answer: then what is
there is told, and nothing is said to be missing that merely stands elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nexus.core.ports import Row
from nexus.services.context.clock import parse_moment
from nexus.services.context.transcript import Speaker
from nexus.services.turns.deeds import COUNTED, read_result, tell, told, tools_used
from nexus.services.turns.digest import digest
from nexus.services.turns.facts import TurnFacts, read_facts
from nexus.services.turns.fallback import summarise_by_rules
from nexus.services.turns.sentences import ended, is_blank, one_line, weight

# Weights (see `sentences`) of a part of a run, as long as a turn's detailed and brief summary are.
_DETAILED: Final = 1_200
_BRIEF: Final = 360


@dataclass(frozen=True, slots=True)
class Gist:
    """What is told of a run.

    Attributes:
        moment: of its first message that has a time.
        messages: how many are told.
        is_part: there are no question, no answer, or calls without results.
        texts: the same in many words, in some and in few, each on one line; `()` where nothing was said.
    """

    moment: datetime | None
    messages: int
    is_part: bool
    texts: tuple[str, ...]


def gist_of(rows: Sequence[Row]) -> Gist:
    """The gist of these rows, which belong together."""
    facts = read_facts(rows)
    moments = [moment for row in rows if (moment := parse_moment(row.get("timestamp")))]
    is_part = is_blank(facts.input) or not facts.finished
    if is_part:
        detailed, briefest = _part(facts, _DETAILED), _part(facts, _BRIEF)
    else:
        summaries = summarise_by_rules(facts)
        detailed, briefest = one_line(summaries.detailed), one_line(summaries.brief)
    brief = detailed if weight(detailed) <= _BRIEF else briefest
    return Gist(min(moments, default=None), len(rows), is_part, (detailed, brief, briefest) if briefest else ())


def shorter(text: str, room: int) -> str:
    """A line of at most this weight. One that has it is not changed."""
    return text if weight(text) <= room else digest(text, room)


def _part(facts: TurnFacts, room: int) -> str:
    """What was asked, what tools gave, and what was said to it, as far as it is there; `""` for nothing."""
    asked = _quoted("Asked: ", facts, "user", room // 4)
    said = _quoted("Said: ", facts, "assistant", room // 3)
    outcomes = [read_result(outcome) for outcome in facts.outcomes]
    sentences, others = tell(outcomes, told, room - weight(asked) - weight(said)) if outcomes else ([], [])
    rest = tools_used(others, COUNTED, "Also used")
    return one_line(" ".join(filter(None, (asked, *map(ended, sentences), rest, said))))


def _quoted(head: str, facts: TurnFacts, speaker: Speaker, room: int) -> str:
    text = "\n".join(item.text for item in facts.said if item.speaker == speaker and not is_blank(item.text))
    return f"{head}{ended(digest(text, room))}" if text else ""
