"""The state of a session as it is given: lenient in form, strict in meaning (contract §5)."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.services.session_state.state import FolderNote, Info, SessionState, Todo, TodoStatus, read_state

WHERE = "run.metadata.state"
ALLOWED = "role, sub_agent_roles, todos, useful_info, folder_notes"
NOON = datetime(2025, 12, 10, 12, tzinfo=UTC)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
KEYS = st.sampled_from(["id", "text", "content", "status", "folder", "path", "created_at", "createdAt"])
ITEMS = st.lists(JSON | st.dictionaries(KEYS, JSON | st.sampled_from(["a", "done", "2024-01-01"])), max_size=3)
NEARLY = st.dictionaries(st.sampled_from(ALLOWED.split(", ")), ITEMS | JSON)


def test_a_whole_state() -> None:
    """Every part is read, each item under the names that the systems in use give its fields."""
    state = read_state(
        {
            "role": "You review.",
            "sub_agent_roles": {"code reviewer": "You look closely.", "nobody": None},
            "todos": [{"id": 1, "text": "a"}, {"id": "t.2", "content": "b", "status": "completed", "parentId": None}],
            "useful_info": [{"id": "i", "content": "c", "createdAt": "2025-12-10T13:00:00+01:00"}],
            "folder_notes": [{"id": 2.0, "path": "src", "text": "d", "created_at": "2025-12-10T12:00:00Z"}],
        },
        WHERE,
    )
    assert state == SessionState(
        role="You review.",
        sub_agent_roles={"code reviewer": "You look closely."},
        todos=(Todo("1", "a"), Todo("t.2", "b", TodoStatus.COMPLETED)),
        useful_info=(Info("i", "c", NOON),),
        folder_notes=(FolderNote("2", "src", "d", NOON),),
    )


@pytest.mark.parametrize("value", [{}, dict.fromkeys(ALLOWED.split(", "))])
def test_nothing_given(value: Any) -> None:
    """A part that is missing or null is not given."""
    assert read_state(value, WHERE) == SessionState()


def test_plain_texts() -> None:
    """Information and notes may be mere texts; each gets an id that is the same each time, and the same text is one."""
    value = {"useful_info": ["a", "b", "a"], "folder_notes": ["a"]}
    state = read_state(value, WHERE)
    assert state.useful_info is not None
    assert state.folder_notes is not None
    assert [info.text for info in state.useful_info] == ["a", "b"]
    assert [(note.folder, note.text) for note in state.folder_notes] == [(".", "a")]
    assert len({*(info.id for info in state.useful_info), *(note.id for note in state.folder_notes)}) == 3
    assert read_state(value, WHERE) == state


@pytest.mark.parametrize("spelling", ["in_progress", "inProgress", "in-progress", "IN_PROGRESS", "In progress"])
def test_spellings_of_a_status(spelling: str) -> None:
    """What can mean one status only is that one."""
    state = read_state({"todos": [{"id": "a", "text": "b", "status": spelling}]}, WHERE)
    assert state.todos == (Todo("a", "b", TodoStatus.IN_PROGRESS),)


def todo(**changed: Any) -> dict[str, Any]:
    """A state with two todos, of which the second differs from a good one in this."""
    return {"todos": [{"id": "a", "text": "b"}, {"id": "c", "text": "d"} | changed]}


ID_ALLOWED = "1 to 128 letters, digits, '.', '_', ':' or '-', or a whole number, are allowed"
REFUSED: list[tuple[Any, str]] = [
    (None, f": a JSON object is needed, with any of {ALLOWED}"),
    ([], f": a JSON object is needed, with any of {ALLOWED}"),
    ({"todo": []}, f": 'todo' is unknown; allowed: {ALLOWED}"),
    ({"a secret, perhaps": []}, f": a text of 17 characters is unknown; allowed: {ALLOWED}"),
    ({"role": ""}, ".role: is blank; a text of 1 to 32000 characters is needed"),
    ({"role": " \u200b"}, ".role: is blank; a text of 1 to 32000 characters is needed"),
    ({"role": ["a"]}, ".role: a text of 1 to 32000 characters is needed"),
    ({"role": "a" * 32_001}, ".role: 32001 characters, at most 32000 are allowed"),
    ({"todos": {}}, ".todos: a list is needed"),
    ({"todos": ["a"]}, ".todos[0]: a JSON object is needed"),
    ({"todos": [{"text": "a"}]}, ".todos[0].id: is needed"),
    ({"todos": [todo()] * 501}, ".todos: 501 items, at most 500 are allowed"),
    (todo(status="done"), ".todos[1].status: 'done' is unknown; allowed: pending, in_progress, completed"),
    (todo(status=1), ".todos[1].status: a JSON int is unknown; allowed: pending, in_progress, completed"),
    (todo(text=None), ".todos[1].text: is needed"),
    (todo(text="\n "), ".todos[1].text: is blank; a text of 1 to 2000 characters is needed"),
    (todo(text="a" * 2_001), ".todos[1].text: 2001 characters, at most 2000 are allowed"),
    (todo(id="a"), f".todos[1].id: is that of {WHERE}.todos[0] too; every item needs its own"),
    *(
        (todo(id=bad), f".todos[1].id: {ID_ALLOWED}")
        for bad in ("", "a b", "$a/b", "a" * 100_000, True, 1.5, 10**128, float("inf"), {"$ne": ""}, "a\x00", "\ud800")
    ),
    ({"useful_info": [5]}, ".useful_info[0]: a text or a JSON object is needed"),
    ({"useful_info": [""]}, ".useful_info[0].text: is blank; a text of 1 to 8000 characters is needed"),
    ({"useful_info": [{"id": "a"}]}, ".useful_info[0].text: is needed"),
    ({"useful_info": [{"text": "a", "createdAt": "noon"}]}, ".useful_info[0].createdAt: a time in ISO 8601 is needed"),
    ({"useful_info": ["a"] * 1_001}, ".useful_info: 1001 items, at most 1000 are allowed"),
    ({"folder_notes": [{"folder": "a"}]}, ".folder_notes[0].text: is needed"),
    ({"folder_notes": [{"text": "a", "path": "a" * 1_025}]}, ".folder_notes[0].path: 1025 characters, at most 1024"),
    (
        {"sub_agent_roles": []},
        ".sub_agent_roles: a JSON object is needed, with the role of each sub-agent under its id",
    ),
    ({"sub_agent_roles": {"a": ""}}, ".sub_agent_roles.a: is blank; a text of 1 to 32000 characters is needed"),
    ({"sub_agent_roles": {str(n): "a" for n in range(51)}}, ".sub_agent_roles: 51 sub-agents, at most 50 are allowed"),
]


@pytest.mark.parametrize(("value", "reason"), REFUSED, ids=lambda value: value[:60] if isinstance(value, str) else "")
def test_refused(value: Any, reason: str) -> None:
    """What is wrong is said with its place and what is allowed."""
    with pytest.raises(ValueError, match=r"\A.*\Z") as caught:
        read_state(value, WHERE)
    assert str(caught.value).startswith(WHERE + reason)


def outcome_of(value: Any) -> SessionState | str:
    """The state, or why it is none."""
    try:
        return read_state(value, WHERE)
    except ValueError as error:
        return str(error)


@given(value=JSON | NEARLY)
def test_any_json(value: Any) -> None:
    """Whatever is given, it is a state or a ValueError of a few words, and the same each time."""
    outcome = outcome_of(value)
    assert outcome_of(value) == outcome
    if isinstance(outcome, str):
        assert outcome.startswith(WHERE)
        assert len(outcome) < 300
