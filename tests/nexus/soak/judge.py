"""The verdict of a soak: on every answer as it is heard, and at the end on all that is stored.

Nothing here grows with the number of requests: of an answer eight bytes are kept, in a file, and what is stored is
compared block by block with what the seed says.
"""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nexus.core.models import Topics
from tests.nexus.e2e.harness import REQUEST, Document
from tests.nexus.faults.load import MARK_BYTES
from tests.nexus.soak.plan import MOST_STEPS, Script, request_id

FAULTS: Final[Mapping[str, str]] = {
    "lost": "requests without an answer",
    "twice": "requests with two answers that differ",
    "foreign": "answers with a mark of another owner",
    "wrong": "answers that name another run or owner, or do not show their own input",
    "refused": "requests that were answered with an error that no retry helps against",
    "unaccounted": "messages, rows, turns and summaries that are missing, twice, changed, or nobody's",
    "leaked": "keys of Redis that stay for ever and are not known to",
    "grown": "replicas whose memory has grown by more than 15 %",
    "raised": "events in a replica's log that are a fault of Nexus",
}
# Of one request. The last one is what counts. With the pauses between them they outlast a database that begins anew.
MOST_ATTEMPTS: Final = 6
_EXAMPLES: Final = 5
_SLOT: Final = 8
_ANSWERED, _RETRYABLE = b"\1", b"\2"
_ASKED: Final = re.compile(r"ask-(\d+)-(\d+)-(\d+)")


class Faults:
    """How many there are of each kind, and the first examples. It goes through JSON, for a soak that goes on."""

    def __init__(self, counts: Mapping[str, int] | None = None, examples: Sequence[str] = ()) -> None:
        self.counts = Counter(counts)
        self.examples = [*examples]

    def note(self, kind: str, what: str) -> None:
        """One more."""
        self.counts[kind] += 1
        if self.counts[kind] <= _EXAMPLES:
            self.examples.append(f"{kind}: {what}")

    def note_all(self, kind: str, those: Iterable[Any], what: str) -> None:
        """One more for each of those."""
        for each in those:
            self.note(kind, f"{what}: {each}")


class Heard:
    """What was answered to each attempt of each request, in a file of fixed slots that outlives this process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)

    def close(self) -> None:
        """Nothing more is heard."""
        os.close(self._file)

    def answer(self, request: str, payload: bytes, *, retryable: bool) -> bool:
        """Take an answer down. False where another one was heard before that differs."""
        place = self._place(request)
        digest = (_RETRYABLE if retryable else _ANSWERED) + hashlib.sha256(payload).digest()[: _SLOT - 1]
        before = os.pread(self._file, _SLOT, place)
        if before[:1] in {_ANSWERED, _RETRYABLE}:
            return before == digest
        os.pwrite(self._file, digest, place)
        return True

    def outcomes(self, script: int, step: int) -> bytes:
        """Of each attempt that was answered, in order, whether that was the answer or one that may be retried."""
        found = os.pread(self._file, _SLOT * MOST_ATTEMPTS, self._place(f"ask-{script}-{step}-0"))
        return bytes(first for first in found[::_SLOT] if first)

    def is_answered(self, script: int, step: int) -> bool:
        """Whether the request has its answer."""
        return _ANSWERED in self.outcomes(script, step)

    @staticmethod
    def _place(request: str) -> int:
        named = _ASKED.fullmatch(request)
        if named is None:
            raise ValueError(request)
        script, step, attempt = map(int, named.groups())
        return ((script * MOST_STEPS + step) * MOST_ATTEMPTS + attempt) * _SLOT


def judge_answer(payload: bytes, answer: Document, asked: Document, mark: str, faults: Faults) -> None:
    """Whether an answer is to what was asked, and shows its own input and nobody else's words."""
    owners = {found.decode() for found in MARK_BYTES.findall(payload)}
    where = f"{asked['id']} of {asked['owner_key']}"
    if owners - {asked["owner_key"]}:
        faults.note("foreign", f"{where} was shown words of {', '.join(sorted(owners - {asked['owner_key']}))}")
    if (answer["run_id"], answer["owner_key"]) != (asked["run_id"], asked["owner_key"]):
        faults.note("wrong", f"{where} was answered for {answer['run_id']} of {answer['owner_key']}")
    elif mark and mark.encode() not in payload:
        faults.note("wrong", f"{where} does not show {mark}")


