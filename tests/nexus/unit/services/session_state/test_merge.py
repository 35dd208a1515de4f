"""Changes of a session's state and what they come to: the same in any order and however often (docs/decisions/0012)."""

import copy
import json
import random
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.core.models import Message
from nexus.services.history.rows import read_session_id
from nexus.services.session_state.merge import Change, Document, apply, read_change, state_in
from nexus.services.session_state.state import SessionState, Todo, TodoStatus, read_state

pytestmark = pytest.mark.heavy

NOON = datetime(2025, 12, 10, 12, tzinfo=UTC)

Said = tuple[int, str, dict[str, Any]]


def change(content: Any, second: int = 0, message_id: str = "m") -> Change:
    """The change that was said so many seconds after noon."""
    return read_change(content, NOON + timedelta(seconds=second), message_id)


def applied(*said: Said, document: Mapping[str, Any] | None = None) -> Document:
    """The document after these, in the order in which they are given."""
    joined = dict(document or {})
    for second, message_id, content in said:
        joined = apply(joined, change(content, second, message_id))
    return joined


def after(*contents: dict[str, Any]) -> SessionState:
    """The state after these were sent one after the other and received in the opposite order as well."""
    said: list[Said] = [(second, f"m{second}", content) for second, content in enumerate(contents)]
    document = applied(*said)
    assert applied(*reversed(said)) == document
    state, faults = state_in(document)
    assert faults == []
    return state


def todos(*ids: str, status: str | None = None) -> list[dict[str, Any]]:
    """Todos with these ids."""
    return [{"id": each, "text": f"text of {each}"} | ({"status": status} if status else {}) for each in ids]


def listed(state: SessionState) -> list[str]:
    """The ids of the todos."""
    return [todo.id for todo in state.todos or ()]


def test_set_replaces_the_parts_that_it_gives() -> None:
    """The others stay as they are; null parts are not given."""
    state = after(
        {"op": "set", "state": {"role": "r", "todos": todos("a", "b"), "useful_info": ["i"]}},
        {"op": "set", "state": {"todos": todos("c"), "useful_info": None}},
    )
    assert (state.role, listed(state), [info.text for info in state.useful_info or ()]) == ("r", ["c"], ["i"])


def test_patch_changes_some_fields() -> None:
    """What is not given stays, and so does the item's place."""
    state = after(
        {"op": "set", "state": {"todos": todos("a", "b")}},
        {"op": "patch", "state": {"todos": [{"id": "a", "status": "completed"}]}},
        {"op": "patch", "state": {"todos": [{"id": "b", "content": "new"}, *todos("c")]}},
    )
    assert state.todos == (
        Todo("a", "text of a", TodoStatus.COMPLETED),
        Todo("b", "new"),
        Todo("c", "text of c"),
    )


def test_a_patch_removes() -> None:
    """Items by their ids, roles of sub-agents also by null; what is said anew is new, and stands at the end."""
    first = {
        "op": "set",
        "state": {"todos": todos("a", "b"), "sub_agent_roles": {"x y": "1", "z": "2", "w": "3"}, "useful_info": ["i"]},
    }
    second = {
        "op": "patch",
        "state": {"sub_agent_roles": {"x y": None}, "useful_info": None},
        "remove": {"todos": ["a", "unknown"], "sub_agent_roles": ["w"]},
    }
    state = after(first, second)
    assert (listed(state), state.sub_agent_roles, state.useful_info) == (["b"], {"z": "2"}, None)
    assert listed(after(first, second, {"op": "patch", "state": {"todos": todos("a")}})) == ["b", "a"]


@pytest.mark.parametrize("content", [{"op": "clear"}, {"op": "clear", "parts": ["todos", "role", "useful_info"]}])
def test_clear(content: dict[str, Any]) -> None:
    """Some parts or all are as if they had never been given."""
    given = {"op": "set", "state": {"role": "r", "todos": todos("a"), "useful_info": []}}
    assert after(given, content) == SessionState()
    assert listed(after(given, content, given)) == ["a"]


