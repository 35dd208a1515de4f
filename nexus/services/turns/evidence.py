"""What a summary of a turn is held against: the language of the user, and the figures that the turn holds. Pure.

A summary in another language is no summary for this user. Whether it invents figures cannot be told for sure, since
counts and sums are figures that stand nowhere in a turn; so a text is taken to invent only when three or more of its
numbers, and more than half of them, are in the turn neither in any spelling nor rounded. For each number that the turn
has in words, one more may be unknown.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from nexus.services.turns.digest import has_figure
from nexus.services.turns.excuses import folded
from nexus.services.turns.facts import TurnFacts
from nexus.services.turns.fallback import summarise_by_rules
from nexus.services.turns.language import LATIN, differ, language_of, letters_of, likely_languages_of, name_of
from nexus.services.turns.numbers import figures, number_words, spelling, spellings
from nexus.services.turns.sentences import weight

_MOST_UNKNOWN: Final = 2
# Which part of the weight of a brief summary by rules a detailed one has at least.
_LEAST_PART: Final = 2


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a turn.

    Attributes:
        language: of what the user said, or of its letters; None where neither is clear.
        figures: in everything that was said and done, as `spellings` has them.
        number_words: how many numbers are in words there.
        said: all of it, as `folded` has it.
        least: the weight that a detailed summary has at least.
        has_figures: there are some in the answer or in results.
        has_calls: tools were called.
    """

    language: str | None
    figures: frozenset[str]
    number_words: int = 0
    said: str = field(default="", repr=False)
    least: int = 0
    has_figures: bool = False
    has_calls: bool = False

    @property
    def of_part(self) -> "Evidence":
        """What a summary of a part alone is held against: there may be little in it."""
        return replace(self, least=0, has_figures=False, has_calls=False)

    def fault_of(self, texts: Sequence[str], detailed: str) -> str | None:
        """What is wrong with the language of these texts, or with the figures of one; None for nothing."""
        expected = self.language
        for language in filter(None, (*map(language_of, texts), letters_of(detailed))):
            if expected and differ(language, expected):
                return f"it is in {name_of(language)}, and the user writes in {name_of(expected)}"
        for text in texts:
            named = figures(text)
            unknown = sum(spelling(figure) not in self.figures for figure in named)
            if unknown > _MOST_UNKNOWN + self.number_words and 2 * unknown > len(named):
                return f"{unknown} of {len(named)} numbers are not in the turn"
        return None

    def lack_of(self, texts: Sequence[str], detailed: str, *, deeds: bool) -> str | None:
        """What is missing in a summary with these texts, that tells deeds or none; None for nothing."""
        if weight(detailed) < self.least:
            return "it leaves out nearly everything"
        if self.has_figures and not any(map(has_figure, texts)):
            return "it names no number, and the turn holds some"
        if self.has_calls and not deeds:
            return "it tells neither actions nor results, and tools were called"
        return None


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
        has_figures=any(map(figures, came)),
        has_calls=bool(calls),
    )


def evidence_in(
    everything: str, *, language: str | None, least: int = 0, has_figures: bool = False, has_calls: bool = False
) -> Evidence:
    """What is known where this is all that was said and done; the rest is as `Evidence` has it."""
    return Evidence(
        language,
        spellings(everything),
        number_words(everything),
        folded(everything),
        least=least,
        has_figures=has_figures,
        has_calls=has_calls,
    )


def language_of_user(asked: str, answered: str, goal: str = "") -> str | None:
    """In which language the user writes, as far as what was asked, what was answered and the goal say so together."""
    if language := language_of(asked):
        # Japanese may do without its own letters for a question.
        return "ja" if language == "zh" and language_of(answered) == "ja" else language
    letters, likely = letters_of(asked), likely_languages_of(asked)
    for text in (f"{asked}\n{answered}", goal):
        language = language_of(text)
        if language is None:
            continue
        # A word of one language is no other's, and what is not in Latin letters is in its own.
        if not differ(letters, language) if letters and letters != LATIN else not likely or language in likely:
            return language
    around = {letters_of(answered), letters_of(goal)} - {None}
    return letters if letters and not any(other and differ(letters, other) for other in around) else None
