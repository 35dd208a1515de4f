"""Conversations of owners: of files that name the evidence of questions, and made ones of any length."""

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate, cycle, islice
from pathlib import Path
from typing import Any, Final

Document = dict[str, Any]

_LOCOMO_SESSION: Final = re.compile(r"session_\d+")
_LOCOMO_DATE: Final = "%I:%M %p on %d %B, %Y"
_ROLES: Final = ("HUMAN", "AI")
# How frequent the words of a made vocabulary are, each added to those before.
_SHARES: Final = [*accumulate((30 + at) ** -1.6 for at in range(20_000))]


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the ids of all messages that answer it."""

    text: str
    evidence: frozenset[str]


@dataclass(frozen=True, slots=True)
class Conversation:
    """All that is stored of one owner, as documents of `messages`, session by session; and questions about it."""

    owner_key: str
    documents: list[Document]
    questions: list[Question]


def read_locomo(path: Path) -> list[Conversation]:
    """The conversations of a LoCoMo file: a turn is a message, with its speaker before it and the caption behind it."""
    return [_locomo(each) for each in json.loads(path.read_bytes())]


def _locomo(given: Mapping[str, Any]) -> Conversation:
    owner, talk, documents = given["sample_id"], given["conversation"], []
    sessions = sorted(filter(_LOCOMO_SESSION.fullmatch, talk), key=lambda name: int(name.rpartition("_")[2]))
    for name in sessions:
        moment = datetime.strptime(talk[f"{name}_date_time"], _LOCOMO_DATE).replace(tzinfo=UTC)
        for number, turn in enumerate(talk[name]):
            text = f"{turn['speaker']}: {turn['text']} {turn.get('blip_caption') or ''}".rstrip()
            documents.append(_document(owner, name, turn["dia_id"], "HUMAN", text, moment, number))
    return Conversation(owner, documents, _answerable(documents, given["qa"]))


def read_owners(path: Path) -> tuple[list[Conversation], Mapping[str, float]]:
    """The conversations of a file of our own, and what plain BM25 finds in it by the file itself, if it says so.

    The file: `{"owners": [{"owner_key", "sessions": [{"session_id", "date", "messages": [{"id", "role", "content"}]}],
    "questions": [{"question", "evidence": [ids]}]}], "baseline": {"overall": {"recall@5", …}}}`.
    """
    given = json.loads(path.read_bytes())
    return [_ours(each) for each in given["owners"]], given.get("baseline", {}).get("overall", {})


def _ours(given: Mapping[str, Any]) -> Conversation:
    owner, documents = given["owner_key"], []
    for session in given["sessions"]:
        moment = datetime.fromisoformat(session["date"])
        for number, message in enumerate(session["messages"]):
            about = message["id"], message["role"], message["content"]
            documents.append(_document(owner, session["session_id"], *about, moment, number))
    return Conversation(owner, documents, _answerable(documents, given["questions"]))


def _answerable(documents: list[Document], asked: list[Mapping[str, Any]]) -> list[Question]:
    """The questions some of whose evidence is there, with that."""
    there = {document["id"] for document in documents}
    found = [Question(each["question"], frozenset(each["evidence"]) & there) for each in asked]
    return [question for question in found if question.evidence]


def _document(  # noqa: PLR0917  # the fields of a document, in their order
    owner: str, session: str, message_id: str, role: str, text: str, moment: datetime, number: int
) -> Document:
    return {
        "id": message_id,
        "run_id": f"{session}-{number // 2}",
        "owner_key": owner,
        "session_id": session,
        "role": role,
        "content": text,
        "timestamp": moment + number * timedelta(seconds=1),
        "metadata": {},
    }


class Repeated:
    """The texts of conversations, in order and over again, each time in new sessions; and their questions."""

    def __init__(self, conversations: Sequence[Conversation]) -> None:
        self._documents = [document for each in conversations for document in each.documents]
        questions = [question.text for each in conversations for question in each.questions]
        random.Random(1).shuffle(questions)  # noqa: S311  # nothing secret
        self._questions = cycle(questions)

    def question(self) -> str:
        """The next one."""
        return next(self._questions)

    def documents(self, owner: str, number: int) -> Iterator[Document]:
        """So many messages of an owner."""
        for at, document in enumerate(islice(cycle(self._documents), number)):
            session = f"{at // len(self._documents)}-{document['owner_key']}-{document['session_id']}"
            yield {**document, "id": f"{owner}-{at}", "owner_key": owner, "session_id": session}


class MadeUp:
    """Made texts without any subject, of which one in five is Chinese. The same seed gives the same texts.

    Of each vocabulary some words are frequent and most are rare, about as in LoCoMo without the words that say nothing.
    """

    _CHINESE: Final = 0.2
    _IN_A_SESSION: Final = 60

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)  # noqa: S311  # nothing secret
        characters = self._random.sample([chr(code) for code in range(0x4E00, 0x9FA5)], 1_500)
        self._english = self._vocabulary("aeioubcdfghklmnprstvw", (4, 9))
        self._chinese = self._vocabulary(characters, (1, 2))

    def message(self) -> str:
        """A text of 4 to 30 words."""
        return self._text(self._random.randint(4, 30))

    def question(self) -> str:
        """A text of 3 to 9 words."""
        return self._text(self._random.randint(3, 9))

    def documents(self, owner: str, number: int) -> Iterator[Document]:
        """So many messages of an owner."""
        first = datetime(2024, 1, 1, tzinfo=UTC)
        for at in range(number):
            session, place = divmod(at, self._IN_A_SESSION)
            moment = first + session * timedelta(hours=9)
            yield _document(owner, f"s{session}", f"{owner}-{at}", _ROLES[at % 2], self.message(), moment, place)

    def _text(self, words: int) -> str:
        is_chinese = self._random.random() < self._CHINESE
        return ("" if is_chinese else " ").join(
            self._random.choices(self._chinese if is_chinese else self._english, cum_weights=_SHARES, k=words)
        )

    def _vocabulary(self, letters: Sequence[str], lengths: tuple[int, int]) -> list[str]:
        return ["".join(self._random.choices(letters, k=self._random.randint(*lengths))) for _ in _SHARES]
