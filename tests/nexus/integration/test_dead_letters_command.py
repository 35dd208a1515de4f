"""`nexus dead-letters` as operators use it: the program, on a Redis."""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from anyio.lowlevel import checkpoint
from redis import Redis

from nexus.cli.dead_letters import carry_out, choice
from nexus.core.errors import BusUnavailableError, NexusError
from nexus.services.requests.letters import Outcome
from tests.nexus.support.desk import Result, is_printable, run_program
from tests.nexus.support.stored_session import NASTY

pytestmark = [pytest.mark.once, pytest.mark.heavy]

REQUEST = "context.build.request"
# 2026-11-21 22:37:50 UTC.
START_MS = 1_795_300_670_000


@dataclass(frozen=True)
class Desk:
    """The command, on one prefix of a Redis, and a client of its own there."""

    redis: Redis
    prefix: str
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, *words: str, stdin: str = "", **environment: str) -> Result:
        """Run `nexus dead-letters` with these words."""
        variables = {**self.environment, **environment}
        return run_program("dead-letters", *words, stdin=stdin.encode(), environment=variables)

    def each(self, *commands: tuple[str, ...]) -> list[Result]:
        """Run several commands, one after the other."""
        return [self.run(*words) for words in commands]

    def plant(self, number: int, body: bytes | None = None, **fields: Any) -> str:
        """Put a letter into the stream as the service does, `number` seconds after the first; returns its id."""
        letter_id = f"{START_MS + number * 1_000}-0"
        given = body if body is not None else b""
        letter: dict[Any, Any] = {
            "topic": REQUEST,
            "reason": "not JSON",
            "deliveries": 1,
            "sha256": hashlib.sha256(given).hexdigest(),
            "size": len(given),
            **fields,
        }
        self.redis.xadd(self.stream, letter | ({} if body is None else {"body": body}), id=letter_id)
        return letter_id

    @property
    def stream(self) -> str:
        """The key of the stream."""
        return f"{self.prefix}nexus:dead-letters"

    @property
    def kept(self) -> list[str]:
        """The ids of the letters that are there."""
        entries: Any = self.redis.xrange(self.stream)
        return [entry.decode() for entry, _ in entries]

    @contextmanager
    def listening(self, *topics: str) -> Iterator[list[bytes]]:
        """Listen on topics; what was heard stands in the list when the context has ended."""
        heard: list[bytes] = []
        with self.redis.pubsub() as pubsub:  # type: ignore[no-untyped-call]  # redis-py has no types here
            pubsub.subscribe(*(self.prefix + topic for topic in topics))
            for _ in topics:
                assert pubsub.get_message(timeout=20)
            yield heard
            self.redis.publish(self.prefix + topics[0], b"end")
            while (message := pubsub.get_message(timeout=20)) and message["data"] != b"end":
                heard.append(message["data"])


@pytest.fixture
def desk(redis_url: str, channel_prefix: str) -> Iterator[Desk]:
    """The command on names of this test's own."""
    variables = {"NEXUS_BUS__URL": redis_url, "NEXUS_BUS__CHANNEL_PREFIX": channel_prefix}
    with Redis.from_url(redis_url) as redis:
        yield Desk(redis, channel_prefix, variables)


def test_the_list(desk: Desk) -> None:
    """Newest first, a line a letter; it says how many there are and how to go on, and every letter is on one page."""
    ids = [desk.plant(number, topic=f"t{number % 2}", message_id=f"m{number}") for number in range(45)]
    assert "there is no dead letter 1-1; `nexus dead-letters list` shows" in desk.run("show", "1-1").fault
    page, rest, of_topic, as_json = desk.each(
        ("list",),
        ("list", "--before", ids[25], "--limit", "100"),
        ("list", "--topic", "t1", "--limit", "5"),
        ("list", "--limit", "2", "--json"),
    )
    head, *lines, summary = page.stdout.splitlines()
    assert head.split("  ")[0].strip() == "ID"
    assert [line.split()[0] for line in lines] == ids[:24:-1]
    assert lines[0].split() == [ids[44], "2026-11-21", "22:38:34", "t0", "1", "0", "m44", "not", "JSON"]
    assert summary == f"20 shown; 45 in all. Older ones: nexus dead-letters list --before {ids[25]}"
    assert [line.split()[0] for line in rest.stdout.splitlines()[1:-1]] == ids[24::-1]
    assert rest.stdout.splitlines()[-1] == f"25 shown older than {ids[25]}; 45 in all."
    assert [line.split()[0] for line in of_topic.stdout.splitlines()[1:-1]] == ids[43:34:-2]
    assert of_topic.stdout.endswith(f"Older ones: nexus dead-letters list --topic t1 --before {ids[35]}\n")
    value = json.loads(as_json.stdout)
    assert (value["total"], value["next_before"]) == (45, ids[43])
    assert [letter["id"] for letter in value["letters"]] == [ids[44], ids[43]]


