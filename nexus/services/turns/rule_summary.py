"""A summary by rules, from the facts of a turn: the same facts give the same words (contract §6). Pure.

    Asked: How many reviews are there? pubmed_search (query: SGLT2) gave total: 156. Answered: There are 156.

- It keeps names, numbers, parameters and outcomes: calls with their arguments, results with their key figures,
  failures with their reasons, the first and the last sentence of the answer, and those with figures.
- Each part has a share of the weight. Parts left out are counted, or marked by `...`.
- The brief summary takes less than a third of the weight of the detailed one, unless that leaves nothing to say.
- Linear time, whatever the turn holds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from nexus.core.turns import Structured, Summaries, ToolOutcome
from nexus.services.history.run_facts import TurnFacts
from nexus.services.text.digest import (
    COUNT_ROOM,
    DECISION,
    NEXT_STEP,
    call_and_result,
    call_with_arguments,
    describe_calls,
    digest,
    excerpt,
    figures,
    has_figure,
    read_result,
    result_of_call,
    sentences_with_cue,
    tools_used,
)
from nexus.services.text.sentences import clip, ended, first_whole, is_blank, sentences, weight

NO_ANSWER: Final = "No answer is known yet."
_NOT_ASKED: Final = "Nothing is known of what was asked."
# The text around the parts of a brief summary.
_BRIEF_MARKS: Final = len("Asked: . . Answered: .")

# Weights (see `sentences`) of the detailed summary and its parts; calls of tools get the rest.
_DETAILED: Final = 1_200
_ASKED: Final = 320
_DECIDED: Final = 160
_ANSWERED: Final = 400
_ANSWERED_ALONE: Final = 800
# The share of the detailed summary that the brief one takes: less than a third, since `[Turn n] ` stands before both.
_SHARE, _HEAD = 0.32, 16
_BRIEF: Final = 360
_OVERVIEW: Final = 320
# Below this weight a question or an answer that is longer is hardly understood.
_LEAST_ASKED, _LEAST = 24, 36
# Of the structured summary: all actions, and all results.
_ACTIONS, _RESULTS = 900, 1_500
_SENTENCES, _SENTENCE = 5, 200


def summarise_by_rules(facts: TurnFacts) -> Summaries:
    """The three depths. They keep names, numbers, parameters and outcomes, and are never empty."""
    # Results are read once, and described several times.
    facts = replace(facts, outcomes=tuple(map(read_result, facts.outcomes)))
    detailed = _detailed(facts)
    brief = _brief(facts, _brief_room(detailed))
    return Summaries(brief=brief, detailed=detailed, structured=_structured(facts), source="fallback")


def summarise_input(text: str) -> Summaries:
    """As `summarise_by_rules` for a turn of which only this input is known."""
    asked = "" if is_blank(text) else text
    said = f"Asked: {ended(digest(asked, _ASKED))}" if asked else _NOT_ASKED
    detailed = f"{said} {NO_ANSWER}"
    question = _headline(asked)
    return Summaries(
        brief=_brief_of_input(question, _brief_room(detailed)),
        detailed=detailed,
        structured=Structured(overview=_brief_of_input(question, _OVERVIEW)),
    )


def _brief_of_input(question: str, room: int) -> str:
    for_asked = min(weight(question), room - _BRIEF_MARKS)
    if for_asked < min(weight(question), _LEAST_ASKED) or not question:
        return NO_ANSWER
    return f"Asked: {ended(clip(question, for_asked))} {NO_ANSWER}"


def _brief_room(detailed: str) -> int:
    return min(int(weight(detailed) * _SHARE) - _HEAD, _BRIEF)


def _detailed(facts: TurnFacts) -> str:
    asked = f"Asked: {ended(digest(_asked(facts), _ASKED))}" if _asked(facts) else _NOT_ASKED
    answered = _answered(facts)
    decided = sentences_with_cue(_thoughts(facts), DECISION, most=1, room=_DECIDED)
    said = [f"Decided: {ended(sentence)}" for sentence in decided if sentence not in answered]
    room = _DETAILED - sum(weight(part) + 1 for part in (asked, answered, *said))
    return " ".join([asked, *_done(facts, room), *said, answered])


def _done(facts: TurnFacts, room: int) -> list[str]:
    """A sentence for each call, and one for those for which there is no room."""
    if not facts.outcomes:
        return ["No tool was called."] if facts.answer or facts.finished else []
    said, others = describe_calls(facts.outcomes, call_and_result, room)
    return [*map(ended, said), *_also_used(others)]


def _answered(facts: TurnFacts) -> str:
    if not is_blank(facts.answer):
        return f"Answered: {ended(digest(facts.answer, _ANSWERED if facts.outcomes else _ANSWERED_ALONE))}"
    return "The answer is empty." if facts.finished else NO_ANSWER


def _brief(facts: TurnFacts, room: int) -> str:
    """The question, the tools and the answer; where room is short, the answer counts most."""
    question, used = _headline(_asked(facts)), tools_used(facts.outcomes, room * 2 // 5)
    answer = _headline(facts.answer, with_figures=bool(facts.outcomes))
    for asked, tools in ((question, used), ("", used), ("", "")):
        left = room - weight(tools) - _BRIEF_MARKS
        for_asked = min(weight(asked), max(left * 2 // 5, left - weight(answer)))
        for_answer = left - for_asked
        if for_asked >= min(weight(asked), _LEAST_ASKED) and for_answer >= min(weight(answer), _LEAST):
            break
    parts = [
        f"Asked: {ended(clip(asked, for_asked))}" if asked else "",
        tools,
        f"Answered: {ended(excerpt(answer, max(for_answer, _LEAST)))}" if answer else _answered(facts),
    ]
    return " ".join(filter(None, parts))


def _headline(text: str, *, with_figures: bool = False) -> str:
    """The first sentence that is whole; the first with figures where they are wanted, if there is one."""
    if not text:
        return ""
    with_figure = filter(has_figure, sentences(text)) if with_figures else iter(())
    return next(with_figure, None) or first_whole(text) or digest(text, _SENTENCE)


def _structured(facts: TurnFacts) -> Structured:
    actions, unnamed = describe_calls(facts.outcomes, call_with_arguments, _ACTIONS)
    results, others = describe_calls(facts.outcomes, result_of_call, _RESULTS)
    more = [f"results of other calls: {len(others):,} more"] if others else []
    next_steps = sentences_with_cue(islice(_spoken(facts), 1), NEXT_STEP, most=_SENTENCES, room=_SENTENCE)
    decisions = sentences_with_cue([*_thoughts(facts), facts.answer], DECISION, most=_SENTENCES, room=_SENTENCE)
    return Structured(
        overview=_brief(facts, _OVERVIEW),
        actions=(*actions, *_also_used(unnamed)),
        results=(*results, *more, *_findings(facts, results)),
        decisions=tuple(sentence for sentence in decisions if sentence not in next_steps),
        next_steps=tuple(next_steps),
    )


def _also_used(outcomes: Sequence[ToolOutcome]) -> list[str]:
    return [tools_used(outcomes, COUNT_ROOM, "Also used")] if outcomes else []


def _findings(facts: TurnFacts, came: Sequence[str]) -> list[str]:
    """The sentences of the answer with figures that no result has shown; its headline, where nothing else is known."""
    shown = set(figures(" ".join(came)))
    found = [sentence for sentence in sentences(facts.answer) if not shown.issuperset(figures(sentence))]
    lines = [excerpt(sentence, _SENTENCE) for sentence in found[:_SENTENCES]]
    if len(found) > len(lines):
        lines.append(f"sentences of the answer with other figures: {len(found) - len(lines):,} more")
    return lines or ([excerpt(_headline(facts.answer), _SENTENCE)] if not came and not is_blank(facts.answer) else [])


def _asked(facts: TurnFacts) -> str:
    return "\n".join(item.text for item in facts.messages if item.speaker == "user" and not is_blank(item.text))


def _thoughts(facts: TurnFacts) -> list[str]:
    """The texts of the model before its answer."""
    said = [item.text for item in facts.messages if item.speaker == "assistant"]
    return [*(item.content for item in facts.rounds), *(text for text in said if text != facts.answer)]


def _spoken(facts: TurnFacts) -> Iterator[str]:
    """The answer, and the texts of the model before it, the latest first."""
    if facts.answer:
        yield facts.answer
    yield from (item.text for item in reversed(facts.messages) if item.speaker == "assistant" and item.text)
