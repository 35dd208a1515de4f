"""An owner of whom there is something of every kind that the console shows, made of given texts."""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final

from pymongo.database import Database

from nexus.bootstrap import Nexus
from nexus.client import owner_message
from nexus.core.models import Message, Role, Topics, new_row_id, utc_now
from nexus.core.person import Statement
from nexus.core.ports import DeadLetter, DeadLetters, Row
from nexus.core.wire import encode
from nexus.core.working_memory import Compaction, Detail, Overview
from tests.nexus.support.kept_turns import a_turn
from tests.nexus.support.waiting import until

_NOW: Final = utc_now().replace(microsecond=0)
_PROVIDERS: Final = ("openai", "anthropic", "gemini")
_LAYOUTS: Final = ("dialogue", "agent", "thinking")
# So many of the texts are said in one run, and so many runs are of the main session; others have one of their own.
_SAID_IN_RUN: Final = 10
_RUNS: Final = 10
_FEW: Final = 20
# How long the texts are, at most.
_LONGEST: Final = 200


@dataclass(slots=True)
class Filled:
    """What there is of an owner.

    Attributes:
        answered: ids of the requests that got a context.
        fields: by the name of the field what was put into it. Each text ends with that name: no other field has it.
    """

    owner: str
    session: str
    answered: list[str] = field(default_factory=list)
    fields: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


class _Texts:
    """Hands out the texts in turn, each with the name of its field behind it, and notes which field got which."""

    def __init__(self, filled: Filled, texts: Sequence[str]) -> None:
        self._filled, self._texts = filled, texts

    def __call__(self, name: str, place: int, most: int = 256) -> str:
        room = most - len(name) - 1
        fitting = [each for each in self._texts if len(each) <= room] if room < _LONGEST else self._texts
        text = f"{fitting[place % len(fitting)]}~{name}"
        self._filled.fields[name].append(text)
        return text


async def fill(
    nexus: Nexus, letters: DeadLetters, db: Database[dict[str, Any]], texts: Sequence[str], *, large: int = 0
) -> Filled:
    """Make the first of the texts an owner who has all of them in every field; `large`: also texts of so many bytes.

    Texts are distinct, of at most 200 characters, and without NUL.
    """
    filled = Filled(owner=texts[0], session=texts[1])
    filled.fields["owner"].append(filled.owner)
    filled.fields["session"].append(filled.session)
    text = _Texts(filled, texts)
    rows = [row for number in range(len(texts)) for row in _rows(filled, text, number)]
    if large:
        rows += [_large_row(filled, role, large) for role in ("HUMAN", "TOOL")]
    for outcome in await nexus.store.insert_messages(rows):
        assert outcome is True, outcome
    row_ids = [row["_id"] for row in rows]
    await nexus.store.turns.insert_turns([_turn(filled, text, number) for number in range(len(texts))])
    for revision in range(_FEW):
        await nexus.store.memory.insert_overview(_overview(filled, text, revision))
    await nexus.store.memory.insert_details(
        [_detail(filled, text, number, version) for number in range(len(texts)) for version in (1, 2)]
    )
    for number in range(_FEW):
        await nexus.store.memory.insert_compaction(_compaction(filled, text, number, row_ids))
    await nexus.store.facts.add_statements(filled.owner, [_statement(filled, text, n) for n in range(len(texts))])
    for number in range(len(texts)):
        await letters.keep(_letter(text, number))
    profile = {"friends_profile": text("profile", 0)}
    db["identities"].insert_one({"public_key": filled.owner, "prompt_overrides": profile, "created_at": _NOW})
    await _say_on_the_bus(nexus, filled, text, len(texts))
    return filled


def _of(filled: Filled) -> dict[str, Any]:
    return {"owner_key": filled.owner, "session_id": filled.session}


