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
from nexus.services.turns.cutting import leading
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

_MOST_INSIGHTS: Final = 5
# `brief` has at most one of so many parts of the length of `detailed`, where `[Turn n] ` stands before both.
_BRIEF_PART: Final = 3
_HEAD: Final = 10
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


def _clean(value: Any) -> Any:
    # Escapes of JSON may hold half a surrogate pair, or NUL, which no store keeps.
    if not isinstance(value, str):
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\0", "").strip()


def _items(value: Any) -> Any:
    # Models write a text, or nothing, where the list would have one item or none.
    if value is None:
        return []
    listed = [value] if isinstance(value, str) else value
    return [item for item in listed if item is not None and _clean(item) != ""] if isinstance(listed, list) else listed


_Short = Annotated[str, StringConstraints(min_length=1, max_length=2_000), BeforeValidator(_clean)]
_Long = Annotated[str, StringConstraints(min_length=1, max_length=10_000), BeforeValidator(_clean)]
_Items = Annotated[list[_Short], Field(max_length=50), BeforeValidator(_items)]


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
    answer = _validated(_found(text))
    if fault := _fault_of(answer, evidence):
        raise NonsenseError(fault)
    summaries = Summaries(
        # What a shorter one leaves out is in the other.
        brief=leading(answer.brief, (len(answer.detailed) + _HEAD) // _BRIEF_PART - _HEAD).rstrip(),
        detailed=answer.detailed,
        structured=Structured.model_validate(answer.structured.model_dump()),
        source="model",
    )
    return Reply(summaries, tuple(answer.insights[:_MOST_INSIGHTS]))


def _found(text: str) -> dict[str, Any]:
    """The JSON object that is meant."""
    if not text.strip():
        raise NonsenseError("it is empty")
    *thoughts, said = _THOUGHT_ENDS.split(text)
    if not thoughts and _THOUGHT_BEGINS.match(text):
        raise NonsenseError("it ends before the answer begins")
    # The words of an answer may hold such a mark as well. An object around the one that is meant does not count.
    objects = (value for source in (said, text) for value in _objects(source))
    found = next((value for value in objects if "brief" in value or "detailed" in value), None)
    if found is None:
        found = next(_objects(text), None)
    if found is None:
        raise NonsenseError("its JSON is broken" if "{" in text else "it holds no JSON object")
    return found


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
        *(excuse_of(text, evidence.excuses) for text in told),
        *(failure_of(text, evidence.excuses) for text in entries),
        "it repeats the form instead of filling it in" if any(map(_PLACEHOLDER.fullmatch, told)) else None,
        # Entries are taken together: one by itself may be no more than a name or a title.
        evidence.fault_of([*told, "\n".join(entries)], answer.detailed),
        evidence.lack_of([*told, *entries], answer.detailed, deeds=bool(said.actions or said.results)),
    )
    return next(filter(None, faults), None)