REFUSED: list[tuple[Any, str]] = [
    (None, "content: a JSON object is needed, with op: set, patch, clear"),
    ({"op": "merge"}, "content.op: 'merge' is unknown; allowed: set, patch, clear"),
    ({"op": "set"}, "content.state: a JSON object is needed"),
    ({"op": "set", "state": {}, "remove": {}}, "content: 'remove' is unknown; allowed: op, state"),
    ({"op": "patch"}, "content: a patch needs state or remove"),
    ({"op": "patch", "state": {"todos": [{"text": "a"}]}}, "content.state.todos[0].id: is needed"),
    ({"op": "patch", "state": {"useful_info": [{}]}}, "content.state.useful_info[0].text: is needed"),
    ({"op": "patch", "remove": {"role": []}}, "content.remove: 'role' is unknown; allowed: todos, useful_info"),
    ({"op": "patch", "remove": {"todos": ["a", ""]}}, "content.remove.todos[1]: 1 to 128 letters"),
    ({"op": "patch", "remove": {"todos": ["a"] * 501}}, "content.remove.todos: a list of at most 500 ids is needed"),
    ({"op": "clear", "parts": []}, "content.parts: a list of parts is needed"),
    ({"op": "clear", "parts": ["todos", "x"]}, "content.parts[1]: 'x' is unknown; allowed: role, sub_agent_roles"),
]


@pytest.mark.parametrize(("content", "reason"), REFUSED, ids=[reason[:50] for _, reason in REFUSED])
def test_refused(content: Any, reason: str) -> None:
    """What is no change is said with its place and what is allowed."""
    with pytest.raises(ValueError, match=r"\A.*\Z") as caught:
        change(content)
    assert str(caught.value).startswith(reason)


def test_too_many_todos() -> None:
    """The 501st is refused; what is there stays."""
    document = applied((0, "m", {"op": "set", "state": {"todos": todos(*map(str, range(500)))}}))
    with pytest.raises(ValueError, match=r"would have 501 todos, at most 500 are allowed"):
        apply(document, change({"op": "patch", "state": {"todos": todos("x")}}, 1))
    assert apply(document, change({"op": "patch", "remove": {"todos": ["0"]}}, 1)) != document


def test_too_large() -> None:
    """A state of more than 1 MiB is refused; it can still be cleared."""
    infos = [{"id": number, "text": "x" * 8_000} for number in range(130)]
    document = applied((0, "m", {"op": "set", "state": {"useful_info": infos[:128]}}))
    with pytest.raises(ValueError, match=r"would have \d+ bytes, at most 1048576 are allowed"):
        apply(document, change({"op": "patch", "state": {"useful_info": infos[128:]}}, 1))
    assert state_in(apply(document, change({"op": "clear"}, 999)))[0] == SessionState()


def test_what_grows_makes_room() -> None:
    """The newest information, notes of each folder and roles of sub-agents are kept."""
    said: list[Said] = [
        (0, "a", {"op": "patch", "state": {"useful_info": [f"old {n}" for n in range(600)]}}),
        (1, "b", {"op": "patch", "state": {"useful_info": [f"new {n}" for n in range(600)]}}),
        *(
            (n, f"c{n}", {"op": "patch", "state": {"folder_notes": [{"folder": "a", "text": str(n)}]}})
            for n in range(60)
        ),
        (0, "d", {"op": "patch", "state": {"folder_notes": [{"folder": "b", "text": "only"}]}}),
        *((n, f"e{n}", {"op": "patch", "state": {"sub_agent_roles": {f"agent {n}": "r"}}}) for n in range(60)),
    ]
    document = applied(*said)
    assert applied(*reversed(said)) == document
    state, _ = state_in(document)
    assert [info.text for info in state.useful_info or ()] == [
        *(f"old {n}" for n in range(200, 600)),
        *(f"new {n}" for n in range(600)),
    ]
    assert [note.text for note in state.folder_notes or ()] == ["only", *map(str, range(10, 60))]
    assert [*state.sub_agent_roles] == [f"agent {n}" for n in range(10, 60)]


def test_the_example_of_the_contract() -> None:
    """The messages that stand in docs/contract.md lead to the state that stands there, in either order."""
    text = (Path(__file__).parents[5] / "docs" / "contract.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```json [a-z.-]+\n(.*?)\n```", text.partition("\n## Session state\n")[2], re.DOTALL)[:3]
    *messages, state = map(json.loads, blocks)
    for sent in (messages, messages[::-1], messages * 2):
        read = [Message.model_validate(message) for message in sent]
        assert {read_session_id(message.metadata) for message in read} == {"s1"}
        changes = [read_change(message.content, message.timestamp, message.id) for message in read]
        assert state_in(apply(None, *changes)) == (read_state(state, "state"), [])


