"""Prompts to a model and its replies: records cut into parts, and the JSON of a summary read back (contract §6).

- A record becomes entries of a JSON document, cut into parts in which nothing is left out.
- In a reply, thoughts before the answer, a fence around it and words before and after it are ignored. The rest must
  be one JSON object with the fields of `SCHEMA`, none of them empty.
- A reply that repeats the schema, refuses, is in another language than the user's or invents figures is rejected. The
  model is asked once more, with the fault; then the attempt is given up.
- Summaries of parts are kept for a while: when the call for a later part fails, the next attempt asks for the rest.
- Texts that are too long are cut at the end of a sentence; where even the first one is too long, the reply is
  rejected. Entries of lists may be cut at the end of a word.
"""

import hashlib
import json
import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import Annotated, Any, Final, Generic, TypeVar

from anyio import to_thread
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

from nexus.core.errors import ModelUnavailableError, NexusError, PromptTooLongError
from nexus.core.metrics import CallOutcome, Metrics, Purpose
from nexus.core.ports import LanguageModel
from nexus.core.ports.model import Completion
from nexus.core.turns import Structured, Summaries
from nexus.services.text.sentences import BYTES_A_TOKEN, between_words, leading, size, slices, weight
from nexus.services.text.summary_checks import NAMES, Evidence, failure_in, name_of, refusal_in

_Summary = TypeVar("_Summary")
_Result = TypeVar("_Result")

# A prompt has room for so many bytes of its document, whatever the setting.
LEAST_ROOM: Final = 1_200
# Bytes between two entries in JSON, and those of an entry besides its text.
BETWEEN: Final = len(", ")
_AROUND_ENTRY: Final = 48
_RETRY: Final = "\nAn answer that was given before could not be used: {fault}. Avoid that."


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a document: a text under a key, with other fields before it."""

    fields: Mapping[str, Any]
    key: str
    text: str = field(repr=False)

    @property
    def whole(self) -> dict[str, Any]:
        """As it stands in the document."""
        return {**self.fields, self.key: self.text}

    def cut(self, room: int) -> Iterator["Entry"]:
        """The entry, or as many as it takes for none to need more than `room` bytes."""
        if size(self.whole) <= room:
            yield self
            return
        fields, text = self.fields, self.text
        if size(fields) > room // 2:
            # Fields that are themselves too long, as the name of a tool may be, are cut with the text.
            fields, text = {}, f"{json.dumps(self.fields, ensure_ascii=False)}\n{self.text}"
        pieces = list(slices(text, max(room - size(fields) - _AROUND_ENTRY, 1)))
        before = f"{fields['piece']}, " if "piece" in fields else ""
        for number, piece in enumerate(pieces, 1):
            yield Entry({**fields, "piece": f"{before}{number}/{len(pieces)}"}, self.key, piece)


def packed(items: Iterable[dict[str, Any]], room: int, least: int = 1) -> Iterator[list[dict[str, Any]]]:
    """The items in order, in groups that fit into `room` bytes, though each has `least` items or more but the last."""
    group: list[dict[str, Any]] = []
    used = 0
    for item in items:
        needed = size(item) + BETWEEN
        if len(group) >= least and used + needed > room:
            yield group
            group, used = [], 0
        group.append(item)
        used += needed
    if group:
        yield group


def in_language(language: str | None) -> str:
    """The words of a task for the language of the reply: a result of `language_of`, else the user's."""
    theirs = "in the language that the user writes in"
    if not language:
        return theirs
    return f"in {NAMES[language]}" if language in NAMES else f"{theirs}, {name_of(language)}"


def retry_note(fault: str) -> str:
    """The end of a task that is given once more, with the fault of the first reply; `""` for no fault."""
    return _RETRY.format(fault=fault) if fault else ""


