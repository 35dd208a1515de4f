"""What a run, or a part of one, comes to, on one line. Pure.

A boundary may lie within a run, and where tools alone are compacted there is neither question nor answer: then what is
there is told. Nothing is said to be missing, for it may merely stand elsewhere: in an earlier compaction, or in what is
left.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nexus.core.ports import Row
from nexus.services.context.clock import parse_moment
from nexus.services.context.transcript import Speaker
from nexus.services.memory.shortening import ANSWERED, ASKED, DECIDED, SAID, TOOLS
from nexus.services.turns.cues import DECISION, announced
from nexus.services.turns.deeds import COUNTED, read_result, tell, told, tools_used
from nexus.services.turns.digest import digest
from nexus.services.turns.facts import TurnFacts, read_facts
from nexus.services.turns.sentences import ended, is_blank, one_line, weight

# Weights (see `sentences`): of a line, as long as a turn's detailed summary is, and of its parts. What these leave is
# for what tools did.
_MOST: Final = 1_200
_ASKED: Final = 320
_DECIDED: Final = 160
_ANSWERED: Final = 400
_ANSWERED_ALONE: Final = 800


@dataclass(frozen=True, slots=True)
class Gist:
    """What is told of a run.

    Attributes:
        moment: of its first message that has a time.
        messages: how many are told.
        is_part: there are no question, no answer, or calls without results.
        text: what was asked, what tools gave, what was decided and what was answered, as far as it is there, on one
            line; `""` where nothing was said.
    """

    moment: datetime | None
    messages: int
    is_part: bool
    text: str


def gist_of(rows: Sequence[Row]) -> Gist:
    """The gist of these rows, which belong together."""
    facts = read_facts(rows)
    moments = [moment for row in rows if (moment := parse_moment(row.get("timestamp")))]
    is_part = is_blank(facts.input) or not facts.finished
    return Gist(min(moments, default=None), len(rows), is_part, _text(facts))


def _text(facts: TurnFacts) -> str:
    answered = _ANSWERED if facts.outcomes else _ANSWERED_ALONE
    asked = _quoted(ASKED, _said_by(facts, "user"), _ASKED)
    if facts.finished:
        said = _quoted(ANSWERED, facts.answer, answered)
        decided = announced(_before_answer(facts), DECISION, most=1, room=_DECIDED)
    else:
        said, decided = _quoted(SAID, _said_by(facts, "assistant"), answered), []
    others = [asked, *(f"{DECIDED}{ended(sentence)}" for sentence in decided if sentence not in said), said]
    done = _done(facts, _MOST - sum(weight(part) + 1 for part in others))
    return one_line(" ".join(filter(None, (asked, done, *others[1:]))))


def _done(facts: TurnFacts, room: int) -> str:
    """A sentence for each call, and one for those for which there is no room; `""` for none."""
    if not facts.outcomes:
        return ""
    told_of, others = tell([read_result(outcome) for outcome in facts.outcomes], told, room - len(TOOLS))
    rest = tools_used(others, COUNTED, "Also used")
    return TOOLS + " ".join(filter(None, (*map(ended, told_of), rest)))


def _before_answer(facts: TurnFacts) -> list[str]:
    """What the model said before its answer."""
    return [item.text for item in facts.said if item.speaker == "assistant" and item.text != facts.answer]


def _said_by(facts: TurnFacts, speaker: Speaker) -> str:
    return "\n".join(item.text for item in facts.said if item.speaker == speaker and not is_blank(item.text))


def _quoted(head: str, text: str, room: int) -> str:
    return "" if is_blank(text) else f"{head}{ended(digest(text, room))}"