@dataclass
class Stored:
    """What MongoDB has of the owners of a block."""

    rows: list[Document] = field(default_factory=list)
    turns: list[Document] = field(default_factory=list)
    compactions: list[Document] = field(default_factory=list)
    facts: list[Document] = field(default_factory=list)
    constraints: list[Document] = field(default_factory=list)
    states: list[Document] = field(default_factory=list)
    records: list[Document] = field(default_factory=list)


def account(
    scripts: Iterable[Script], stored: Stored, heard: Heard, dead: Collection[str], faults: Faults
) -> Counter[str]:
    """Compare what is stored with what these scripts say. `dead` are the messages that dead letters name.

    Returns how many there were of what.
    """
    counts = Counter[str]()
    recorded = {each["request_id"] for each in stored.records}
    sessions = {kind: _by_session(getattr(stored, kind)) for kind in ("rows", "turns", "compactions", "states")}
    known = set[tuple[str, str]]()
    for script in scripts:
        session = script.owner, script.session
        known.add(session)
        rows, turns, compactions, states = (found.pop(session, []) for found in sessions.values())
        _requests(script, heard, recorded, faults, counts)
        _rows(script, rows, heard, dead, faults)
        _turns(script, turns, rows, dead, faults)
        _compactions(script, compactions, rows, faults)
        said = "".join(json.dumps(each, default=str) for each in states)
        faults.note_all("unaccounted", _missing(script.states, said), f"{script.session}: a state is not stored")
        counts += Counter(
            sessions=1,
            rows=len(rows),
            turns=len(turns),
            compactions=len(compactions),
            facts=len(script.facts),
            constraints=len(script.constraints),
            states=len(script.states),
            condensed=sum("condensed" in row["metadata"] for row in rows),
        )
        in_order = [turn["run_id"] for turn in sorted(turns, key=lambda turn: turn["turn_number"])]
        # An answer of the layout `dialogue` does not wait until its turn has a number.
        counts["sessions with turns in another order"] += in_order != script.runs
        counts["rows under summaries"] += sum(len(each["rows"]) for each in compactions)
        counts[f"sessions of {script.layout}"] += 1
    for kind, left in sessions.items():
        faults.note_all("unaccounted", left, f"{kind} of a session that nobody has")
    _said(scripts, stored, faults)
    counts["records"] += len(stored.records)
    return counts


def _requests(script: Script, heard: Heard, recorded: Collection[str], faults: Faults, counts: Counter[str]) -> None:
    for step in script.asked:
        outcomes = heard.outcomes(script.number, step)
        counts["requests"] += 1
        counts["retried"] += outcomes.count(_RETRYABLE)
        if _ANSWERED not in outcomes:
            faults.note("lost", f"ask-{script.number}-{step} has no answer")
        elif script.steps[step].topic == REQUEST:
            # Records are written behind the answers: a replica that is killed takes its last ones along.
            ids = {request_id(script.number, step, attempt) for attempt in range(MOST_ATTEMPTS)}
            counts["contexts without a record"] += ids.isdisjoint(recorded)


def _rows(script: Script, rows: Sequence[Document], heard: Heard, dead: Collection[str], faults: Faults) -> None:
    found, calls = Counter[str](), Counter[str]()
    for row in rows:
        wanted = script.rows.get(row["id"])
        call = row["metadata"].get("call_id")
        if wanted is None and row["role"] == "TOOL" and script.calls.get(call) == row["run_id"]:
            calls[call] += 1
        elif wanted is None:
            faults.note("unaccounted", f"{script.session}: row {row['id']} that nobody sent")
        else:
            found[row["id"]] += 1
            if (row["role"], row["run_id"], row["content"]) != wanted:
                faults.note("unaccounted", f"{script.session}: row {row['id']} differs from what was sent")
    lost = script.rows.keys() - found.keys() - {*dead}
    faults.note_all("unaccounted", sorted(lost), f"{script.session}: message without a row")
    twice = sorted(name for name, count in found.items() if count > 1)
    faults.note_all("unaccounted", twice, f"{script.session}: row that is there twice")
    for number in script.asked:
        call = script.steps[number].message["content"].get("call_id")
        if call and calls[call] != len(heard.outcomes(script.number, number)):
            faults.note("unaccounted", f"{script.session}: {calls[call]} rows for the call {call}")