def test_nothing_there(desk: Desk) -> None:
    """An empty stream has nothing to show, send or drop."""
    listed, of_topic, replayed, dropped = desk.each(
        ("list",), ("list", "--json"), ("replay", "--all"), ("drop", "--all")
    )
    assert (listed.returncode, listed.stdout) == (0, "There are no dead letters.\n")
    assert json.loads(of_topic.stdout) == {"total": 0, "letters": [], "next_before": None}
    assert [(done.returncode, done.stdout) for done in (replayed, dropped)] == [
        (0, "There are no such dead letters.\n")
    ] * 2


def test_showing_a_letter(desk: Desk) -> None:
    """Every field; the body only when it is asked for and was kept."""
    kept, bare = desk.plant(1, b"hello", message_id="m1", deliveries=5), desk.plant(2)
    plain, whole, without, value = desk.each(
        ("show", kept), ("show", kept, "--body"), ("show", bare, "--body"), ("show", kept, "--json", "--body")
    )
    lines = [line.split(maxsplit=1) for line in plain.stdout.splitlines()]
    assert lines[0] == ["id", kept]
    assert ["deliveries", "5"] in lines
    assert ["message", "id  m1"] in lines
    assert ["size", "5 bytes"] in lines
    assert "hello" not in plain.stdout
    assert whole.stdout.splitlines()[-1].split() == ["body", "hello"]
    assert "not kept: bus.dead_letter_bodies" in without.stdout
    assert json.loads(value.stdout) == {
        "id": kept,
        "at_ms": START_MS + 1_000,
        "topic": REQUEST,
        "reason": "not JSON",
        "deliveries": 5,
        "message_id": "m1",
        "sha256": hashlib.sha256(b"hello").hexdigest(),
        "size": 5,
        "body_kept": True,
        "body": "hello",
    }


def test_a_terminal_is_safe(desk: Desk) -> None:
    """Whatever a letter holds, nothing but printable characters and ends of lines is printed; bytes come as base64."""
    body = NASTY.encode() + b"\xff\x00"
    letter = desk.plant(1, body, topic=NASTY, reason=NASTY, message_id=NASTY, sha256=NASTY)
    results = desk.each(("list",), ("list", "--json"), ("show", letter, "--body"), ("show", letter, "--json", "--body"))
    for result in (*results, desk.run("list", "--topic", NASTY), desk.run("show", NASTY)):
        assert is_printable(result.stdout + result.stderr)
    assert "\\x1b[31mred\\x07\\x85\\u202etxt\\x9b2J\\xff\\x00" in results[2].stdout
    assert base64.b64decode(json.loads(results[3].stdout)["body_base64"]) == body


def test_sending_a_letter_again(desk: Desk) -> None:
    """The same bytes on the same topic; the letter is then gone, and its request can be answered anew."""
    run = {"owner_key": "ada", "history": []}
    body = json.dumps({"id": "m1", "run_id": "r", "owner_key": "ada", "role": "HUMAN", "content": run}).encode()
    sha256 = hashlib.sha256(body).hexdigest()
    letter = desk.plant(1, body, message_id="m1")
    owner = hashlib.sha256(b"ada").hexdigest()[:32]
    key, enqueued = f"{desk.prefix}nexus:request:m1:{owner}", f"{desk.prefix}nexus:enqueued:{sha256}"
    desk.redis.hset(key, "answer", "INTERNAL")
    desk.redis.hset(f"{desk.prefix}nexus:request:m1:of another owner", "answer", "theirs")
    desk.redis.set(enqueued, "")
    with desk.listening(REQUEST, "llm.results") as heard:
        dry_run = desk.run("replay", letter, "--dry-run")
        assert (dry_run.returncode, dry_run.stdout) == (0, f"{letter}: would be sent again\n")
        assert desk.redis.exists(key)
        assert desk.kept == [letter]
        sent = desk.run("replay", letter)
    assert (sent.returncode, sent.stdout, sent.stderr) == (0, f"{letter}: sent again and dropped\n", "")
    assert heard == [body]
    assert desk.kept == []
    assert not desk.redis.exists(key, enqueued)
    assert desk.redis.exists(f"{desk.prefix}nexus:request:m1:of another owner")
    again = desk.run("replay", letter)
    assert (again.returncode, again.stderr) == (1, f"nexus: {letter}: not found: there is no such dead letter\n")


