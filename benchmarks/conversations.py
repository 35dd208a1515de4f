"""Conversations of owners: of files that name the evidence of questions, and made ones of any length."""

import json
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

Document = dict[str, Any]

_LOCOMO_SESSION: Final = re.compile(r"session_\d+")
_LOCOMO_DATE: Final = "%I:%M %p on %d %B, %Y"
_ROLES: Final = ("HUMAN", "AI")


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


class MadeUp:
    """Made texts: the n-th word of their vocabulary is 1/n times as frequent as the first, as it is in languages.

    One in five messages is Chinese. The same seed gives the same texts.
    """

    _WORDS: Final = 20_000
    _CHARACTERS: Final = 3_000
    _CHINESE: Final = 0.2
    _LENGTHS: Final = (4, 30)
    _IN_A_SESSION: Final = 60

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)  # noqa: S311  # nothing secret
        letters = "aeiou", "bcdfghklmnprstvw"
        self._words = [
            "".join(self._random.choice(letters[at % 2]) for at in range(self._random.randint(3, 9)))
            for _ in range(self._WORDS)
        ]
        self._characters = [chr(0x4E00 + at * 6) for at in range(self._CHARACTERS)]
        self._random.shuffle(self._characters)
        self._shares = {
            len(items): [*accumulate(1 / (at + 1) for at in range(len(items)))]
            for items in (self._words, self._characters)
        }

    def text(self) -> str:
        """Of a message."""
        length = self._random.randint(*self._LENGTHS)
        return (
            self._chosen(self._characters, length, "")
            if self._random.random() < self._CHINESE
            else self.question(length)
        )

    def question(self, length: int = 8) -> str:
        """So many words."""
        return self._chosen(self._words, length, " ")

    def documents(self, owner: str, number: int) -> Iterator[Document]:
        """So many messages of an owner."""
        first = datetime(2024, 1, 1, tzinfo=UTC)
        for at in range(number):
            session, place = divmod(at, self._IN_A_SESSION)
            role = _ROLES[at % 2]
            moment = first + session * timedelta(hours=9)
            yield _document(owner, f"s{session}", f"{owner}-{at}", role, self.text(), moment, place)

    def _chosen(self, items: list[str], length: int, between: str) -> str:
        return between.join(self._random.choices(items, cum_weights=self._shares[len(items)], k=length))