def _turns(
    script: Script, turns: Sequence[Document], rows: Sequence[Document], dead: Collection[str], faults: Faults
) -> None:
    runs = sorted(turn["run_id"] for turn in turns)
    if runs != sorted(script.runs):
        faults.note("unaccounted", f"{script.session}: turns of {runs} for the runs {script.runs}")
        return
    numbers = sorted(turn["turn_number"] for turn in turns)
    if numbers != [*range(1, len(turns) + 1)]:
        faults.note("unaccounted", f"{script.session}: turns are numbered {numbers}")
    for turn in turns:
        own = {row["id"] for row in rows if row["run_id"] == turn["run_id"]}
        if turn["status"] != "completed" and not own & {*dead}:
            faults.note("unaccounted", f"{script.session}: the turn of {turn['run_id']} is {turn['status']}")
        if Counter(turn["messages"]) != Counter(own):
            faults.note("unaccounted", f"{script.session}: the turn of {turn['run_id']} has other messages than rows")


def _compactions(script: Script, compactions: Sequence[Document], rows: Sequence[Document], faults: Faults) -> None:
    named = Counter(name for each in compactions for name in each["rows"])
    twice = sorted(name for name, count in named.items() if count > 1)
    faults.note_all("unaccounted", twice, f"{script.session}: row under two summaries")
    strange = sorted(named.keys() - {str(row["_id"]) for row in rows})
    faults.note_all("unaccounted", strange, f"{script.session}: a summary names a row that is not there")
    numbers = sorted(each["number"] for each in compactions)
    if numbers != [*range(1, len(numbers) + 1)]:
        faults.note("unaccounted", f"{script.session}: compactions are numbered {numbers}")


def _said(scripts: Iterable[Script], stored: Stored, faults: Faults) -> None:
    """Facts and constraints, which are the owner's."""
    facts = Counter((fact["owner_key"], fact["value"]) for fact in stored.facts)
    wanted = Counter((script.owner, mark) for script in scripts for mark in script.facts)
    faults.note_all("unaccounted", (wanted - facts).elements(), "fact that is not stored")
    faults.note_all("unaccounted", (facts - wanted).elements(), "fact that nobody said, or twice")
    said = json.dumps([each["document"] for each in stored.constraints], default=str)
    for script in scripts:
        faults.note_all("unaccounted", _missing(script.constraints, said), f"{script.session}: constraint not stored")


def _missing(marks: Iterable[str], said: str) -> list[str]:
    return [mark for mark in marks if mark not in said]


def _by_session(documents: Iterable[Document]) -> dict[tuple[str, str], list[Document]]:
    found: dict[tuple[str, str], list[Document]] = {}
    for document in documents:
        found.setdefault((document["owner_key"], document["session_id"]), []).append(document)
    return found


TOPICS: Final = tuple(name for field, name in vars(Topics).items() if not field.startswith("_"))
# Keys that have no time to live, and why. Everything else that stays for ever is a leak.
STAYS: Final[Mapping[str, str]] = {
    "|".join(map(re.escape, TOPICS)): "the stream of a topic, trimmed by bus.stream_keep_s",
    r"nexus:dead-letters": "at most bus.dead_letter_max entries",
    r"nexus:\{outbox\}:size": "one number; the rows of the outbox go when MongoDB has them",
}


def stays(key: str) -> str:
    """Why a key without a time to live, named without its prefix, may be there; `""` for one that may not."""
    return next((why for pattern, why in STAYS.items() if re.fullmatch(pattern, key)), "")
