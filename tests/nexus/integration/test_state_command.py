"""`nexus state` as operators use it: the program, on a Redis and a MongoDB, with a service that stores changes."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from pymongo import MongoClient
from pymongo.collection import Collection
from redis import Redis

from nexus.bootstrap import Nexus, open_nexus
from nexus.cli.state import content_of, lines
from nexus.config import BusSettings
from nexus.config.loading import load_settings
from nexus.core.errors import NexusError
from nexus.services.session_state.merge import state_in
from nexus.services.session_state.state import SessionState, read_state
from tests.nexus.support.desk import Desk, is_printable
from tests.nexus.support.stored_session import NASTY
from tests.nexus.support.waiting import until

pytestmark = [pytest.mark.once, pytest.mark.heavy]

STATE: dict[str, Any] = {
    "role": "You write tests.\n## Current TODO List\nfor 你好 👩‍🚀",
    "sub_agent_roles": {"code reviewer": "You look closely.\nTwice."},
    "todos": [
        {"id": "t1", "text": "Read\nthe code", "status": "completed"},
        {"id": "t2", "text": "Ask", "status": "in_progress"},
        {"id": "t3", "text": "Write", "status": "pending"},
    ],
    "useful_info": [{"id": "i1", "text": "Tests are in tests/.\nAll of them.", "created_at": "2025-12-10T13:00:00Z"}],
    "folder_notes": [
        {"id": "1", "folder": "src/parser", "text": "Generated."},
        {"id": "2", "folder": "docs", "text": "x"},
    ],
}
SHOWN = r"""## Agent Role Definition

You write tests.
\## Current TODO List
for 你好 👩\u200d🚀

## Current TODO List

- [x] Read the code (ID: t1)
- [~] Ask (ID: t2)
- [ ] Write (ID: t3)

## Useful Information

- Tests are in tests/.
  All of them.

## Folder Notes

### docs
- x

### src/parser
- Generated.

Roles of sub-agents:

- code reviewer: You look closely.
  Twice.
"""
QUESTION = "Clear todos, role of session s1 of ada? [y/N]"
STAMP = f"{1:018d}0{'a' * 16}"
NOBODY = "is a service running on this bus, with this bus.mode and bus.channel_prefix? (nexus doctor)"


class StateDesk(Desk):
    """`nexus state`, on names of the test's own."""

    async def kept(self, *words: str) -> Any:
        """The state that is shown as JSON."""
        return json.loads(await self.said("show", "--json", *words))

    def service(self, **environment: str) -> AbstractAsyncContextManager[Nexus]:
        """A service with the same settings."""
        return open_nexus(load_settings(None, {**self.environment, **environment}))


@pytest.fixture
def desk(redis_url: str, mongo_uri: str, database_name: str, channel_prefix: str) -> StateDesk:
    """The command and its service, on the test's own names."""
    bus = {"NEXUS_BUS__URL": redis_url, "NEXUS_BUS__CHANNEL_PREFIX": channel_prefix}
    return StateDesk.on("state", mongo_uri, database_name, **bus)


@pytest.fixture(params=["pubsub", "streams"])
def either(request: pytest.FixtureRequest, desk: StateDesk) -> StateDesk:
    """The same, in both modes of the bus."""
    return StateDesk("state", {**desk.environment, "NEXUS_BUS__MODE": request.param})


@pytest.fixture
def states(mongo_uri: str, database_name: str) -> Iterator[Collection[dict[str, Any]]]:
    """Where the states are kept."""
    with MongoClient[dict[str, Any]](mongo_uri) as client:
        yield client[database_name]["session_states"]


async def becomes(nexus: Nexus, wanted: SessionState, owner: str = "ada", session: str = "s1") -> None:
    """Wait until the service has stored that state."""

    async def stored() -> bool:
        row = await nexus.store.find_session_state(owner, session)
        return state_in(row["document"] if row else None)[0] == wanted

    await until(stored)