def test_an_answer_is_forgotten_for_requests_only(desk: Desk) -> None:
    """A result that has the id of a request leaves the request's answer alone. With --keep the letter stays."""
    letter = desk.plant(1, b"{}", topic="llm.results", message_id="m1")
    key = f"{desk.prefix}nexus:request:{hashlib.sha256(b'{}').hexdigest()}"
    desk.redis.hset(key, "answer", "kept")
    with desk.listening("llm.results") as heard:
        for _ in range(2):
            assert desk.run("replay", letter, "--keep").stdout == f"{letter}: sent again, and kept\n"
    assert heard == [b"{}", b"{}"]
    assert desk.redis.exists(key)
    assert desk.kept == [letter]


def test_letters_that_cannot_be_sent_stay(desk: Desk) -> None:
    """No listener, no body, another topic, too large, no such letter: exit 1, each with its reason; others are sent."""
    unheard, bare, large = desk.plant(1, b"x", topic="tools.results"), desk.plant(2), desk.plant(3, b"x" * 2_000)
    good, foreign = desk.plant(4, b"good"), f"{(1 << 64) - 2}-7"
    desk.redis.xadd(desk.stream, {b"\xff": b"\xff", "size": "many", "body": b"x"}, id=foreign)
    assert [desk.run(*words).returncode for words in (("list",), ("show", foreign))] == [0, 0]
    with desk.listening(REQUEST) as heard:
        words = ("replay", unheard, bare, large, foreign, "1-1", good, good)
        result = desk.run(*words, NEXUS_BUS__MAX_PAYLOAD_BYTES="1024")
    assert result.returncode == 1
    assert heard == [b"good"]
    assert result.stderr.splitlines() == [
        f"nexus: {unheard}: kept: nobody listens on its topic",
        f"nexus: {bare}: kept: it has no body to send (bus.dead_letter_bodies was false)",
        f"nexus: {large}: kept: it is larger than bus.max_payload_bytes",
        f"nexus: {foreign}: kept: its topic is none of Nexus",
        "nexus: 1-1: not found: there is no such dead letter",
    ]
    assert "1 dead letter sent again and dropped" in result.stdout.splitlines()
    assert desk.run("drop", unheard, bare, large, foreign).returncode == 0
    assert desk.kept == []


def test_sending_all(desk: Desk) -> None:
    """Oldest first, after a question; of one topic, if one is named."""
    others = [desk.plant(number, b"other", topic="llm.results") for number in range(3)]
    ids = [desk.plant(10 + number, b"%d" % number) for number in range(50)]
    with desk.listening(REQUEST, "llm.results") as heard:
        words = ("replay", "--all", "--topic", REQUEST)
        dry_run = desk.run(*words, "--dry-run")
        assert dry_run.stdout.splitlines()[-1] == "50 dead letters would be sent again"
        for answer in ("", "n\n"):
            refused = desk.run(*words, stdin=answer)
            assert refused.returncode == 1
            assert "Send again 50 dead letters? [y/N]" in refused.stderr
            assert "nothing was done; --yes does it without asking" in refused.stderr
        assert desk.kept == [*others, *ids]
        result = desk.run(*words, stdin="y\n")
    assert (result.returncode, result.stdout) == (0, "50 dead letters sent again and dropped\n")
    assert heard == [b"%d" % number for number in range(50)]
    assert desk.kept == others