IDS = st.sampled_from(["a", "b", "c.d", "..", ":"])
ITEM = st.fixed_dictionaries(
    {"id": IDS}, optional={"text": st.sampled_from("xyz"), "status": st.sampled_from([*TodoStatus])}
)
WHOLE = st.fixed_dictionaries({"id": IDS, "text": st.sampled_from("xyz")}, optional={"status": st.just("completed")})
NOTE = st.fixed_dictionaries({"id": IDS, "text": st.sampled_from("xyz"), "folder": st.sampled_from(["s", "$t.u"])})
ROLES = st.dictionaries(st.sampled_from(["a b", "$x", "a.b"]), st.sampled_from("xyz"), max_size=3)


def unique(items: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Lists of items with different ids."""
    return st.lists(items, max_size=3, unique_by=lambda item: item["id"])


SET = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from("xyz"),
        "todos": unique(WHOLE),
        "folder_notes": unique(NOTE),
        "sub_agent_roles": ROLES,
    },
)
PATCH = st.fixed_dictionaries(
    {},
    optional={
        "role": st.none() | st.sampled_from("xyz"),
        "todos": st.none() | unique(ITEM),
        "folder_notes": st.none() | unique(NOTE),
        "sub_agent_roles": st.dictionaries(st.sampled_from(["a b", "$x"]), st.none() | st.sampled_from("xyz")),
    },
)
REMOVE = st.fixed_dictionaries(
    {},
    optional={
        "todos": st.lists(IDS, max_size=3),
        "sub_agent_roles": st.lists(st.sampled_from(["a b", "$x"]), max_size=3),
    },
)
CONTENT = st.one_of(
    st.builds(lambda state: {"op": "set", "state": state}, SET),
    st.builds(lambda state, remove: {"op": "patch", "state": state, "remove": remove}, PATCH, REMOVE),
    st.just({"op": "clear"}),
    st.builds(lambda parts: {"op": "clear", "parts": parts}, st.just(["todos"]) | st.just(["role", "folder_notes"])),
)
# Few moments and ids, so that some are the same.
SAID = st.lists(st.tuples(st.integers(0, 4), st.sampled_from("mno"), CONTENT), max_size=12)


@given(said=SAID, seed=st.integers(0, 1_000))
def test_any_order_and_however_often(said: list[Said], seed: int) -> None:
    """The same messages lead to the same document, even where several pass for the same one; nothing given is changed.

    What comes of them can be kept as JSON and as BSON, and is then still the same.
    """
    rng = random.Random(seed)  # noqa: S311  # no secrets here
    before = copy.deepcopy(said)
    document = applied(*said)
    unchanged = copy.deepcopy(document)
    shuffled = [*said, *rng.sample(said, rng.randrange(len(said) + 1))]
    rng.shuffle(shuffled)
    assert applied(*shuffled) == document
    assert applied(*said, document=document) == document
    assert apply(None, *(change(content, second, message_id) for second, message_id, content in said)) == document
    assert (said, document) == (before, unchanged)
    kept = bson.decode(bson.encode(json.loads(json.dumps(document))))
    assert kept == document
    assert state_in(kept) == state_in(document)
    assert state_in(document)[1] == []


SPOILED = st.recursive(
    st.none() | st.integers() | st.text(max_size=3) | st.binary(max_size=2) | st.datetimes(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "said", "fields", "text", "status", "items", "floor"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(spoiled=SPOILED, part=st.sampled_from(["role", "todos", "useful_info", "folder_notes", "sub_agent_roles"]))
def test_what_somebody_else_has_written(spoiled: Any, part: str) -> None:
    """Whatever stands in a document, what can be read is shown, and a change makes it whole again."""
    document = applied((0, "m", {"op": "set", "state": {"role": "r", "todos": todos("a")}}))
    for broken in (spoiled, {**document, part: spoiled}, {**document, part: {"items": [spoiled]}}):
        state_in(broken)
        mended = apply(broken, change({"op": "patch", "state": {"todos": todos("b")}}, 1))
        state, faults = state_in(mended)
        assert faults == []
        assert "b" in listed(state)
    todo = document["todos"]["items"][0]
    state, faults = state_in({"todos": {"items": [{**todo, "fields": spoiled}, todo, {**todo, "id": "b"}]}})
    assert "b" in listed(state)
