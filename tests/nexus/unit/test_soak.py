"""The judge of a soak finds what it is there to find: each fault planted into what was whole, and nothing else."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.nexus.e2e.harness import REQUEST, Document
from tests.nexus.soak.judge import Faults, Heard, Stored, account, judge_answer, stays
from tests.nexus.soak.plan import SCRIPTS_A_BLOCK, Script, block_of, request_id, script_of

_SEED = 7


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[Heard]:
    """A file of answers."""
    found = Heard(tmp_path / "heard")
    yield found
    found.close()


def _scripts() -> list[Script]:
    return block_of(_SEED, 0, SCRIPTS_A_BLOCK)


def _stored(scripts: list[Script]) -> Stored:
    """What a service without a fault has stored of these scripts."""
    stored = Stored()
    for script in scripts:
        session = {"owner_key": script.owner, "session_id": script.session}
        for name, (role, run, content) in script.rows.items():
            row = {"_id": f"_{name}", "id": name, "role": role, "run_id": run, "content": content, "metadata": {}}
            stored.rows.append(row | session)
        for call, run in script.calls.items():
            row = {"_id": f"_{call}", "id": f"answer to {call}", "role": "TOOL", "run_id": run, "content": "Done."}
            stored.rows.append(row | session | {"metadata": {"call_id": call}})
        for number, run in enumerate(script.runs):
            own = [row["id"] for row in stored.rows if row["run_id"] == run]
            turn = {"run_id": run, "turn_number": number + 1, "status": "completed", "messages": own}
            stored.turns.append(turn | session)
        first = next(f"_{name}" for name in script.rows)
        stored.compactions.append(session | {"number": 1, "rows": [first]})
        stored.facts += [session | {"value": mark} for mark in script.facts]
        stored.constraints += [session | {"document": {"text": f"{mark} always"}} for mark in script.constraints]
        stored.states.append(session | {"document": [f"{mark} to do" for mark in script.states]})
    return stored


def _answer_all(scripts: list[Script], heard: Heard) -> None:
    for script in scripts:
        for step in script.asked:
            heard.answer(request_id(script.number, step, 0), b"context", retryable=False)


def test_what_is_whole_has_no_faults(heard: Heard) -> None:
    """A block of sessions, all of which is stored once."""
    scripts, faults = _scripts(), Faults()
    _answer_all(scripts, heard)
    counts = account(scripts, _stored(scripts), heard, (), faults)
    assert not faults.counts
    assert counts["sessions"] == SCRIPTS_A_BLOCK
    assert counts["requests"] == sum(len(script.asked) for script in scripts)
    assert all(counts[what] for what in ("rows", "turns", "compactions", "facts", "constraints", "states"))


def _twice(stored: Stored) -> None:
    stored.rows.append(stored.rows[5] | {"_id": "another"})


def _changed(stored: Stored) -> None:
    stored.rows[5]["content"] += "!"


def _of_another_run(stored: Stored) -> None:
    stored.rows[5]["run_id"] = "run-of-another"


def _strange(stored: Stored) -> None:
    stored.rows.append(stored.rows[5] | {"id": f"{stored.rows[5]['id']}@run"})


def _of_a_strange_session(stored: Stored) -> None:
    stored.rows.append(stored.rows[5] | {"session_id": "default"})


def _without_a_turn(stored: Stored) -> None:
    del stored.turns[3]


def _turn_without_a_run(stored: Stored) -> None:
    stored.turns.append(stored.turns[3] | {"run_id": "run of nobody", "turn_number": 9})


def _turn_without_a_message(stored: Stored) -> None:
    stored.turns[3]["messages"].pop()


def _open_turn(stored: Stored) -> None:
    stored.turns[3]["status"] = "acting"


def _gap(stored: Stored) -> None:
    stored.turns[3]["turn_number"] += 20


def _under_two_summaries(stored: Stored) -> None:
    stored.compactions.append(stored.compactions[3] | {"number": 2})


def _summary_of_nothing(stored: Stored) -> None:
    stored.compactions[3]["rows"].append("nothing")


def _without_a_fact(stored: Stored) -> None:
    stored.facts.pop()


def _fact_twice(stored: Stored) -> None:
    stored.facts.append(stored.facts[0])


def _without_a_constraint(stored: Stored) -> None:
    stored.constraints.pop()


def _without_states(stored: Stored) -> None:
    stored.states.clear()


def _lost_row(stored: Stored) -> None:
    del stored.rows[5]


def _result_of_a_call_twice(stored: Stored) -> None:
    answered = next(row for row in stored.rows if row["id"].startswith("answer to"))
    stored.rows.append(answered | {"id": "another answer"})


@pytest.mark.parametrize(
    "plant",
    [
        _lost_row,
        _twice,
        _changed,
        _of_another_run,
        _strange,
        _of_a_strange_session,
        _result_of_a_call_twice,
        _without_a_turn,
        _turn_without_a_run,
        _turn_without_a_message,
        _open_turn,
        _gap,
        _under_two_summaries,
        _summary_of_nothing,
        _without_a_fact,
        _fact_twice,
        _without_a_constraint,
        _without_states,
    ],
)
def test_what_is_not_accounted_for(plant: Callable[[Stored], None], heard: Heard) -> None:
    """One thing that is missing, twice, changed or nobody's is found."""
    scripts, faults = _scripts(), Faults()
    _answer_all(scripts, heard)
    stored = _stored(scripts)
    plant(stored)
    account(scripts, stored, heard, (), faults)
    assert {*faults.counts} == {"unaccounted"}
    assert faults.examples