SCHEMA_NAME: Final = "turn_summary"
_TEXT: Final = {"type": "string"}
_LIST: Final = {"type": "array", "items": _TEXT}
_STRUCTURED: Final = {"overview": _TEXT, "actions": _LIST, "results": _LIST, "decisions": _LIST, "next_steps": _LIST}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    # Endpoints that hold an answer to a schema want every field required and no others.
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


SCHEMA: Final = _object({"brief": _TEXT, "detailed": _TEXT, "structured": _object(_STRUCTURED), "insights": _LIST})

# The longest texts, in characters.
MOST_DETAILED: Final = 2_500
MOST_BRIEF: Final = 800
MOST_ENTRY: Final = 400
MOST_INSIGHT: Final = 200
# The longest lists.
MOST_ENTRIES: Final = 12
MOST_INSIGHTS: Final = 5

_MORE: Final = " …"
# Characters that a cut text does not end in.
_HANGING: Final = " ,;:(，；：、（"
# `brief` costs at most one of so many parts of `detailed`, with `[Turn n] ` before both, or as much as one sentence may
# take; in fifths of a token.
_BRIEF_PART: Final = 3
_HEAD: Final = 35
_ONE_SENTENCE: Final = 300
# The costs of a digit and of a mark beyond that of a letter.
_DIGIT: Final = 2
_MARK: Final = 4

# A text that exceeds its bound so many times makes the reply unusable.
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


class UnusableReplyError(NexusError):
    """The reply of a model cannot be used. The message names the fault and quotes nothing of the reply."""


class TooManyCallsError(NexusError):
    """A summary would take more calls of the model than are allowed."""


@dataclass(slots=True)
class CallLimit:
    """How many replies of the model one summary may take, over all attempts, and how many it has taken."""

    most: int
    taken: int = 0

    @property
    def is_reached(self) -> bool:
        """Whether no call is left."""
        return self.taken >= self.most

    def check(self, calls: int) -> None:
        """TooManyCallsError where the summary takes so many calls in all, and fewer are allowed."""
        if calls > self.most:
            raise TooManyCallsError(f"it takes more than {self.most} calls of the model")