def _rows(filled: Filled, text: _Texts, number: int) -> list[Row]:
    """A run: what is said, a call, its result, and an answer; and a row of a role that nobody knows."""
    call = text("call id", number)
    about: dict[str, Any] = {"tool_calls": [{"id": call, "name": text("tool", number), "arguments": {}}]}
    about["tool_calls"][0]["arguments"] = {text("argument name", number).lstrip("$"): text("argument", number)}
    result = {"tool_name": text("tool", number), "call_id": call, "status": text("status", number)}
    said = [
        ("HUMAN", text("input", number), {"source": text("source", number)}),
        ("AI", text("announced", number), about),
        ("TOOL", text("result", number), result),
        ("AI", text("answer", number), {"note": {"deep": [text("metadata", number)]}}),
        (text("role", number), {"type": "text", "text": text("content part", number)}, {}),
    ]
    place_of_run = number // _SAID_IN_RUN
    run = text("run", place_of_run)
    session = filled.session if place_of_run < _RUNS else text("session", place_of_run)
    at = _NOW - timedelta(days=1) + timedelta(minutes=number)
    return [
        {
            "_id": new_row_id(),
            "id": f"{text('message', number, 240)}/{place}",
            "run_id": run,
            "owner_key": filled.owner,
            "session_id": session,
            "role": role,
            "content": content,
            "timestamp": at + timedelta(seconds=place),
            "metadata": metadata,
        }
        for place, (role, content, metadata) in enumerate(said)
    ]


