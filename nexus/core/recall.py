"""Values of long-term memory: where a message stands in the index, what the index has, and what a search finds.

Messages of one session stand in **episodes** of up to `EPISODE` places, in the order in which they were indexed. A
place is a number within its owner; messages of one episode have places beside each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NewType, get_args

from nexus.core.models import Row

# Places of an episode: consecutive messages of one session.
EPISODE: Final = 32
# What is to be done on a message: to index its words, and then its meaning by an embedder.
WORDS: Final = "words"
MEANING: Final = "meaning"

# Of words in Latin letters, those that have stems.
Language = Literal[
    "catalan",
    "czech",
    "danish",
    "dutch",
    "english",
    "finnish",
    "french",
    "german",
    "hungarian",
    "indonesian",
    "italian",
    "norwegian",
    "polish",
    "portuguese",
    "romanian",
    "spanish",
    "swedish",
    "turkish",
]

# What is searched: one session, or all of the owner's.
Scope = Literal["session", "owner"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)

# The number of an episode within its owner times EPISODE, and the place within the episode.
Place = NewType("Place", int)
# How often a term occurs in a message, and how many terms the message has: see `occurrence`.
Occurrence = int
MOST_OCCURRENCES: Final = 15
LONGEST: Final = (1 << 12) - 1
# By episode and place within it, both as decimal texts, as the keys of documents are.
ByPlace = Mapping[str, Mapping[str, Occurrence]]


def occurrence(times: int, length: int) -> Occurrence:
    """A term that occurs so often in a message of `length` terms; both numbers are capped."""
    return min(times, MOST_OCCURRENCES) << 12 | min(length, LONGEST)


@dataclass(frozen=True, slots=True)
class Entry:
    """What the index keeps of one message.

    Attributes:
        terms: each term of its text with its occurrence.
        flags: what else is true of it, such as its month.
        codes: by the generation of an embedder, the signs of its vector.
    """

    owner_key: str
    place: Place
    terms: Mapping[str, Occurrence] = field(default_factory=dict)
    flags: Sequence[str] = ()
    codes: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Postings:
    """What the index has for a question.

    Attributes:
        messages: how many messages are indexed in what is searched, about: places that were never used count as well.
        terms: of each term that occurs, where.
        flags: of each flag, by episode the bits of the places where it is true.
        codes: by episode and place, the codes of the generation that was asked for.
    """

    messages: int
    terms: Mapping[str, ByPlace]
    flags: Mapping[str, Mapping[str, int]]
    codes: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Score:
    """The parts of a score, which is their sum.

    Attributes:
        terms: by term, what it gives: where it occurs in the message or beside it.
        session: the same terms in the whole episode.
        date: the question names the month or year of the message.
        similarity: nearness to the question by an embedder; 0 without one.
    """

    terms: Mapping[str, float]
    session: float = 0.0
    date: float = 0.0
    similarity: float = 0.0

    @property
    def total(self) -> float:
        """The score."""
        return sum(self.terms.values()) + self.session + self.date + self.similarity


@dataclass(frozen=True, slots=True)
class Ranked:
    """A place that was found."""

    place: Place
    score: Score


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that was found, as it is stored, with the messages beside it that are stored, oldest first.

    `around` has the row itself, too.
    """

    row: Row
    score: Score
    around: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found.

    Attributes:
        hits: best first.
        considered: how many messages were scored.
        formula: the version of the weights.
        generation: of the embedder whose vectors were compared; `""` for words alone.
    """

    hits: Sequence[Hit]
    considered: int
    formula: int
    generation: str = ""


@dataclass(frozen=True, slots=True)
class IndexStatus:
    """How many messages are in which state; None where they could not be counted in time.

    Attributes:
        indexed: found by words.
        waiting: recorded, and not indexed yet.
        failed: not indexed, or not by meaning, for the reason that `faults` has.
        unmarked: of other writers; `nexus recall index` has them indexed.
        meaning_waiting: found by words, and not by meaning yet.
        faults: some of those that failed, by `id`, with the reason.
    """

    indexed: int | None
    waiting: int | None
    failed: int | None
    unmarked: int | None
    meaning_waiting: int | None = 0
    faults: Mapping[str, str] = field(default_factory=dict)