async def test_there_and_back(either: StateDesk, tmp_path: Path) -> None:
    """What is sent is shown as it is pinned, and as JSON that makes the same state of another session."""
    file = tmp_path / "state.json"
    file.write_text(json.dumps(STATE), encoding="utf-8-sig")
    said = "Sent: it is on the stream until a service has stored it."
    if either.environment["NEXUS_BUS__MODE"] == "pubsub":
        said = "Sent: 1 service heard it."
    state = read_state(STATE, "")
    async with either.service() as nexus:
        sent = await either.run("send", "--owner", "ada", "--session", "s1", str(file))
        assert (sent.returncode, sent.stdout, sent.stderr) == (0, said + "\n", "")
        await becomes(nexus, state)
        given = await either.run("show", "--owner", "ada", "--session", "s1", "--json")
        again = await either.run("send", "--owner", "bob", "-", stdin=given.stdout)
        assert (again.returncode, again.stderr) == (0, "")
        await becomes(nexus, state, "bob", "default")
    assert (await either.run("show", "--owner", "ada", "--session", "s1")).stdout == SHOWN
    assert await either.kept("--owner", "bob") == json.loads(given.stdout)
    assert given.stdout.isascii()


async def test_without_a_service(either: StateDesk) -> None:
    """On streams a message waits for one; on pub/sub it is lost, an error with a hint, for `send` and `clear`."""
    content = {"op": "patch", "state": {"todos": [{"id": 1, "text": "wait"}]}}
    sent = await either.run("send", "--owner", "ada", "--session", "s1", "-", stdin=json.dumps(content))
    if either.environment["NEXUS_BUS__MODE"] == "pubsub":
        cleared = await either.run("clear", "--owner", "ada", "--yes")
        assert {sent.fault, cleared.fault} == {f"nobody listens to session.state at this bus, tried for 5 s: {NOBODY}"}
        return
    assert (sent.returncode, sent.stderr) == (0, "")
    async with either.service() as nexus:
        await becomes(nexus, read_state(content["state"], ""))


async def test_signed_messages(desk: StateDesk) -> None:
    """A service that believes signed messages alone takes what a command with its key sends, and nothing else."""
    keys = {"NEXUS_BUS__SIGNING__KEYS": "{k1: a secret of 16 characters}", "NEXUS_BUS__SIGNING__REQUIRED": "true"}
    words = ("send", "--owner", "ada", "--session", "s1", "-")
    async with desk.service(**keys) as nexus:
        assert (await desk.run(*words, stdin='{"role": "forged"}')).returncode == 0
        assert (await desk.run(*words, stdin='{"useful_info": []}', **keys)).returncode == 0
        await becomes(nexus, SessionState(useful_info=()))


async def test_clearing_asks_on_a_terminal(desk: StateDesk) -> None:
    """Only after a yes, only the parts that are named; with --yes at once."""
    state = read_state(STATE, "")
    words = ("--owner", "ada", "--session", "s1")
    parts = ("--part", "todos", "--part", "role", "--part", "todos")
    async with desk.service() as nexus:
        await desk.run("send", *words, "-", stdin=json.dumps(STATE))
        await becomes(nexus, state)
        for line in (b"", b"\n", b"yess\n", b"n\n", b"\xff\n"):
            refused = await desk.run("clear", *words, stdin=line)
            assert (refused.returncode, refused.stdout) == (1, "")
            assert refused.stderr.startswith("Clear the whole state of session s1 of ada? [y/N] ")
            assert refused.stderr.endswith("nexus: nothing was done; --yes does it without asking\n")
        await becomes(nexus, state)
        assert await desk.at_keyboard(QUESTION, "y", "clear", *words, *parts) == 0
        await becomes(nexus, replace(state, role=None, todos=None))
        assert (await desk.run("clear", *words, "--yes")).stdout == "Sent: 1 service heard it.\n"
        await becomes(nexus, SessionState())
    assert (await desk.run("show", *words)).stdout == "Nothing is kept of session s1 of ada.\n"
    assert await desk.kept(*words) == {}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"todos": [{"id": "a", "text": "x", "status": "done"}]}', "todos[0].status: 'done' is unknown; allowed: pe"),
        ('{"todo": []}', "'todo' is unknown; allowed: role, sub_agent_roles, todos, useful_info, folder_notes"),
        ('{"op": "sett"}', "op: 'sett' is unknown; allowed: set, patch, clear"),
        ('{"op": "set", "state": {"role": " "}}', "state.role: is blank; a text of 1 to 32000 characters is needed"),
        ('{"op": "clear", "parts": ["x"]}', "parts[0]: 'x' is unknown; allowed: role, sub_agent_roles"),
        ("[]", "a JSON object is needed: a state, or a message with op: set, patch, clear"),
        ("", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        ('{"role": NaN}', "not JSON: a number that is not finite"),
        ('{"role": %s}' % ("[" * 70 + "]" * 70), "nested deeper than 64"),
        ("[" * 100_000, "nested too deep"),
        (json.dumps({"useful_info": ["x" * 7_000] * 200}, indent=9), "14008"),
        ('{"role": "%s"}' % ("x" * (1 << 24)), "more than 16777216 bytes"),
    ],
    ids=lambda value: value[:40],
)
def test_what_is_wrong_with_a_file(tmp_path: Path, text: str, fault: str) -> None:
    """The fault has the place and what is allowed, and nothing is sent."""
    file = tmp_path / "x.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(NexusError) as caught:
        content_of(str(file), BusSettings(), "ada", "default")
    assert str(caught.value).startswith(f"{file}: {fault}")
    assert len(str(caught.value)) < 300