def _large_row(filled: Filled, role: str, large: int) -> Row:
    beginning = f"<script>alert('large {role}')</script>\x00 "
    return {
        **_of(filled),
        "_id": new_row_id(),
        "id": f"large {role}",
        "run_id": "large",
        "role": role,
        "content": beginning + "<b>\u6587</b>\U0001f600 " * (large // 15),
        "timestamp": _NOW,
        "metadata": {},
    }


def _turn(filled: Filled, text: _Texts, number: int) -> Row:
    structured = {
        "overview": text("turn overview", number),
        "actions": [text("turn action", number)],
        "results": [text("turn result", number)],
        "decisions": [text("turn decision", number)],
        "next_steps": [text("turn step", number)],
    }
    call = {"name": text("turn tool", number), "arguments": {"q": text("turn argument", number)}, "success": True}
    return a_turn(
        number + 1,
        **_of(filled),
        run_id=text("turn run", number),
        timestamp=_NOW - timedelta(days=1) + timedelta(minutes=number),
        task_context=text("goal", number),
        workspace_context=text("workspace", number),
        thinking_phase={"rounds": [{"round_number": 1, "content": text("thought", number)}], "tokens_used": 3},
        tool_calls=[call | {"result": text("turn tool result", number)}],
        summaries={
            "brief": text("brief", number),
            "detailed": text("detailed", number),
            "structured": structured,
            "source": "model",
        },
        insights=[text("insight", number)],
        work=None,
        due_at=None,
    )


def _overview(filled: Filled, text: _Texts, number: int) -> Row:
    content = f"# {text('overview', number)}\n\n- {text('overview line', number)}\n"
    overview = Overview(revision=number + 1, content=content, updated_at=_NOW, run_id=text("run", number))
    return {**_of(filled), **overview.model_dump()}


def _detail(filled: Filled, text: _Texts, number: int, version: int) -> Row:
    content = text("detail", number + version)
    name = text("detail name", number)
    detail = Detail(name=name, version=version, bytes=len(content.encode()), updated_at=_NOW, content=content)
    return {**_of(filled), **detail.model_dump()}


def _compaction(filled: Filled, text: _Texts, number: int, row_ids: Sequence[str]) -> Row:
    covered = row_ids[number * 2 : number * 2 + 2]
    compaction = Compaction(
        number=number + 1,
        created_at=_NOW,
        strategy="archive",
        summary=text("summary", number),
        rows=tuple(covered),
        count=len(covered),
        total=(number + 1) * 2,
        since=row_ids[0][:8],
        without=tuple(row_ids[: number * 2 + 2]),
        details=(text("detail name", number),),
        run_id=text("run", number),
    )
    return {**_of(filled), **compaction.model_dump(), "work": None, "due_at": None}


def _statement(filled: Filled, text: _Texts, number: int) -> Statement:
    return Statement(
        id=f"{number:04d}",
        owner_key=filled.owner,
        topic=text("topic", number, 64),
        sub_topic=text("sub-topic", number, 64),
        value=text("fact", number),
        evidence=(f"{text('message', number, 240)}/0",),
        session_id=filled.session,
        said_at=_NOW - timedelta(days=1) + timedelta(minutes=number),
    )


def _letter(text: _Texts, number: int) -> DeadLetter:
    body = b"\xff\x00" + text("letter", number).encode()
    sha256 = hashlib.sha256(body).hexdigest()
    return DeadLetter(
        text("letter topic", number),
        text("reason", number),
        sha256,
        len(body),
        message_id=text("letter id", number),
        body=body,
    )


async def _say_on_the_bus(nexus: Nexus, filled: Filled, text: _Texts, number: int) -> None:
    """Have states and constraints kept, and contexts built, which leaves records: of every layout and form, and errors.

    All that a service itself is to make of what it is told.
    """

    async def tell(topic: str, content: Mapping[str, Any]) -> None:
        message = owner_message(filled.owner, content, filled.session)
        await nexus.bus.publish(topic, encode(message))

    todos = [{"id": str(place), "content": text("todo", place)} for place in range(_FEW)]
    info = [{"id": str(place), "content": text("info", place)} for place in range(_FEW)]
    state = {"role": text("agent role", 0), "todos": todos, "useful_info": info}
    await tell(Topics.SESSION_STATE, {"op": "set", "state": state})
    for scope in ("owner", "session"):
        rules = [{"text": text(f"{scope} rule", place), "scope": scope} for place in range(_FEW)]
        await tell(Topics.SESSION_CONSTRAINTS, {"op": "add", "constraints": rules})
    # Each twice, to be compared.
    forms = [(layout, form) for _ in range(2) for layout in _LAYOUTS for form in _PROVIDERS]
    requests = [_failing(filled, text, place) for place in range(number)]
    # Last, so that they are among the newest.
    requests += [
        _request(filled, text, place, {"layout": layout, "format": form}) for place, (layout, form) in enumerate(forms)
    ]
    filled.answered += [request.id for request in requests[number:]]
    for start in range(0, len(requests), _FEW):
        for request in requests[start : start + _FEW]:
            await nexus.bus.publish(Topics.CONTEXT_BUILD_REQUEST, encode(request))
        await until(partial(_has_records, nexus, filled, min(start + _FEW, len(requests))))
    await until(partial(_is_told, nexus, filled))
    await nexus.persistence.flush()
    await nexus.turns.drained()


async def _has_records(nexus: Nexus, filled: Filled, number: int) -> bool:
    return len(await nexus.store.records.records(filled.owner, limit=number)) == number


async def _is_told(nexus: Nexus, filled: Filled) -> bool:
    state = await nexus.store.find_session_state(filled.owner, filled.session)
    return bool(state) and len(await nexus.store.constraints.list_constraints(filled.owner, limit=2)) == 2


def _failing(filled: Filled, text: _Texts, number: int) -> Message:
    """A request for a layout that nobody knows, of a run of which there is something."""
    asked = {"role": "HUMAN", "content": "Good morning"}
    content = {"owner_key": filled.owner, "history": [asked], "metadata": {"layout": text("layout", number)}}
    run, request = text("run", number // _SAID_IN_RUN), text("failed request", number)
    return Message(id=request, run_id=run, owner_key=filled.owner, role=Role.HUMAN, content=content)


def _request(filled: Filled, text: _Texts, number: int, metadata: Mapping[str, Any]) -> Message:
    asked = {"id": f"asked {number}", "role": "HUMAN", "content": text("question", number)}
    # Other layouts do not show it.
    about = text("given profile", number) if metadata["layout"] == "dialogue" else ""
    profile = {"public_key": filled.owner, "prompt_overrides": {"friends_profile": about}}
    content = {
        "owner_key": filled.owner,
        "history": [asked],
        "metadata": {"session_id": filled.session, "user_profile": profile, **metadata},
    }
    run, request = text("asking run", number), text("request", number)
    return Message(id=request, run_id=run, owner_key=filled.owner, role=Role.HUMAN, content=content)
