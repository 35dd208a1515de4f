"""The HTTP port over TCP: what it answers, and that no client holds it up (contract §10)."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import httpx2
import pytest
from structlog.testing import capture_logs

from nexus.core.errors import ConfigError, StoreUnavailableError
from nexus.http.server import CachedCheck, Check, create_app, serving
from tests.nexus.support.waiting import PATIENCE_S

SECRET = "hunter2-canary"


async def passing() -> None:
    """A check that finds nothing wrong."""


def nothing(_checks: Mapping[str, bool]) -> bytes:
    """No metrics."""
    return b""


@asynccontextmanager
async def opened(
    metrics: Callable[[Mapping[str, bool]], bytes] = nothing, check_s: float = PATIENCE_S, **checks: Check
) -> AsyncIterator[int]:
    """A port that answers, and closes in time after everything that a test does."""
    with anyio.fail_after(2 * PATIENCE_S):
        async with serving(create_app(checks, metrics, check_s=check_s), "127.0.0.1", 0) as port:
            yield port


async def request(port: int, path: str, method: str = "GET") -> httpx2.Response:
    """The answer on a new connection."""
    async with httpx2.AsyncClient(timeout=PATIENCE_S) as client:
        return await client.request(method, f"http://127.0.0.1:{port}{path}")


class TestAnswers:
    """Each path, by GET and HEAD."""

    async def test_livez_does_not_depend_on_checks(self) -> None:
        """200 as long as the process answers at all."""
        async with opened(bus=anyio.sleep_forever) as port:
            response = await request(port, "/livez?verbose=1")
        assert (response.status_code, response.json()) == (200, {"status": "ok"})
        assert response.headers["cache-control"] == "no-store"

    async def test_readyz_says_which_check_failed(self) -> None:
        """503 with the reason: returned by a check, raised by it, or that it took too long."""

        async def refused() -> None:
            raise StoreUnavailableError("the server did not answer")

        async def stopping() -> str:
            return "the service is stopping"

        async with opened(check_s=0.05, bus=passing, database=refused, running=stopping, x=anyio.sleep_forever) as port:
            response = await request(port, "/readyz")
        assert response.status_code == 503
        assert response.json() == {
            "status": "unavailable",
            "checks": {
                "bus": "ok",
                "database": "the server did not answer",
                "running": "the service is stopping",
                "x": "no answer in time",
            },
        }

    async def test_metrics_are_in_the_format_of_prometheus(self) -> None:
        """The bytes that are given, with their content type; they may tell which checks are well."""

        async def silent() -> str:
            return "silent"

        async with opened(lambda checks: repr(checks).encode(), bus=silent, database=passing) as port:
            response = await request(port, "/metrics")
        assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert response.content == b"{'bus': False, 'database': True}"

    @pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics"])
    async def test_head_has_no_body(self, path: str) -> None:
        """The status of GET alone: 200 where all checks pass."""
        async with opened(bus=passing) as port:
            response = await request(port, path, "HEAD")
        assert (response.status_code, response.content) == (200, b"")

    async def test_a_fault_of_ours_is_500_and_quotes_nothing(self) -> None:
        """Neither the answer nor the log has the text of the exception."""

        async def broken() -> None:
            raise ValueError(SECRET)

        def unreadable(_checks: Mapping[str, bool]) -> bytes:
            raise ValueError(SECRET)

        with capture_logs() as lines:
            async with opened(unreadable, bus=broken) as port:
                responses = [await request(port, path) for path in ("/readyz", "/metrics", "/livez")]
        assert [response.status_code for response in responses] == [500, 500, 200]
        assert SECRET not in "".join(response.text for response in responses)
        assert [line["event"] for line in lines] == ["http_listening", "http_failed", "http_failed"]


class TestRefusals:
    """Requests that are none of the three."""

    @pytest.mark.parametrize("path", ["/", "/healthz", "/console", "/%2e%2e/livez"])
    async def test_unknown_paths_are_404(self, path: str) -> None:
        """In JSON as everything else."""
        async with opened() as port:
            response = await request(port, path)
        assert (response.status_code, response.json()) == (404, {"status": "not found"})

    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "BREW"])
    async def test_other_methods_are_405(self, method: str) -> None:
        """The answer names those that are allowed."""
        async with opened() as port:
            response = await request(port, "/livez", method)
        assert response.status_code == 405
        assert set(response.headers["allow"].split(", ")) == {"GET", "HEAD"}


class TestHostileClients:
    """No client keeps the next probe from its answer."""

    async def test_bytes_that_are_not_http(self) -> None:
        """400, or the end of the connection."""
        async with opened() as port:
            for sent in (b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00" * 50, b"GET /" + b"x" * 100_000, b"\x00" * 10_000):
                async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                    await stream.send(sent)
            assert (await request(port, "/livez")).status_code == 200

    async def test_silent_connections_do_not_keep_out_a_probe(self) -> None:
        """Idle ones and half a request; the end of the service does not wait for them either."""
        async with AsyncExitStack() as clients, opened() as port:
            for number in range(200):
                stream = await clients.enter_async_context(await anyio.connect_tcp("127.0.0.1", port))
                if number % 2:
                    await stream.send(b"GET /livez HTTP/1.1\r\n")
            assert (await request(port, "/livez")).status_code == 200

    async def test_a_client_that_does_not_read(self) -> None:
        """Neither other clients nor the end of the service wait for it."""
        async with opened(metrics=lambda _checks: bytes(32 << 20)) as port:
            stream = await anyio.connect_tcp("127.0.0.1", port)
            await stream.send(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await stream.receive()).startswith(b"HTTP/1.1 200")
            assert (await request(port, "/livez")).status_code == 200
        await stream.aclose()


class TestListening:
    """Which port is taken, and the fault when it cannot be."""

    async def test_a_port_that_is_taken(self) -> None:
        """One line that names the setting."""
        async with opened() as port:
            with pytest.raises(ConfigError) as caught:
                async with serving(create_app({}, nothing), "127.0.0.1", port):
                    pass
        assert str(caught.value) == (
            f"system.http_port: cannot listen on port {port} of system.http_host '127.0.0.1': "
            "address already in use; 0 takes a free port"
        )

    @pytest.mark.parametrize("host", ["256.256.256.256", "a..b", "192.0.2.1"])
    async def test_a_host_that_is_not_of_this_machine(self, host: str) -> None:
        """One line that names that setting."""
        with pytest.raises(ConfigError, match=r"^system\.http_host: cannot listen on "):
            async with serving(create_app({}, nothing), host, 0):
                pass

    async def test_a_name_and_a_port_that_was_just_left(self) -> None:
        """A service that starts anew gets its port at once."""
        async with serving(create_app({}, nothing), "localhost", 0) as port:
            assert (await request(port, "/livez")).status_code == 200
        async with serving(create_app({}, nothing), "127.0.0.1", port):
            assert (await request(port, "/livez")).status_code == 200


class TestCachedCheck:
    """A check that runs once in a while, however often it is asked."""

    async def test_many_callers_share_one_run(self) -> None:
        """Also when they come at once, or give up: impatient probes burden no server."""
        runs: list[int] = []

        async def hanging() -> None:
            runs.append(1)
            await anyio.sleep_forever()

        cached = CachedCheck(hanging, limit_s=1_000, keep_s=1_000)
        with anyio.move_on_after(0.01):
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(cached)
        assert await cached() == "not known yet"
        assert runs == [1]

    async def test_it_runs_again_when_its_outcome_is_old(self) -> None:
        """With `keep_s` 0, each time; a check that hangs is cut off."""
        outcomes = iter(["gone", None])

        async def check() -> str | None:
            outcome = next(outcomes)
            await (anyio.lowlevel.checkpoint() if outcome else anyio.sleep_forever())
            return outcome

        cached = CachedCheck(check, limit_s=0.01, keep_s=0)
        assert [await cached(), await cached()] == ["gone", "no answer in time"]
