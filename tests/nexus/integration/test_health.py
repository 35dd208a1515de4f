"""The health port over TCP: what it answers, and that nothing which arrives there does harm (CONTRACT §10)."""

import json
import random
import socket
import struct
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from nexus.adapters.prometheus import PrometheusMetrics
from nexus.core.errors import ConfigError, StoreUnavailableError
from nexus.health import Check, Health, Limits, Recent, serving
from tests.nexus.support.waiting import PATIENCE_S

pytestmark = pytest.mark.once

SECRET = "hunter2-canary"
LIVE = b"GET /livez HTTP/1.1\r\nHost: nexus\r\nConnection: close\r\n\r\n"
RESET = struct.pack("ii", 1, 0)


async def well() -> None:
    """A check that finds nothing wrong."""


def failing(reason: str) -> Check:
    """A check that finds this wrong."""

    async def check() -> str:
        await anyio.lowlevel.checkpoint()
        return reason

    return check


@asynccontextmanager
async def opened(
    limits: Limits | None = None,
    metrics: Callable[[], bytes] = bytes,
    check_s: float = PATIENCE_S,
    **checks: Check,
) -> AsyncIterator[int]:
    """A port that answers. Ends in time whatever was done to it, and without a fault of its own."""
    with anyio.fail_after(2 * PATIENCE_S), capture_logs() as lines:
        async with serving(Health(checks, metrics, check_s=check_s), "127.0.0.1", 0, limits) as port:
            yield port
    assert not [line for line in lines if line["event"] != "http_listening"]


async def asked(port: int, *pieces: bytes) -> bytes:
    """All that comes back on a new connection on which this is sent."""
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        for piece in pieces:
            await stream.send(piece)
        return await rest(stream)


async def rest(stream: SocketStream) -> bytes:
    """All that comes until the end, or until the connection breaks."""
    received = b""
    with anyio.fail_after(PATIENCE_S):
        try:
            async for chunk in stream:
                received += chunk
        except anyio.BrokenResourceError:
            pass
    return received