def test_two_operators_at_once(desk: Desk) -> None:
    """Each letter is sent, at most twice, and then reported so; none is lost."""
    bodies = {b"%d" % number for number in range(30)}
    for number in range(30):
        desk.plant(number, b"%d" % number)
    command = [sys.executable, "-m", "nexus", "dead-letters", "replay", "--all", "--yes"]
    with desk.listening(REQUEST) as heard:
        environment = {**os.environ, **desk.environment}
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) for _ in range(2)]
        said = "".join(process.communicate(timeout=60)[0] for process in both)
    assert ({*heard}, desk.kept) == (bodies, [])
    assert sum(int(line.split()[0]) for line in said.splitlines() if " sent again" in line) == len(heard)


def test_dropping(desk: Desk) -> None:
    """By id, by age, by topic, all; after a question, or with --yes."""
    now = int(time.time() - START_MS / 1_000)
    old = [desk.plant(number, topic="llm.results") for number in range(2)]
    middle, new = desk.plant(now - 7_300), desk.plant(now - 60)
    assert desk.run("drop", "--all", "--older-than", "2h", "--dry-run").stdout.splitlines()[-1] == (
        "3 dead letters would be dropped"
    )
    assert desk.run("drop", "--all", "--older-than", "2h").returncode == 1
    assert desk.kept == [*old, middle, new]
    both = desk.run("drop", "1-1", old[1])
    assert (both.returncode, both.stderr) == (1, "nexus: 1-1: not found: there is no such dead letter\n")
    assert (
        both.stdout
        == f"{old[1]}: dropped\n1 dead letter not found: there is no such dead letter\n1 dead letter dropped\n"
    )
    assert desk.run("drop", "--all", "--older-than", "2h", "--yes").returncode == 0
    assert desk.kept == [new]
    assert desk.run("drop", "--all", "--topic", "llm.results", "--yes").stdout == "There are no such dead letters.\n"
    assert desk.run("drop", "--all", stdin="y\n").returncode == 0
    assert desk.kept == []


@pytest.mark.parametrize(
    ("ids", "options", "said"),
    [
        ((), {"everything": False}, "name letters by their ids, or --all"),
        (("1-1",), {"everything": True}, "either ids or --all, not both"),
        (("1-1", "1"), {"everything": False}, "'1' is no id of a dead letter; allowed: <milliseconds>-<number>"),
        (("1-1",), {"everything": False, "topic": "t"}, "--topic and --older-than choose among --all"),
        ((), {"everything": True, "older_than": "7 days"}, "--older-than '7 days': allowed are 90s, 15m, 12h, 7d"),
    ],
)
def test_what_chooses_nothing(ids: tuple[str, ...], options: dict[str, Any], said: str) -> None:
    """Options that choose no letters, or contradict each other, are refused with what is allowed."""
    with pytest.raises(NexusError, match=re.escape(said)):
        choice(ids, **options)


def test_letters_that_are_none(desk: Desk) -> None:
    """A key of that name that is no stream is named as the reason, in one line; exit code 1."""
    desk.redis.set(desk.stream, "no stream")
    result = desk.run("list")
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert "(a key of that name is of another type): see what stands under <prefix>nexus:dead-letters" in result.stderr


def test_stale_signatures(desk: Desk) -> None:
    """Where messages are signed, a warning comes first that old ones will be refused."""
    old = desk.plant(1, b"x")
    keys = {"NEXUS_BUS__SIGNING__KEYS": "{k1: a secret of 16 characters}"}
    with desk.listening(REQUEST) as heard:
        result = desk.run("replay", old, **keys, NEXUS_BUS__SIGNING__REQUIRED="true")
    assert result.stderr.startswith("nexus: 1 dead letter came more than 300 s ago: a signature is valid no longer")
    assert (result.returncode, heard) == (0, [b"x"])


def test_work_that_breaks_off(capsys: pytest.CaptureFixture[str]) -> None:
    """When Redis goes in the middle, a summary of the work until then comes before the error."""

    async def work(report: Callable[[str, Outcome], None]) -> None:
        report("1-1", Outcome.SENT)
        await checkpoint()
        raise BusUnavailableError("ConnectionError")

    with pytest.raises(NexusError, match=r"Redis does not do what was asked \(ConnectionError\): see that Redis"):
        carry_out(["1-1", "2-1"], work, each=False)
    assert capsys.readouterr().out == "1 dead letter sent again and dropped\n"
