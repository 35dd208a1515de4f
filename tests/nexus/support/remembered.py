"""An owner of whom everything is remembered that the console shows, with a text of a test's own in every place."""

from datetime import timedelta
from typing import Any

from nexus.core.models import Row, new_row_id
from nexus.core.ports import Store
from nexus.core.working_memory import Compaction, Detail, Overview
from nexus.services.person.constraint_changes import Target, read_change
from nexus.services.person.constraints import merge
from nexus.services.person.facts import Facts
from nexus.services.person.statements import Origin
from nexus.services.session_state.merge import apply
from nexus.services.session_state.merge import read_change as state_change
from tests.nexus.support.kept_turns import a_turn
from tests.nexus.support.stored_session import NOW
from tests.nexus.support.tombstones import NO_TOMBSTONES


async def remember(store: Store, owner: str, session: str, text: str = "statins", *, first: int = 0) -> list[Row]:
    """Fill the store; returns the recorded messages, from m0 or `first` on, of which ten are under a compaction."""
    key: Row = {"owner_key": owner, "session_id": session}
    rows = [
        {
            **key,
            "_id": new_row_id(),
            "id": f"m{number}",
            "run_id": f"r{number // 4}",
            "role": ("HUMAN", "AI")[number % 2],
            "content": f"{text}: message {number}",
            "timestamp": NOW + timedelta(seconds=number),
            "metadata": {},
        }
        for number in range(first, first + 20)
    ]
    for row in rows:
        await store.insert_message(row)
    memory = store.memory
    for revision in range(1, 4):
        overview = Overview(revision=revision, content=f"# Goal\n\n{text} {revision}", updated_at=NOW, turn_number=1)
        await memory.insert_overview({**key, **overview.model_dump()})
    details = [
        Detail(name=name, version=version, bytes=9, updated_at=NOW, content=f"{text}: {name} {version}")
        for name in ("flights", "航班")
        for version in (1, 2)
    ]
    details.append(Detail(name="c1", version=1, kind="archive", bytes=9, updated_at=NOW, content=text, compaction=1))
    await memory.insert_details([{**key, **each.model_dump()} for each in details])
    made = Compaction(
        number=1,
        created_at=NOW,
        summary=f"- Asked for {text}.",
        rows=tuple(row["_id"] for row in rows[:10]),
        count=10,
        total=10,
        since="00000000",
        details=("c1",),
        tokens_before=1_000,
        tokens_after=100,
    )
    await memory.insert_compaction({**key, **made.model_dump(), "rows": [*made.rows], "work": None, "due_at": None})
    state = apply(None, state_change({"op": "set", "state": {"role": f"A tester: {text[:30_000]}"}}, NOW, "s"))
    await store.put_session_state(owner, session, state, 0)
    summaries: dict[str, Any] = {
        "brief": f"Brief: {text}",
        "detailed": f"Detailed: {text}",
        "structured": {"overview": f"Overview: {text}", "actions": [f"Action: {text}"]},
        "source": "model",
    }
    turns = [
        a_turn(number, **key, summaries=summaries, insights=[f"Insight: {text}"], task_context=f"Goal: {text}")
        for number in range(1, 4)
    ]
    await store.turns.insert_turns(turns)
    facts, value = Facts(store.facts, NO_TOMBSTONES), text[:400]
    await facts.say(Origin(owner, "a", NOW, session), "home", "Lisbon", "city", evidence=["m0"])
    await facts.say(Origin(owner, "b", NOW, session), "home", f"Porto {value}", "city", evidence=["m2"])
    await facts.say(Origin(owner, "c", NOW, session), "tea", value)
    given = [text[:1_900], {"text": f"No prices. {text[:1_900]}", "kind": "must_not", "scope": "owner"}]
    target = Target(owner, session, "r0")
    await merge(store.constraints, owner, read_change({"op": "add", "constraints": given}, target, NOW, "m4"))
    return rows