def test_a_message_that_a_dead_letter_names_is_accounted_for(heard: Heard) -> None:
    """It needs no row."""
    scripts, faults = _scripts(), Faults()
    _answer_all(scripts, heard)
    stored = _stored(scripts)
    gone = stored.rows.pop(5)
    for turn in stored.turns:
        turn["messages"] = [name for name in turn["messages"] if name != gone["id"]]
    account(scripts, stored, heard, {gone["id"]}, faults)
    assert not faults.counts


def test_a_request_without_an_answer_is_lost(heard: Heard) -> None:
    """Also one of which an attempt was answered with an error that may be retried."""
    scripts, faults = _scripts(), Faults()
    _answer_all(scripts[2:], heard)
    heard.answer(request_id(0, scripts[0].asked[0], 0), b"later", retryable=True)
    stored = _stored(scripts)
    counts = account(scripts, stored, heard, (), faults)
    missing = len(scripts[0].asked) + len(scripts[1].asked)
    assert faults.counts["lost"] == missing
    assert counts["retried"] == 1
    assert len(faults.examples) <= 10


def test_two_answers_that_differ(tmp_path: Path) -> None:
    """The same bytes again are one answer, other bytes a second one, also after the soak was started again."""
    name = request_id(3, 5, 0)
    first = Heard(tmp_path / "heard")
    assert first.answer(name, b"one", retryable=False)
    first.close()
    again = Heard(tmp_path / "heard")
    assert again.answer(name, b"one", retryable=False)
    assert not again.answer(name, b"two", retryable=False)
    assert again.answer(request_id(3, 5, 1), b"two", retryable=False)
    assert again.is_answered(3, 5)
    assert not again.is_answered(3, 4)
    again.close()


def _asked() -> tuple[Document, str]:
    step = next(step for step in script_of(_SEED, 0).steps if step.topic == REQUEST)
    return step.message, step.mark


def _judged(answer: Document) -> Counter[str]:
    asked, mark = _asked()
    faults = Faults()
    whole = {"run_id": asked["run_id"], "owner_key": asked["owner_key"], "content": mark, **answer}
    judge_answer(json.dumps(whole).encode(), whole, asked, mark, faults)
    return faults.counts


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({}, None),
        ({"run_id": "run of another"}, "wrong"),
        ({"owner_key": "another"}, "wrong"),
        ({"content": "an answer to something else"}, "wrong"),
    ],
)
def test_answers_are_to_what_was_asked(change: dict[str, Any], kind: str | None) -> None:
    """One shows its input, and names run and owner."""
    assert {*_judged(change)} == ({kind} if kind else set())


def test_an_answer_with_a_mark_of_another_owner() -> None:
    """A single one, anywhere in the answer."""
    _, mark = _asked()
    stranger = script_of(_SEED, SCRIPTS_A_BLOCK)
    foreign = next(step.mark for step in stranger.steps if step.mark)
    assert {*_judged({"content": f"{mark} {foreign}"})} == {"foreign"}


def test_keys_that_stay_for_ever() -> None:
    """Streams of topics, the dead letters and the size of the outbox; nothing else, and no other part of the outbox."""
    assert all(map(stays, ["context.build.request", "tools.results", "nexus:dead-letters", "nexus:{outbox}:size"]))
    others = ["nexus:request:x", "nexus:kept:x", "nexus:{outbox}:order", "context.build.response.x", ""]
    assert not any(map(stays, others))


def test_the_same_seed_gives_the_same_bytes() -> None:
    """So that a soak that goes on sends what it sent before, and another seed something else."""
    assert script_of(1, 11) == script_of(1, 11)
    assert script_of(1, 11) != script_of(2, 11)
    owners = [{script.owner for script in block_of(_SEED, block, 2 * SCRIPTS_A_BLOCK)} for block in range(2)]
    assert not owners[0] & owners[1]