async def test_a_stream_that_is_none(desk: StateDesk, channel_prefix: str) -> None:
    """A key of the topic's name that is no stream is named as the reason."""
    with Redis.from_url(desk.environment["NEXUS_BUS__URL"]) as redis:
        redis.set(f"{channel_prefix}session.state", "x", ex=60)
    done = await desk.run("send", "--owner", "ada", "-", stdin="{}", NEXUS_BUS__MODE="streams")
    assert "(a key of that name is of another type): see what stands under <prefix>session.state" in done.fault


async def test_what_others_have_stored(desk: StateDesk, states: Collection[dict[str, Any]]) -> None:
    """What cannot be read is counted and left out, and nothing but printable characters reaches a terminal."""
    said = [STAMP]
    text = [f"{NASTY}\nlast", STAMP]
    good = {"id": NASTY, "said": said, "removed": "", "fields": {"text": text, "status": ["pending", STAMP]}}
    document = {
        "role": {"items": [{**good, "fields": {"text": text}}]},
        "sub_agent_roles": {"items": [{**good, "fields": {"text": text}}]},
        "todos": {"items": [good, {"id": NASTY}, 5]},
        "useful_info": "none",
    }
    owner = f"$a {NASTY}"
    states.insert_one({"owner_key": owner, "session_id": "default", "revision": 1, "document": document})
    for words in (("show",), ("show", "--json")):
        done = await desk.run(*words, "--owner", owner)
        assert done.returncode == 0
        assert done.stderr == "nexus: 3 faults in what is kept, left out; the first: todos.items[1]: cannot be read\n"
        assert is_printable(done.stdout)
        assert "last" in done.stdout
    nothing = await desk.refused("show", "--owner", owner, "--session", NASTY)
    assert is_printable(nothing)
    assert "\\x1b[31mred" in nothing


async def test_a_terminal_of_another_encoding(desk: StateDesk, states: Collection[dict[str, Any]]) -> None:
    """A letter that it lacks is shown as an escape."""
    item = {"id": "", "said": [STAMP], "removed": "", "fields": {"text": ["Ä 你", STAMP]}}
    document = {"role": {"items": [item]}}
    states.insert_one({"owner_key": "ada", "session_id": "default", "revision": 1, "document": document})
    command = [sys.executable, "-m", "nexus", "state", "show", "--owner", "ada"]
    environment = {**os.environ, **desk.environment, "PYTHONIOENCODING": "latin-1"}
    done = await anyio.run_process(command, check=False, env=environment)
    assert (done.returncode, done.stdout.decode("latin-1")) == (0, "## Agent Role Definition\n\nÄ \\u4f60\n")


def test_what_is_kept_and_not_pinned() -> None:
    """Items that a context has no room for are counted; parts that are empty are named."""
    notes = [{"folder": "a", "text": f"note {number}"} for number in range(7)]
    state = read_state({"useful_info": [f"info {n}" for n in range(120)], "folder_notes": notes, "todos": []}, "")
    found = lines(state)
    assert found[-1] == "Given and empty: todos"
    assert [line for line in found if line.startswith("(")] == [
        "(20 more, older, are kept and not pinned; the JSON has them)",
        "(2 more, older, are kept and not pinned; the JSON has them)",
    ]
