"""The states of sessions that are said on the bus: kept, and read back with all that was said before (contract §5)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from nexus.core.errors import StoreUnavailableError
from nexus.core.metrics import Event
from nexus.core.models import Message, Role
from nexus.core.ports import Row
from nexus.services.session_state.service import SessionStates
from nexus.services.session_state.state import SessionState
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.metrics import RecordingMetrics
from tests.nexus.support.tombstones import NO_TOMBSTONES

NOON = datetime(2025, 12, 10, 12, tzinfo=UTC)


def said(content: Any, second: int = 0, *, owner: str = "ada", message_id: str = "", **metadata: Any) -> Message:
    """A message about a session."""
    return Message(
        id=message_id or f"msg_{second}",
        run_id="run_1",
        owner_key=owner,
        role=Role.COMMAND,
        content=content,
        timestamp=NOON + timedelta(seconds=second),
        metadata=metadata,
    )


def role(text: str) -> dict[str, Any]:
    """A role, set."""
    return {"op": "set", "state": {"role": text}}


def todo(number: int) -> dict[str, Any]:
    """One more todo."""
    return {"op": "patch", "state": {"todos": [{"id": number, "text": f"todo {number}"}]}}


def offer(states: SessionStates, *messages: Message) -> None:
    """Offer these, which are all taken."""
    for message in messages:
        assert states.offer(message, 100)


class GatedStore(FakeStore):
    """A store whose puts wait until they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = anyio.Event()

    async def put_session_state(self, owner_key: str, session_id: str, document: Any, revision: int) -> bool:
        """Keep it, when the gate is open."""
        await self.gate.wait()
        return await super().put_session_state(owner_key, session_id, document, revision)


class FailingOnce(FakeStore):
    """A store whose next puts fail with these errors, and which somebody else is faster at for these times."""

    def __init__(self, *errors: Exception | None) -> None:
        super().__init__()
        self.errors = [*errors]

    async def put_session_state(self, owner_key: str, session_id: str, document: Any, revision: int) -> bool:
        """Keep it, or fail."""
        if self.errors:
            error = self.errors.pop(0)
            if error is None:
                return False
            raise error
        return await super().put_session_state(owner_key, session_id, document, revision)


async def test_kept_and_read() -> None:
    """What is said is read, by session; without a session it is the default one."""
    store = FakeStore()
    states = SessionStates(store, NO_TOMBSTONES)
    async with states.running():
        offer(states, said(role("a")), said(role("b"), session_id="s"), said(role("c"), owner="bob", session_id="s"))
        assert (await states.get("ada", "default")).role == "a"
        assert (await states.get("ada", "s")).role == "b"
        assert (await states.get("bob", "s")).role == "c"
        assert await states.get("bob", "default") == SessionState()
    assert states.pending.count == 0


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (said("x"), "content: a JSON object is needed"),
        (said({"op": "set", "state": {"todo": []}}), "content.state: 'todo' is unknown"),
        (said(role("a"), session_id=5), "metadata.session_id: a text of 1 to 256 characters is needed"),
        (said(role("a"), session_id=""), "metadata.session_id: a text of 1 to 256 characters is needed"),
        (said(role("a"), session_id={"$ne": ""}), "metadata.session_id: a text of 1 to 256 characters is needed"),
        (said(role("a"), session_id="s\ufffd"), "metadata.session_id: NUL, U+FFFD and half a surrogate pair are not"),
        (said(role("a"), session_id="s" * 257), "metadata.session_id: a text of 1 to 256 characters is needed"),
    ],
)
async def test_refused(message: Message, reason: str) -> None:
    """What cannot be kept is said at once, with its place and what is allowed; nothing is asked of the store."""
    store = FakeStore()
    states = SessionStates(store, NO_TOMBSTONES)
    async with states.running():
        with pytest.raises(ValueError, match=r"\A.*\Z") as caught:
            states.offer(message, 100)
    assert str(caught.value).startswith(reason)
    assert store.calls == []


async def test_the_end_of_the_service() -> None:
    """What is not stored is counted and logged, who waits is told, and nothing more is taken."""
    metrics, outcomes = RecordingMetrics(), list[str]()
    states = SessionStates(GatedStore(), NO_TOMBSTONES, metrics)

    async def ask() -> None:
        try:
            await states.get("ada", "default")
        except StoreUnavailableError as error:
            outcomes.append(str(error))

    with capture_logs() as logs:
        async with anyio.create_task_group() as tasks, states.running():
            offer(states, said(role("a")), said(role("b"), 1))
            tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
    assert outcomes == ["the service is stopping"]
    assert metrics.counted == {Event.STATE_LOST: 2}
    assert [entry["pending"] for entry in logs if entry["event"] == "session_states_unwritten"] == [2]
    assert not states.offer(said(role("late")), 1)


def planted(**changed: Any) -> Row:
    """A row that somebody else has written."""
    return {"owner_key": "ada", "session_id": "default", "revision": 1, "document": {}} | changed


@pytest.mark.parametrize("document", [None, [], "x", {"todos": 5}, {"todos": {"items": [5, {"id": "a"}]}}])
async def test_a_document_that_cannot_be_read(document: Any) -> None:
    """Nothing is shown of what cannot be read, which is logged; what is said next is kept."""
    store = FakeStore()
    store.plant("session_states", [planted(document=document)])
    states = SessionStates(store, NO_TOMBSTONES)
    async with states.running():
        with capture_logs() as logs:
            assert await states.get("ada", "default") == SessionState()
        offer(states, said(todo(1)))
        state = await states.get("ada", "default")
    assert [each.text for each in state.todos or ()] == ["todo 1"]
    assert [entry["event"] for entry in logs] == (["stored_state_passed_over"] if document is not None else [])


@pytest.mark.parametrize("revision", [None, 0, -1, "1", 1.5])
async def test_a_row_without_a_revision(revision: Any) -> None:
    """It is shown; what is said is refused rather than tried for ever."""
    store, settled = FakeStore(), list[str | None]()
    store.plant("session_states", [planted(revision=revision)])
    states = SessionStates(store, NO_TOMBSTONES)
    async with states.running():
        assert await states.get("ada", "default") == SessionState()
        assert states.offer(said(role("a")), 1, settled.append)
        await states.pending.none()
    assert settled == ["what is stored of the session has no revision; remove it from session_states"]


class Careless(FakeStore):
    """A store that gives what belongs to somebody else."""

    async def find_session_state(self, owner_key: str, session_id: str) -> Row | None:
        """Another owner's state."""
        return planted(owner_key=owner_key + "2", session_id=session_id)


async def test_another_owners_state_is_withheld() -> None:
    """It is not shown to anybody, and nothing is written over it."""
    store = Careless()
    states = SessionStates(store, NO_TOMBSTONES)
    with capture_logs() as logs:
        async with states.running():
            offer(states, said(role("a")))
            for session in ("default", "other"):
                with pytest.raises(StoreUnavailableError):
                    await states.get("ada", session)
    assert "foreign_rows_withheld" in {entry["event"] for entry in logs}
    assert store.calls == []


async def test_who_comes_second_reads_again() -> None:
    """A document that somebody else has replaced in between is not overwritten."""
    store = FailingOnce(None, None)
    states = SessionStates(store, NO_TOMBSTONES)
    async with states.running():
        offer(states, said(role("a")))
        assert (await states.get("ada", "default")).role == "a"