async def got(port: int, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    """Status, header fields and body of the answer."""
    sent = f"{method} {path} HTTP/1.1\r\nHost: nexus\r\nConnection: close\r\n\r\n"
    return parted(await asked(port, sent.encode()))


def parted(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, header fields and body."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in lines)
    assert "date" in fields
    return int(first.split(" ")[1]), fields, body


async def assert_alive(port: int) -> None:
    """The port answers who asks now."""
    assert (await got(port, "/livez"))[0] == 200


class TestAnswers:
    """What is asked for is answered."""

    async def test_livez(self) -> None:
        """200 as the loop answers at all, whatever the checks say."""
        async with opened(bus=failing("silent")) as port:
            status, fields, body = await got(port, "/livez?verbose=1")
        assert (status, json.loads(body)) == (200, {"status": "ok"})
        assert fields["content-type"] == "application/json"
        assert fields["cache-control"] == "no-store"

    async def test_readyz_when_all_is_well(self) -> None:
        """200, each check by name."""
        async with opened(bus=well, database=well, draining=well) as port:
            status, _, body = await got(port, "/readyz")
        assert status == 200
        assert json.loads(body) == {"status": "ok", "checks": {"bus": "ok", "database": "ok", "draining": "ok"}}

    async def test_readyz_when_something_is_wrong(self) -> None:
        """503, and what it is: said by a check, raised by it, or that it said nothing in time."""

        async def refused() -> None:
            await anyio.lowlevel.checkpoint()
            raise StoreUnavailableError("the server did not answer")

        async with opened(
            check_s=0.05, bus=well, database=refused, draining=failing("yes"), x=anyio.sleep_forever
        ) as port:
            status, _, body = await got(port, "/readyz")
        assert status == 503
        assert json.loads(body) == {
            "status": "unavailable",
            "checks": {
                "bus": "ok",
                "database": "the server did not answer",
                "draining": "yes",
                "x": "no answer in time",
            },
        }

    async def test_a_fault_of_ours_is_answered_too(self) -> None:
        """500 without a word of it."""

        async def broken() -> None:
            await anyio.lowlevel.checkpoint()
            raise ValueError(SECRET)

        def unreadable() -> bytes:
            raise ValueError(SECRET)

        with capture_logs() as lines:
            async with serving(Health({"bus": broken}, unreadable), "127.0.0.1", 0) as port:
                answers = [await got(port, path) for path in ("/readyz", "/metrics", "/livez")]
        assert [status for status, _, _ in answers] == [500, 500, 200]
        assert SECRET.encode() not in b"".join(body for _, _, body in answers)
        assert [line["event"] for line in lines] == ["http_listening", "http_failed", "http_failed"]

    async def test_metrics(self) -> None:
        """What Prometheus itself can read, with the type that it asks for."""
        metrics = PrometheusMetrics(version="1")
        metrics.answered(None)
        async with opened(metrics=metrics.exposition) as port:
            status, fields, body = await got(port, "/metrics")
        assert (status, fields["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        families = {family.name: family for family in text_string_to_metric_families(body.decode())}
        counted = {sample.labels["outcome"]: sample.value for sample in families["nexus_requests"].samples}
        assert counted["success"] == 1

    @pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics"])
    async def test_head(self, path: str) -> None:
        """The head of the answer to GET, and no body."""
        async with opened(metrics=lambda: b"x" * 10) as port:
            of_get, of_head = await got(port, path), await got(port, path, "HEAD")
        assert of_head[0] == 200
        assert of_head[1]["content-length"] == str(len(of_get[2]))
        assert of_head[2] == b""

    async def test_connections_are_kept(self) -> None:
        """Several requests on one connection, one after another and at once; the one that says so is the last."""
        request = b"GET /livez HTTP/1.1\r\nHost: nexus\r\n\r\n"
        async with opened() as port, await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(request)
            assert (await stream.receive()).startswith(b"HTTP/1.1 200")
            await stream.send(request * 3 + LIVE + request)
            assert (await rest(stream)).count(b"HTTP/1.1 200") == 4

    async def test_http_1_0(self) -> None:
        """Answered, and closed."""
        async with opened() as port:
            assert (await asked(port, b"GET /livez HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200")

    async def test_a_client_that_says_no_more(self) -> None:
        """One that has closed its side hears the answer."""
        async with opened() as port, await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(b"GET /livez HTTP/1.1\r\nHost: nexus\r\n\r\n")
            await stream.send_eof()
            assert (await rest(stream)).startswith(b"HTTP/1.1 200")


class TestRefusals:
    """What is not asked rightly gets its status, and the next one its answer."""

    @pytest.mark.parametrize("path", ["/", "/healthz", "/livez/", "/../livez", "http://nexus/livez", "*", "/%6civez"])
    async def test_unknown_paths(self, path: str) -> None:
        """404, by any method."""
        async with opened() as port:
            assert [(await got(port, path, method))[0] for method in ("GET", "HEAD", "DELETE")] == [404] * 3

    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "BREW"])
    async def test_other_methods(self, method: str) -> None:
        """405, with those that are allowed."""
        async with opened() as port:
            status, fields, _ = await got(port, "/livez", method)
        assert (status, fields["allow"]) == (405, "get, head")

    @pytest.mark.parametrize(
        "body",
        [
            b"Content-Length: 5\r\n\r\nhello",
            b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            b"Content-Length: 1000000\r\n\r\n" + b"x" * 200_000,
            b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n",
        ],
        ids=["length", "chunked", "long", "expect"],
    )
    async def test_bodies_are_not_wanted(self, body: bytes) -> None:
        """They are read over as far as needed for the answer to be heard."""
        async with opened() as port:
            assert (
                parted(await asked(port, b"POST /livez HTTP/1.1\r\nHost: nexus\r\nConnection: close\r\n" + body))[0]
                == 405
            )
            await assert_alive(port)

    @pytest.mark.parametrize(
        ("sent", "status"),
        [
            (b"hello\r\n\r\n", 400),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n\r\n", 400),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 404),
            (b"\x00" * 100 + b"\r\n\r\n", 400),
            (b"GET /livez HTTP/1.1\r\n\r\n", 400),
            (b"GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
            (b"GET /livez HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
            (b"GET /livez HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
            (b"GET /livez HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
            (b"POST /livez HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
            (b"GET /" + b"x" * 100_000, 431),
            (b"GET /livez HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", 431),
            (b"GET /livez HTTP/1.1\r\n" + b"X: y\r\n" * 100_000 + b"\r\n", 431),
        ],
    )
    async def test_what_is_not_http(self, sent: bytes, status: int) -> None:
        """400, 431 or 501, and the end of the connection. The greeting of HTTP/2 asks for a path that is not here."""
        async with opened() as port:
            assert parted(await asked(port, sent))[0] == status
            await assert_alive(port)


class TestHostility:
    """Clients that mean harm do none."""

    async def test_random_bytes(self) -> None:
        """Nothing that can be sent is a fault of the service."""
        chance = random.Random(3)  # noqa: S311  # repeatable noise, no secret
        words = [
            b"GET ",
            b"HEAD ",
            b"/livez",
            b" HTTP/1.1",
            b"\r\n",
            b"\n",
            b"Host: a",
            b": ",
            b"Content-Length: 3",
            b"\x00",
        ]
        async with opened(Limits(exchange_s=0.02, parting_s=0.02)) as port:
            for _ in range(150):
                noise = b"".join(chance.choice([*words, chance.randbytes(3)]) for _ in range(chance.randrange(1, 20)))
                await asked(port, noise)
            await assert_alive(port)

    async def test_slow_loris(self) -> None:
        """Who does not finish a request is told so and loses the connection, however it is sent."""
        async with opened(Limits(exchange_s=0.1)) as port, await anyio.connect_tcp("127.0.0.1", port) as stream:

            async def dribble() -> None:
                for byte in b"GET /livez HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 1_000:
                    await send_if_open(stream, bytes([byte]))
                    await anyio.sleep(0.01)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(dribble)
                assert parted(await rest(stream))[0] == 408
                tasks.cancel_scope.cancel()

    @pytest.mark.parametrize("begun", [b"GET /li", b"HEAD /livez HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab"])
    async def test_a_request_without_an_end(self, begun: bytes) -> None:
        """408, and the end of the connection."""
        async with opened(Limits(exchange_s=0.1)) as port:
            assert parted(await asked(port, begun))[0] == 408

    async def test_an_idle_connection_is_closed(self) -> None:
        """One that never says a word, and one that has been answered and says no more, without a word to them."""
        async with opened(Limits(exchange_s=0.1)) as port:
            assert await asked(port) == b""
            answer = await asked(port, b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
        assert answer.count(b"HTTP/1.1") == 1

    async def test_more_connections_than_allowed(self) -> None:
        """The one that has been idle for longest goes, so that who asks now is answered."""
        async with opened(Limits(connections=3)) as port, anyio.create_task_group() as tasks:
            first = await anyio.connect_tcp("127.0.0.1", port)
            second = await anyio.connect_tcp("127.0.0.1", port)
            third = await anyio.connect_tcp("127.0.0.1", port)
            for stream in (second, third, first):
                await stream.send(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
                assert (await stream.receive()).startswith(b"HTTP/1.1 200")
            await assert_alive(port)
            assert await rest(second) == b""
            await first.send(LIVE)
            assert (await rest(first)).startswith(b"HTTP/1.1 200")
            for stream in (first, second, third):
                await stream.aclose()
            tasks.cancel_scope.cancel()

    async def test_a_thousand_connections(self) -> None:
        """A probe gets its answer among any number of clients that say nothing or half of something."""
        async with opened() as port:
            silent: deque[SocketStream] = deque()
            for number in range(1_000):
                stream = await anyio.connect_tcp("127.0.0.1", port)
                silent.append(stream)
                if number % 2:
                    await send_if_open(stream, b"GET /livez HTTP/1.1\r\n")
                if number % 100 == 99:
                    await assert_alive(port)
                if len(silent) > 100:
                    await silent.popleft().aclose()
            for stream in silent:
                await stream.aclose()
            await assert_alive(port)

    async def test_clients_that_vanish(self) -> None:
        """Before their request ends, before the answer, and with a reset."""
        async with opened(bus=well) as port:
            for number in range(60):
                stream = await anyio.connect_tcp("127.0.0.1", port)
                await stream.send((b"GET /rea", b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n", LIVE * 50)[number % 3])
                if number % 2:
                    raw = stream.extra(SocketAttribute.raw_socket)  # noqa: S610  # not Django's
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                await stream.aclose()
            await assert_alive(port)

    async def test_a_client_that_does_not_read(self) -> None:
        """Neither other clients nor the end of the service wait for it."""
        size = 32 << 20
        async with opened(metrics=lambda: bytes(size)) as port:
            stream = await anyio.connect_tcp("127.0.0.1", port)
            await stream.send(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await stream.receive()).startswith(b"HTTP/1.1 200")
            await assert_alive(port)
        assert len(await rest(stream)) < size
        await stream.aclose()

    async def test_a_process_without_file_descriptors(self) -> None:
        """It does not fall over clients that it cannot take in, and answers again when there are fewer."""
        async with await anyio.open_process([sys.executable, "-c", FEW_DESCRIPTORS]) as process:
            assert process.stderr
            log = BufferedByteReceiveStream(process.stderr)
            port = int(json.loads(await log.receive_until(b"\n", 10_000))["http_port"])
            async with AsyncExitStack() as clients:
                for _ in range(60):
                    await clients.enter_async_context(await anyio.connect_tcp("127.0.0.1", port))
                with anyio.fail_after(PATIENCE_S):
                    await log.receive_until(b"http_not_accepted", 10_000)
            await assert_alive(port)
            process.kill()


FEW_DESCRIPTORS = """
import resource, anyio
from nexus.health import Health, Limits, serving
from nexus.log import configure_logging

async def main():
    async with serving(Health({}, bytes), "127.0.0.1", 0, Limits(connections=1_000)):
        resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
        await anyio.sleep_forever()

configure_logging("info", "json")
anyio.run(main)
"""


async def send_if_open(stream: SocketStream, data: bytes) -> None:
    """Send to a server that may have closed by now."""
    with suppress(anyio.BrokenResourceError):
        await stream.send(data)


class TestLife:
    """Start and end."""

    async def test_the_end_waits_for_nobody(self) -> None:
        """Idle clients, half a request and a check that never ends lose their connection when the service ends."""
        begun = anyio.Event()

        async def endless() -> None:
            begun.set()
            await anyio.sleep_forever()

        streams: list[SocketStream] = []
        async with opened(bus=endless) as port:
            for sent in (b"", b"GET /li", b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n"):
                streams.append(await anyio.connect_tcp("127.0.0.1", port))
                if sent:
                    await streams[-1].send(sent)
            await begun.wait()
        for stream in streams:
            assert await rest(stream) == b""
            await stream.aclose()
        with pytest.raises(OSError, match="connect"):
            await anyio.connect_tcp("127.0.0.1", port)

    async def test_a_port_that_is_taken(self) -> None:
        """One line that names the setting."""
        async with opened() as port:
            with pytest.raises(ConfigError) as caught:
                async with serving(Health({}, bytes), "127.0.0.1", port):
                    pass
        said = str(caught.value)
        assert said.startswith(f"system.http_port: cannot listen on port {port} of system.http_host '127.0.0.1': ")
        assert said.endswith("address already in use; 0 takes a free port")
        assert "\n" not in said

    @pytest.mark.parametrize("host", ["256.256.256.256", "a..b", "192.0.2.1"])
    async def test_a_host_that_is_not_ours(self, host: str) -> None:
        """One line that names that setting, and no advice about ports."""
        with pytest.raises(ConfigError, match=r"^system\.http_host: cannot listen on ") as caught:
            async with serving(Health({}, bytes), host, 0):
                pass
        assert "free port" not in str(caught.value)

    async def test_every_address_of_a_name(self) -> None:
        """A name with several addresses is answered on each, under one port."""
        async with serving(Health({}, bytes), "localhost", 0) as port:
            await assert_alive(port)

    async def test_the_port_is_free_again(self) -> None:
        """A service that starts anew gets its port at once."""
        async with opened() as port:
            await assert_alive(port)
        async with serving(Health({}, bytes), "127.0.0.1", port):
            await assert_alive(port)


class TestRecent:
    """A check that is made once a second at most, however many ask."""

    @staticmethod
    def counted(outcome: str | None = None) -> tuple[Check, list[int]]:
        """A check and how often it was made."""
        made: list[int] = []

        async def check() -> str | None:
            made.append(1)
            await anyio.lowlevel.checkpoint()
            return outcome

        return check, made

    async def test_it_is_made_once_for_many(self) -> None:
        """Also when they ask at once, over HTTP."""
        check, made = self.counted("gone")
        async with opened(database=Recent(check, keep_s=1_000)) as port, anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(got, port, "/readyz")
        assert made == [1]

    async def test_it_is_made_again(self) -> None:
        """As soon as its outcome no longer counts."""
        check, made = self.counted()
        recent = Recent(check, keep_s=0)
        assert [await recent(), await recent()] == [None, None]
        assert made == [1, 1]

    async def test_one_that_hangs_is_cut_off(self) -> None:
        """And that it hung is the outcome for the others."""
        recent = Recent(anyio.sleep_forever, limit_s=0.01, keep_s=1_000)
        assert [await recent(), await recent()] == ["no answer in time"] * 2

    async def test_who_leaves_does_not_have_it_made_again(self) -> None:
        """So a client that asks and goes, and asks and goes, burdens nothing."""
        made: list[int] = []

        async def hanging() -> None:
            made.append(1)
            await anyio.sleep_forever()

        recent = Recent(hanging, limit_s=1_000, keep_s=1_000)
        for _ in range(3):
            with anyio.move_on_after(0.01):
                await recent()
        assert await recent() == "not known yet"
        assert made == [1]
