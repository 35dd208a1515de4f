"""What is known of a person, and what binds answers to them: facts and constraints (contract §15)."""

from collections.abc import Mapping
from datetime import datetime
from itertools import groupby
from typing import Final

from starlette.responses import Response

from nexus.core.erasure import hashed
from nexus.core.errors import StoreRejectedError
from nexus.core.models import MAX_ID_CHARS, new_message_id, parse_moment, utc_now
from nexus.core.person import CONSTRAINT_SCOPES, KINDS, MAX_CONSTRAINT_CHARS, MAX_TOPIC_CHARS, MAX_VALUE_CHARS
from nexus.http.console.asked import owner_and_session
from nexus.http.console.shell import Page, Visit
from nexus.services.person.constraint_changes import Target, place_of, read_id
from nexus.services.person.statements import Origin, read_evidence

_FACTS_AT_ONCE: Final = 100
_PLACES_AT_ONCE: Final = 50
# What the fields of the form that adds a fact are called, and what is in them at first.
_FACT: Final = {"topic": "", "sub_topic": "", "value": "", "since": "", "evidence": ""}
_CONSTRAINT: Final = {"text": "", "kind": KINDS[0], "scope": "session", "run": ""}


async def facts(visit: Visit, typed: Mapping[str, str] = _FACT, fault: str = "") -> Response:
    """What holds of a person; with `history` also what held before, and what is not said often enough.

    After a form that could not be done: what was `typed`, and the `fault` of it.
    """
    history, after = bool(visit.asked("history")), visit.asked("after")
    known = await visit.services.facts.facts(visit.owner)
    found = [each for each in known if history or each.holds]
    place = next((place for place, each in enumerate(found, 1) if each.id == after), 0)
    shown = found[place : place + _FACTS_AT_ONCE]
    return visit.page(
        "facts.html",
        status=400 if fault else 200,
        owner=visit.owner,
        session=visit.asked("session"),
        facts=shown,
        total=len(found),
        before=place,
        next=shown[-1].id if len(found) > place + _FACTS_AT_ONCE else None,
        history=history,
        is_gone=bool(after) and not place,
        typed=typed,
        fault=fault,
        # Each page says one thing, however often its form is sent.
        key=new_message_id(),
        most={"topic": MAX_TOPIC_CHARS, "value": MAX_VALUE_CHARS},
    )


async def add_fact(visit: Visit) -> Response:
    """Say what holds of a person, as an operator."""
    owner, _ = owner_and_session(visit)
    fields = visit.fields
    typed = {name: fields.get(name, default) for name, default in _FACT.items()}
    try:
        found = await visit.services.facts.say(
            _operator(owner, fields),
            typed["topic"],
            typed["value"],
            typed["sub_topic"],
            evidence=read_evidence(typed["evidence"].split(), "evidence"),
            valid_from=_moment(typed["since"].strip(), "since"),
        )
    except (ValueError, StoreRejectedError) as error:
        return await facts(visit, typed, str(error).replace("valid_from:", "since:"))
    visit.changed("fact_added", sha256=hashed(owner), facts=len(found))
    return visit.seen("facts", owner=owner, session=visit.asked("session") or None)


async def retire_fact(visit: Visit) -> Response:
    """Take back a value, as an operator. The history keeps it."""
    owner, _ = owner_and_session(visit)
    fields = visit.fields
    topic, sub_topic, value = (fields.get(name, "") for name in ("topic", "sub_topic", "value"))
    if not await visit.services.facts.taken_back_by(owner, topic, sub_topic, value):
        return await facts(visit, fault="nothing of the kind is known; below is what is")
    try:
        found = await visit.services.facts.say(_operator(owner, fields), topic, value, sub_topic, retires=True)
    except (ValueError, StoreRejectedError) as error:
        return await facts(visit, fault=str(error))
    visit.changed("fact_retired", sha256=hashed(owner), facts=len(found))
    return visit.seen("facts", owner=owner, session=visit.asked("session") or None)


def _moment(text: str, where: str) -> datetime | None:
    if text and parse_moment(text) is None:
        raise ValueError(f"{where}: a time in ISO 8601 is needed")
    return parse_moment(text)


def _operator(owner: str, fields: Mapping[str, str]) -> Origin:
    return Origin(owner, fields.get("key") or new_message_id(), utc_now(), source="operator")


async def constraints(visit: Visit, typed: Mapping[str, str] = _CONSTRAINT, fault: str = "") -> Response:
    """An owner's constraints by what they hold for; with `history` also those that were taken back; else as `facts`."""
    history, after = bool(visit.asked("history")), visit.asked("after")
    known, behind = await visit.services.constraints.known_of_owner(visit.owner, limit=_PLACES_AT_ONCE, after=after)
    found = [each for each in known if history or each.holds]
    places = groupby(found, key=lambda each: place_of(each.scope, each.session_id, each.run_id))
    return visit.page(
        "constraints.html",
        status=400 if fault else 200,
        owner=visit.owner,
        session=visit.asked("session"),
        places=[[*of_place] for _, of_place in places],
        next=behind,
        after=after,
        history=history,
        typed=typed,
        form_session=visit.session,
        fault=fault,
        kinds=KINDS,
        scopes=CONSTRAINT_SCOPES,
        most=MAX_CONSTRAINT_CHARS,
    )


async def add_constraint(visit: Visit) -> Response:
    """Set a constraint, as an operator. One that is in force stays as it is."""
    owner, session = owner_and_session(visit)
    fields = visit.fields
    typed = {name: fields.get(name, default) for name, default in _CONSTRAINT.items()}
    given = {name: typed[name] for name in ("text", "kind", "scope")}
    if len(typed["run"]) > MAX_ID_CHARS or (given["scope"] == "run" and not typed["run"]):
        fault = f"run: a text of 1 to {MAX_ID_CHARS} characters is needed for a constraint of one run"
        return await constraints(visit, typed, fault)
    try:
        made, _ = await visit.services.constraints.pin(owner, session, typed["run"], given)
    except (ValueError, StoreRejectedError) as error:
        return await constraints(visit, typed, str(error))
    visit.changed("constraint_added", sha256=hashed(owner), name=made.id)
    return visit.seen("constraints", owner=owner, session=visit.asked("session") or None)


async def retire_constraint(visit: Visit) -> Response:
    """Take a constraint back, as an operator."""
    owner, session = owner_and_session(visit)
    fields = visit.fields
    try:
        name = read_id(fields.get("id"), "id")
        target = Target(owner, fields.get("of_session") or session, fields.get("run", ""))
        await visit.services.constraints.retire(target, [name])
    except (ValueError, StoreRejectedError) as error:
        return await constraints(visit, fault=str(error).partition(";")[0])
    visit.changed("constraint_retired", sha256=hashed(owner), name=name)
    return visit.seen("constraints", owner=owner, session=visit.asked("session") or None)


PAGES: Final[Mapping[str, Page]] = {"facts": facts, "constraints": constraints}
FORMS: Final[Mapping[str, Page]] = {
    "facts-add": add_fact,
    "facts-retire": retire_fact,
    "constraints-add": add_constraint,
    "constraints-retire": retire_constraint,
}
