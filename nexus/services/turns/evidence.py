"""The evidence of a turn (moving to model_summary)."""

from nexus.services.text.sentences import weight
from nexus.services.text.summary_checks import Evidence as Evidence
from nexus.services.text.summary_checks import evidence_in as evidence_in
from nexus.services.text.summary_checks import language_of_user as language_of_user
from nexus.services.text.summary_checks import numbers_in
from nexus.services.turns.facts import TurnFacts
from nexus.services.turns.fallback import summarise_by_rules

_LEAST_PART = 2


def evidence_of(facts: TurnFacts) -> Evidence:
    """What the facts of a turn say."""
    calls = [call for item in facts.said for call in item.calls]
    everything = "\n".join(
        [
            facts.goal,
            facts.workspace,
            *(item.content for item in facts.rounds),
            *(item.text for item in facts.said),
            *(item.tool for item in facts.said),
            *(text for call in calls for text in (call.name, call.raw_arguments)),
        ]
    )
    came = [facts.answer, *(item.text for item in facts.said if item.speaker == "tool")]
    asked = "\n".join(item.text for item in facts.said if item.speaker == "user")
    return evidence_in(
        everything,
        language=language_of_user(asked, facts.answer, facts.goal),
        least=weight(summarise_by_rules(facts).brief) // _LEAST_PART,
        has_figures=any(map(numbers_in, came)),
        has_calls=bool(calls),
    )
