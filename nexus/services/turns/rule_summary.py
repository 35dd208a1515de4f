"""A summary by rules, from the facts of a turn: the same facts give the same words (contract §6). Pure.

    Asked: How many reviews are there? pubmed_search (query: SGLT2) gave total: 156. Answered: There are 156.
    问：有多少篇综述？ pubmed_search (query: SGLT2) 得到 total: 156。 答：共有156篇。

- Calls with their arguments, results with their key figures, failures with their reasons, the first and the last
  sentence of the answer, and those with figures. Each part has a share of the weight; what is left out is counted, or
  marked by `...`.
- The brief summary takes less than a third of the weight of the detailed one, unless that leaves nothing to say.
- Linear time, whatever the turn holds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
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
from nexus.services.text.sentences import clip, first_whole, is_blank, sentences, weight
from nexus.services.text.summary_checks import words_for
from nexus.services.text.words import Words

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
    words = words_for(_asked(facts), facts.answer)
    detailed = _detailed(facts, words)
    brief = _brief(facts, _brief_room(detailed), words)
    return Summaries(brief=brief, detailed=detailed, structured=_structured(facts, words), source="fallback")


def summarise_input(text: str) -> Summaries:
    """As `summarise_by_rules` for a turn of which only this input is known."""
    asked = "" if is_blank(text) else text
    words = words_for(asked)
    detailed = f"{_question(asked, words)} {words.no_answer}"
    question = _headline(asked)
    return Summaries(
        brief=_brief_of_input(question, _brief_room(detailed), words),
        detailed=detailed,
        structured=Structured(overview=_brief_of_input(question, _OVERVIEW, words)),
    )


def _question(asked: str, words: Words) -> str:
    return f"{words.asked}{words.ended(digest(asked, _ASKED))}" if asked else words.not_asked


def _brief_of_input(question: str, room: int, words: Words) -> str:
    for_asked = min(weight(question), room - _BRIEF_MARKS)
    if for_asked < min(weight(question), _LEAST_ASKED) or not question:
        return words.no_answer
    return f"{words.asked}{words.ended(clip(question, for_asked))} {words.no_answer}"


def _brief_room(detailed: str) -> int:
    return min(int(weight(detailed) * _SHARE) - _HEAD, _BRIEF)


def _detailed(facts: TurnFacts, words: Words) -> str:
    asked, answered = _question(_asked(facts), words), _answered(facts, words)
    decided = sentences_with_cue(_thoughts(facts), DECISION, most=1, room=_DECIDED)
    said = [f"{words.decided}{words.ended(sentence)}" for sentence in decided if sentence not in answered]
    room = _DETAILED - sum(weight(part) + 1 for part in (asked, answered, *said))
    return " ".join([asked, *_done(facts, room, words), *said, answered])


def _done(facts: TurnFacts, room: int, words: Words) -> list[str]:
    """A sentence for each call, and one for those for which there is no room."""
    if not facts.outcomes:
        return [words.no_tool] if facts.answer or facts.finished else []
    said, others = describe_calls(facts.outcomes, partial(call_and_result, words=words), room)
    return [*map(words.ended, said), *_also_used(others, words)]


def _answered(facts: TurnFacts, words: Words) -> str:
    if not is_blank(facts.answer):
        room = _ANSWERED if facts.outcomes else _ANSWERED_ALONE
        return f"{words.answered}{words.ended(digest(facts.answer, room))}"
    return words.empty_answer if facts.finished else words.no_answer


def _brief(facts: TurnFacts, room: int, words: Words) -> str:
    """The question, the tools and the answer; where room is short, the answer counts most."""
    question, used = _headline(_asked(facts)), tools_used(facts.outcomes, room * 2 // 5, words)
    answer = _headline(facts.answer, with_figures=bool(facts.outcomes))
    for asked, tools in ((question, used), ("", used), ("", "")):
        left = room - weight(tools) - _BRIEF_MARKS
        for_asked = min(weight(asked), max(left * 2 // 5, left - weight(answer)))
        for_answer = left - for_asked
        if for_asked >= min(weight(asked), _LEAST_ASKED) and for_answer >= min(weight(answer), _LEAST):
            break
    parts = [
        f"{words.asked}{words.ended(clip(asked, for_asked))}" if asked else "",
        tools,
        f"{words.answered}{words.ended(excerpt(answer, max(for_answer, _LEAST)))}"
        if answer
        else _answered(facts, words),
    ]
    return " ".join(filter(None, parts))


def _headline(text: str, *, with_figures: bool = False) -> str:
    """The first sentence that is whole; the first with figures where they are wanted, if there is one."""
    if not text:
        return ""
    with_figure = filter(has_figure, sentences(text)) if with_figures else iter(())
    return next(with_figure, None) or first_whole(text) or digest(text, _SENTENCE)


def _structured(facts: TurnFacts, words: Words) -> Structured:
    actions, unnamed = describe_calls(facts.outcomes, call_with_arguments, _ACTIONS)
    results, others = describe_calls(facts.outcomes, partial(result_of_call, words=words), _RESULTS)
    more = [words.other_results.format(len(others))] if others else []
    next_steps = sentences_with_cue(islice(_spoken(facts), 1), NEXT_STEP, most=_SENTENCES, room=_SENTENCE)
    decisions = sentences_with_cue([*_thoughts(facts), facts.answer], DECISION, most=_SENTENCES, room=_SENTENCE)
    return Structured(
        overview=_brief(facts, _OVERVIEW, words),
        actions=(*actions, *_also_used(unnamed, words)),
        results=(*results, *more, *_findings(facts, results, words)),
        decisions=tuple(sentence for sentence in decisions if sentence not in next_steps),
        next_steps=tuple(next_steps),
    )


def _also_used(outcomes: Sequence[ToolOutcome], words: Words) -> list[str]:
    return [tools_used(outcomes, COUNT_ROOM, words, also=True)] if outcomes else []


def _findings(facts: TurnFacts, came: Sequence[str], words: Words) -> list[str]:
    """The sentences of the answer with figures that no result has shown; its headline, where nothing else is known."""
    shown = set(figures(" ".join(came)))
    found = [sentence for sentence in sentences(facts.answer) if not shown.issuperset(figures(sentence))]
    lines = [excerpt(sentence, _SENTENCE) for sentence in found[:_SENTENCES]]
    if len(found) > len(lines):
        lines.append(words.other_sentences.format(len(found) - len(lines)))
    return lines or ([excerpt(_headline(facts.answer), _SENTENCE)] if not came and not is_blank(facts.answer) else [])


def _asked(facts: TurnFacts) -> str:
    return "\n".join(item.text for item in facts.messages if item.role == "user" and not is_blank(item.text))


def _thoughts(facts: TurnFacts) -> list[str]:
    """The texts of the model before its answer."""
    said = [item.text for item in facts.messages if item.role == "assistant"]
    return [*(item.content for item in facts.rounds), *(text for text in said if text != facts.answer)]


def _spoken(facts: TurnFacts) -> Iterator[str]:
    """The answer, and the texts of the model before it, the latest first."""
    if facts.answer:
        yield facts.answer
    yield from (item.text for item in reversed(facts.messages) if item.role == "assistant" and item.text)
