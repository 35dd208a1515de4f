"""Reading what a model answers: the summary in it, or what is wrong with it (CONTRACT §6). Pure.

Thoughts before the answer, a fence around it and words before and after it are passed over. What is left must be one
JSON object with the fields of `SCHEMA`, and something in them: a summary that echoes the schema, fails with words,
speaks another language than the user or invents figures is none.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

from nexus.core.errors import NexusError
from nexus.core.turns import Structured, Summaries
from nexus.services.turns import bounds
from nexus.services.turns.evidence import Evidence
from nexus.services.turns.excuses import excuse_of, failure_of

SCHEMA_NAME: Final = "turn_summary"
_TEXT: Final = {"type": "string"}
_LIST: Final = {"type": "array", "items": _TEXT}
_STRUCTURED: Final = {"overview": _TEXT, "actions": _LIST, "results": _LIST, "decisions": _LIST, "next_steps": _LIST}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    # Endpoints that hold an answer to a schema want every field required, no others, and no bounds.
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


SCHEMA: Final = _object({"brief": _TEXT, "detailed": _TEXT, "structured": _object(_STRUCTURED), "insights": _LIST})

# What is so many times longer than it may be is none.
_FAR_TOO_LONG: Final = 10
_THOUGHT_BEGINS: Final = re.compile(r"\s*<think(ing)?>", re.IGNORECASE)
_THOUGHT_ENDS: Final = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
# How many openings of an object are tried: text in front may have some.
_MOST_OPENINGS: Final = 50
_PLACEHOLDER: Final = re.compile(
    r"<[^<>]*>|\[[^\[\]]*\]|\W*|(a |the )?(string|text|brief|detailed|overview|summary|none|null|n/?a|todo)\W*"
    r"|(a |brief |detailed )?(\d|two|five) ?([-–]|to|or) ?(\d|three|eight) sentences?"
    r"(\W*|\W+(that )?(keep|at most)\b.*)",
    re.IGNORECASE | re.DOTALL,
)


class NonsenseError(NexusError):
    """What the model answered is no summary of the turn. The text says what is wrong with it, and quotes nothing."""


def clean(value: Any) -> Any:
    """The value; of a text what a store keeps: escapes of JSON may hold half a surrogate pair, or NUL."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\0", "").strip()


def _items(value: Any) -> Any:
    # Models write a text, or nothing, where the list would have one item or none.
    if value is None:
        return []
    listed = [value] if isinstance(value, str) else value
    return [item for item in listed if item is not None and clean(item) != ""] if isinstance(listed, list) else listed


def _text(most: int) -> Any:
    return StringConstraints(min_length=1, max_length=most * _FAR_TOO_LONG)


_Short = Annotated[str, _text(bounds.BRIEF), BeforeValidator(clean)]
_Long = Annotated[str, _text(bounds.DETAILED), BeforeValidator(clean)]
_Entry = Annotated[str, _text(bounds.ENTRY), BeforeValidator(clean)]
_Items = Annotated[list[_Entry], Field(max_length=bounds.ENTRIES * _FAR_TOO_LONG), BeforeValidator(_items)]


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore", coerce_numbers_to_str=True)


class _StructuredAnswer(_Answer):
    overview: _Short
    actions: _Items = []
    results: _Items = []
    decisions: _Items = []
    next_steps: _Items = Field(default=[], validation_alias=AliasChoices("next_steps", "nextSteps"))


class _SummaryAnswer(_Answer):
    brief: _Short
    detailed: _Long
    structured: _StructuredAnswer
    insights: _Items = []


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model said of a turn, or of a part of it."""

    summaries: Summaries
    insights: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As the model is told it when parts are put together."""
        return {**self.summaries.model_dump(exclude={"source"}), "insights": self.insights}


def read_reply(text: str, evidence: Evidence) -> Reply:
    """The summary in an answer.

    Raises:
        NonsenseError: there is none.
    """
    answer = _validated(find_object(text, "brief", "detailed"))
    if fault := _fault_of(answer, evidence):
        raise NonsenseError(fault)
    return _bounded(answer)


def _bounded(answer: _SummaryAnswer) -> Reply:
    """What is kept of it."""
    said, detailed = answer.structured, bounds.within(answer.detailed, bounds.DETAILED)
    summaries = Summaries(
        brief=bounds.brief_within(answer.brief, detailed),
        detailed=detailed,
        structured=Structured(
            overview=bounds.within(said.overview, bounds.BRIEF),
            actions=bounds.listed(said.actions),
            results=bounds.listed(said.results),
            decisions=bounds.listed(said.decisions),
            next_steps=bounds.listed(said.next_steps),
        ),
        source="model",
    )
    return Reply(summaries, bounds.listed(answer.insights, bounds.INSIGHTS, bounds.INSIGHT))


def find_object(text: str, *names: str) -> dict[str, Any]:
    """The JSON object that is meant: the first one with one of these fields, else the first one.

    Raises:
        NonsenseError: there is none.
    """
    if not text.strip():
        raise NonsenseError("it is empty")
    *thoughts, said = _THOUGHT_ENDS.split(text)
    if not thoughts and _THOUGHT_BEGINS.match(text):
        raise NonsenseError("it ends before the answer begins")
    # The words of an answer may hold such a mark as well. An object around the one that is meant does not count.
    objects = (value for source in (said, text) for value in _objects(source))
    found = next((value for value in objects if not value.keys().isdisjoint(names)), None)
    if found is None:
        found = next(_objects(text), None)
    if found is None:
        raise NonsenseError("its JSON is broken" if "{" in text else "it holds no JSON object")
    return found


def form_of(text: str) -> str | None:
    """What is wrong with a text that only says what would stand in its place; None for nothing."""
    return "it repeats the form instead of filling it in" if _PLACEHOLDER.fullmatch(text) else None


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The objects in a text, those within others too."""
    # Not strict: models write line ends as they are.
    decoder = json.JSONDecoder(strict=False)
    begin = -1
    for _ in range(_MOST_OPENINGS):
        begin = text.find("{", begin + 1)
        if begin < 0:
            return
        try:
            value: dict[str, Any] = decoder.raw_decode(text, begin)[0]
        except (ValueError, RecursionError):
            continue
        yield value


def _validated(value: dict[str, Any]) -> _SummaryAnswer:
    try:
        return _SummaryAnswer.model_validate(value)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in fault["loc"])
        raise NonsenseError(f"{place}: {fault['msg']}") from None


def _fault_of(answer: _SummaryAnswer, evidence: Evidence) -> str | None:
    """What is wrong with what is said, if something is."""
    said = answer.structured
    told = answer.brief, answer.detailed, said.overview
    lists = said.actions, said.results, said.decisions, said.next_steps, answer.insights
    entries = [entry for items in lists for entry in items]
    faults = (
        *(excuse_of(text, evidence.said) for text in told),
        *(failure_of(text, evidence.said) for text in entries),
        next(filter(None, map(form_of, told)), None),
        # Entries are taken together: one by itself may be no more than a name or a title.
        evidence.fault_of([*told, "\n".join(entries)], answer.detailed),
        evidence.lack_of([*told, *entries], answer.detailed, deeds=bool(said.actions or said.results)),
    )
    return next(filter(None, faults), None)