def smaller(room: int) -> int:
    """Half of the room in a prompt that was too long; ModelUnavailableError where that would be less than the least."""
    if room <= LEAST_ROOM:
        tokens = LEAST_ROOM // BYTES_A_TOKEN
        raise ModelUnavailableError(f"the model takes no prompt of {tokens} tokens and the task")
    return max(room // 2, LEAST_ROOM)


class RoomForPrompts:
    """How many bytes of a document fit into a prompt: fewer, once the model has found a prompt too long."""

    def __init__(self, room: int) -> None:
        self._room = max(room, LEAST_ROOM)

    async def fit(self, ask: Callable[[int], Awaitable[_Result]]) -> _Result:
        """What `ask` returns for the room; for half of it, and so on, where a prompt was too long.

        Raises what `ask` does, and ModelUnavailableError where even the least room is too much.
        """
        room = self._room
        while True:
            try:
                result = await ask(room)
            except PromptTooLongError:
                room = smaller(room)
            else:
                self._room = min(self._room, room)
                return result


class SummaryModel(Generic[_Summary]):
    """A model that is asked for summaries, or facts, in this schema; so many of its replies are kept."""

    def __init__(  # noqa: PLR0917  # one for each part of a question
        self,
        model: LanguageModel,
        schema: Mapping[str, Any],
        schema_name: str,
        most_kept: int,
        purpose: Purpose,
        metrics: Metrics,
    ) -> None:
        self._model = model
        self._schema, self._schema_name = schema, schema_name
        self._most_kept = most_kept
        self._purpose = purpose
        self._metrics = metrics
        self._kept: OrderedDict[bytes, _Summary] = OrderedDict()

    async def ask(
        self, task: Callable[[str], str], user: str, read: Callable[[str], _Summary], calls: CallLimit
    ) -> _Summary:
        """The summary that `read` finds in the reply; at the second attempt if the first reply is unusable.

        `task` is the system message for the fault of the first reply, `""` for none. Raises UnusableReplyError,
        TooManyCallsError before a call that is not allowed, or ModelUnavailableError and PromptTooLongError as the
        model does.
        """
        calls.check(calls.taken + 1)
        try:
            return await self._attempt(task(""), user, read, calls)
        except UnusableReplyError as error:
            if calls.is_reached:
                raise
            fault = str(error)
        return await self._attempt(task(fault), user, read, calls)

    async def _attempt(self, task: str, user: str, read: Callable[[str], _Summary], calls: CallLimit) -> _Summary:
        try:
            done = await self._model.complete(task, user, schema=self._schema, schema_name=self._schema_name)
        except PromptTooLongError:
            self._count(CallOutcome.TOO_LONG)
            raise
        except ModelUnavailableError:
            # It takes nothing of the limit: the call is made again when the model is there.
            self._count(CallOutcome.UNAVAILABLE)
            raise
        calls.taken += 1
        try:
            summary = await to_thread.run_sync(read, done.text)
        except UnusableReplyError:
            self._count(CallOutcome.UNUSABLE, done)
            raise
        self._count(CallOutcome.USED, done)
        return summary

    def _count(self, outcome: CallOutcome, done: Completion | None = None) -> None:
        tokens = (done.prompt_tokens, done.completion_tokens) if done else (0, 0)
        self._metrics.model_called(self._purpose, outcome, *tokens)

    async def ask_once(
        self, about: str, task: Callable[[str], str], user: str, read: Callable[[str], _Summary], calls: CallLimit
    ) -> _Summary:
        """The same, or the kept summary of the same user message, with the same words `about` it."""
        key = hashlib.sha256(f"{about}\n{user}".encode("utf-8", "replace")).digest()
        if key not in self._kept:
            self._kept[key] = await self.ask(task, user, read, calls)
        summary = self._kept[key]
        if len(self._kept) > self._most_kept:
            self._kept.popitem(last=False)
        return summary


def clean(value: Any) -> Any:
    """The value, texts without what a store refuses: escapes of JSON may hold half a surrogate pair, or NUL."""
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


_Short = Annotated[str, _text(MOST_BRIEF), BeforeValidator(clean)]
_Long = Annotated[str, _text(MOST_DETAILED), BeforeValidator(clean)]
_Entry = Annotated[str, _text(MOST_ENTRY), BeforeValidator(clean)]
_Items = Annotated[list[_Entry], Field(max_length=MOST_ENTRIES * _FAR_TOO_LONG), BeforeValidator(_items)]


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
    """A model's summary of a turn, or of a part of it."""

    summaries: Summaries
    insights: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As it stands in the prompt that joins parts."""
        return {**self.summaries.model_dump(exclude={"source"}), "insights": self.insights}


def read_reply(text: str, evidence: Evidence) -> Reply:
    """The summary in an answer; an `UnusableReplyError` names the fault."""
    answer = _validated(find_object(text, "brief", "detailed"))
    if fault := _fault_of(answer, evidence):
        raise UnusableReplyError(fault)
    return _bounded(answer)


def _bounded(answer: _SummaryAnswer) -> Reply:
    parts, detailed = answer.structured, leading(answer.detailed, MOST_DETAILED)
    texts = {
        "detailed": detailed,
        "brief": brief_within(answer.brief, detailed),
        "overview": leading(parts.overview, MOST_BRIEF),
    }
    if too_long := [name for name, text in texts.items() if not text]:
        raise UnusableReplyError(f"the first sentence of its {too_long[0]} is too long")
    summaries = Summaries(
        brief=texts["brief"],
        detailed=detailed,
        structured=Structured(
            overview=texts["overview"],
            actions=listed(parts.actions),
            results=listed(parts.results),
            decisions=listed(parts.decisions),
            next_steps=listed(parts.next_steps),
        ),
        source="model",
    )
    return Reply(summaries, listed(answer.insights, MOST_INSIGHTS, MOST_INSIGHT))


def find_object(text: str, *names: str) -> dict[str, Any]:
    """The first JSON object with one of these fields, else the first one; an `UnusableReplyError` for none."""
    if not text.strip():
        raise UnusableReplyError("it is empty")
    *thoughts, rest = _THOUGHT_ENDS.split(text)
    if not thoughts and _THOUGHT_BEGINS.match(text):
        raise UnusableReplyError("it ends before the answer begins")
    # The words of an answer may hold such a mark as well. An object around the one that is meant does not count.
    objects = (value for source in (rest, text) for value in _objects(source))
    for found in (value for value in objects if not value.keys().isdisjoint(names)):
        return found
    for found in _objects(text):
        return found
    raise UnusableReplyError("its JSON is broken" if "{" in text else "it holds no JSON object")


def placeholder_in(text: str) -> str | None:
    """The fault of a text that only describes what should stand in its place; None for no fault."""
    return "it repeats the form instead of filling it in" if _PLACEHOLDER.fullmatch(text) else None


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """All objects in a text, nested ones too."""
    # Not strict: models write line ends as they are.
    decoder = json.JSONDecoder(strict=False)
    for opening in islice(re.finditer("{", text), _MOST_OPENINGS):
        with suppress(ValueError, RecursionError):
            yield decoder.raw_decode(text, opening.start())[0]


def _validated(value: dict[str, Any]) -> _SummaryAnswer:
    try:
        return _SummaryAnswer.model_validate(value)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in fault["loc"])
        raise UnusableReplyError(f"{place}: {fault['msg']}") from None


def _fault_of(answer: _SummaryAnswer, evidence: Evidence) -> str | None:
    parts = answer.structured
    texts = answer.brief, answer.detailed, parts.overview
    lists = parts.actions, parts.results, parts.decisions, parts.next_steps, answer.insights
    entries = [entry for items in lists for entry in items]
    faults = (
        *(refusal_in(text, evidence.turn_text) for text in texts),
        *(failure_in(text, evidence.turn_text) for text in entries),
        next(filter(None, map(placeholder_in, texts)), None),
        # Entries are taken together: one by itself may be no more than a name or a title.
        evidence.fault_of([*texts, "\n".join(entries)], answer.detailed),
        evidence.lack_of([*texts, *entries], answer.detailed, has_outcomes=bool(parts.actions or parts.results)),
    )
    return next(filter(None, faults), None)


def within(text: str, most: int) -> str:
    """The text, or its first sentences, or its first words and `…`, in at most so many characters."""
    sentences = leading(text, most)
    if sentences or not text:
        return sentences
    return text[: between_words(text, most - len(_MORE))].rstrip(_HANGING) + _MORE


def listed(entries: Sequence[str], most: int = MOST_ENTRIES, most_each: int = MOST_ENTRY) -> tuple[str, ...]:
    """The first entries of a list, each within its bound."""
    return tuple(within(entry, most_each) for entry in entries[:most])


def cost(text: str) -> int:
    """About how many fifths of a token a text takes: figures and marks are dearer than words."""
    return weight(text) + sum(map(_extra, text))


def brief_within(brief: str, detailed: str) -> str:
    """The first sentences of `brief` that cost no more than a third of `detailed`, which holds the rest.

    Where that is too little for the first one, `_ONE_SENTENCE` is enough; `""` where it costs more than that too.
    """
    costs = [*accumulate(map(cost, brief))]
    for room in ((cost(detailed) + _HEAD) // _BRIEF_PART - _HEAD, _ONE_SENTENCE):
        if kept := leading(brief, min(bisect_right(costs, room), MOST_BRIEF)):
            return kept
    return ""


def _extra(char: str) -> int:
    if not char.isascii() or char.isalpha() or char.isspace():
        return 0
    return _DIGIT if char.isdigit() else _MARK
