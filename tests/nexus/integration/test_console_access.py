"""Who may see the console and change something there, over HTTP (contract §16)."""

import base64
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import anyio
import httpx2
import pytest
from pydantic import SecretStr
from pymongo import MongoClient
from structlog.testing import capture_logs

from nexus.bootstrap import open_nexus
from nexus.config import BusSettings, ConsoleSettings, DatabaseSettings, Settings, SystemSettings
from nexus.http.console.access import FORM_TOKEN, Access
from nexus.http.console.pages import FORMS, PAGES
from tests.nexus.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.once

TOKEN: Final = "hunter2-canary-0123-ü"
FORM: Final = Access(TOKEN, write=True).form_token
HEADERS: Final = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
# Forms of a console that has a token, with what allows them.
BEARER: Final = {"Authorization": f"Bearer {TOKEN}".encode()}
BODY: Final = {FORM_TOKEN: FORM, "letter:1-1": "on"}


@dataclass(frozen=True)
class Door:
    """A service that runs, as this machine and others reach it."""

    port: int

    async def ask(self, path: str, method: str = "GET", **options: Any) -> httpx2.Response:
        """The answer on a new connection; not that of where it leads."""
        async with httpx2.AsyncClient(timeout=PATIENCE_S) as client:
            return await client.request(method, f"http://127.0.0.1:{self.port}{path}", **options)

    async def form(self, headers: Mapping[str, Any] | None = None, **options: Any) -> httpx2.Response:
        """The answer to a form, which is as it should be but for what is given."""
        options = {"data": BODY} | options
        return await self.ask("/console/letters-send", "POST", headers={**BEARER, **(headers or {})}, **options)


# Asks a port of this machine at the address from which it would reach a network: tests themselves stay on loopback.
ELSEWHERE: Final = """
import http.client, json, socket, sys

port, asked = json.loads(sys.argv[1])
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    try:
        probe.connect(("192.0.2.1", 9))
    except OSError:
        sys.exit("no address but loopback")
    address = probe.getsockname()[0]
if address.startswith("127."):
    sys.exit("no address but loopback")
statuses = []
for path, headers in asked:
    connection = http.client.HTTPConnection(address, port, timeout=20)
    connection.request("GET", path, headers={"Host": address} | headers)
    statuses.append(connection.getresponse().status)
    connection.close()
print(json.dumps(statuses))
"""


async def asked_elsewhere(door: Door, *asked: tuple[str, Mapping[str, str]]) -> list[int]:
    """The statuses of answers to paths and headers, asked from another address than loopback."""
    words = json.dumps([door.port, asked])
    done = await anyio.run_process([sys.executable, "-c", ELSEWHERE, words], check=False)
    if b"no address but loopback" in done.stderr:
        pytest.skip("this machine has no address but loopback")
    found: list[int] = json.loads(done.stdout)
    return found


@asynccontextmanager
async def opened(mongo_uri: str, database_name: str, host: str = "127.0.0.1", **console: Any) -> AsyncIterator[Door]:
    """A service with such a console."""
    settings = Settings(
        bus=BusSettings(mode="memory"),
        database=DatabaseSettings(uri=SecretStr(mongo_uri), name=database_name),
        system=SystemSettings(http_host=host, drain_seconds=0),
        console=ConsoleSettings(**console),
    )
    async with open_nexus(settings) as nexus:
        yield Door(nexus.http_port)


def basic(name: str, password: str) -> dict[str, str]:
    """The header by which a browser sends a name and a password."""
    return {"Authorization": f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"}


async def test_without_a_token_this_machine_alone_is_answered(mongo_uri: str, prepared_database: str) -> None:
    """By a name of its own: neither under that of another site nor by a proxy."""
    async with opened(mongo_uri, prepared_database) as door:
        for host in ("localhost", "LOCALHOST", "127.0.0.1", "127.8.8.8", "[::1]", "[::ffff:127.0.0.1]", "localhost:8"):
            answer = await door.ask("/console/live", headers={"Host": host})
            assert (host, answer.status_code) == (host, 200)
        for headers in (
            {"Host": "evil.example"},
            {"Host": "localhost.evil.example"},
            {"Host": "127.0.0.1.evil.example"},
            {"Host": "localhost@evil.example"},
            {"Host": "[::1"},
            {"Host": "10.0.0.1"},
            {"Host": "evil.example@127.0.0.1"},
            {"Host": "localhost/evil"},
            {"X-Forwarded-For": "127.0.0.1"},
            {"X-Forwarded-For": ""},
            {"X-Real-IP": "127.0.0.1"},
            {"Forwarded": "for=127.0.0.1"},
            {"Via": "1.1 proxy"},
        ):
            answer = await door.ask("/console/live", headers=headers)
            assert (headers, answer.status_code) == (headers, 401)
            # A browser is not to ask for a token that there is not.
            assert "www-authenticate" not in answer.headers


async def test_another_address_needs_the_token(mongo_uri: str, prepared_database: str) -> None:
    """Whatever it says of itself; where there is none it is not answered. What others ask for stays as it is."""
    claims: list[Mapping[str, str]] = [
        {},
        {"Host": "localhost"},
        {"Host": "127.0.0.1"},
        {"Host": "localhost", "X-Forwarded-For": "127.0.0.1"},
        {"X-Forwarded-For": "127.0.0.1"},
        {"Host": "localhost", "Forwarded": "for=127.0.0.1;host=localhost"},
        {"Authorization": "Bearer "},
    ]
    others = [(path, claims[0]) for path in ("/livez", "/readyz", "/metrics")]
    pages = [("/console/", claim) for claim in claims]
    for token in ("", TOKEN):
        async with opened(mongo_uri, prepared_database, "0.0.0.0", token=SecretStr(token)) as door:  # noqa: S104  # as in a container
            assert await asked_elsewhere(door, *pages, *others) == [401] * len(claims) + [200] * 3
            given = [basic("", TOKEN), basic("ada", TOKEN) | {"X-Forwarded-For": "1.2.3.4", "Host": "nexus.example"}]
            answered = await asked_elsewhere(door, *(("/console/", headers) for headers in given))
            assert answered == ([200, 200] if token else [401, 401])
            if token:
                for headers in (BEARER, *given):
                    assert (await door.ask("/console/", headers=headers)).status_code == 200


async def test_another_token_opens_nothing(mongo_uri: str, prepared_database: str) -> None:
    """However near: one answer, which asks for the token and tells nothing of it or of the pages there are."""
    wrong: list[Mapping[str, Any]] = [
        {},
        *(
            {"Authorization": value.encode()}
            for value in (
                "",
                "Bearer",
                f"Bearer {TOKEN[:-1]}",
                f"Bearer {TOKEN}x",
                f"Bearer {TOKEN.upper()}",
                f"Bearer {'x' * 10_000}",
                f"Digest {TOKEN}",
                TOKEN,
                "Basic",
                "Basic ###",
                "Basic " + base64.b64encode(TOKEN.encode()).decode(),
            )
        ),
        basic("", ""),
        basic(TOKEN, ""),
        basic("a", f"{TOKEN}:"),
        basic("a", f":{TOKEN}"),
        {"Cookie": f"token={TOKEN}".encode()},
    ]
    async with opened(mongo_uri, prepared_database, token=SecretStr(TOKEN), write=True) as door:
        answers = [await door.ask(path, headers=given) for given in wrong for path in ("/console/live", "/console/no")]
        answers += [await door.ask(f"/console/{path}") for path in (f"?token={TOKEN}", "console.css", "a/../live")]
        answers += [await door.ask("/console/letters-send", "POST", data=BODY)]
        assert {answer.status_code for answer in answers} == {401}
        assert len({answer.content for answer in answers}) == 1
        assert {answer.headers["www-authenticate"] for answer in answers} == {
            'Basic realm="Nexus console", charset="UTF-8"'
        }
        assert TOKEN not in answers[0].text


@pytest.mark.parametrize("token", ["", TOKEN])
async def test_every_answer_has_its_headers(mongo_uri: str, prepared_database: str, token: str) -> None:
    """No script, no storing, no frame; whatever is asked for, in whatever way."""
    asked = {
        ("GET", ""): 200,
        ("GET", "/"): 200,
        ("HEAD", "/live"): 200,
        ("GET", "/console.css?v=1"): 200,
        ("GET", "/no"): 404,
        ("GET", "/live/"): 404,
        ("GET", "/%2e%2e/livez"): 404,
        ("GET", "/static/console.css"): 404,
        ("GET", "/letters-send"): 405,
        ("POST", "/live"): 405,
        ("POST", "/no"): 404,
        ("PUT", "/live"): 405,
        ("BREW", "/live"): 405,
        ("OPTIONS", "/live"): 405,
        ("POST", "/letters-send"): 403,
        ("GET", "/letter?id=x"): 404,
    }
    async with opened(mongo_uri, prepared_database, token=SecretStr(token)) as door:
        for (method, path), status in asked.items():
            for headers, expected in ((BEARER, status), ({"X-Forwarded-For": "1.2.3.4"}, 401)):
                answer = await door.ask(f"/console{path}", method, headers=headers)
                assert (method, path, answer.status_code) == (method, path, expected)
                assert HEADERS.items() <= answer.headers.items()
                policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
                assert (policy["default-src"], policy["style-src"]) == ("'none'", "'self'")
                assert "script-src" not in policy
                assert "set-cookie" not in answer.headers
                assert (answer.content == b"") == (method == "HEAD")
                if expected == 405:
                    assert answer.headers["allow"] == ("POST" if "send" in path else "GET, HEAD")


async def test_forms_of_others_change_nothing(mongo_uri: str, prepared_database: str) -> None:
    """Without the console's token, from another site, too long, or none at all: refused, each with the reason."""
    async with opened(mongo_uri, prepared_database, token=SecretStr(TOKEN), write=True) as door:
        here = f"127.0.0.1:{door.port}"
        accepted = [
            await door.form(),
            await door.form({"Origin": f"http://{here}", "Sec-Fetch-Site": "same-origin"}),
            await door.form({"Origin": f"https://{here}"}),
        ]
        assert [answer.headers.get("location") for answer in accepted] == ["/console/letters?not_found=1"] * 3
        foreign = {
            "token": [{}, {FORM_TOKEN: ""}, {FORM_TOKEN: FORM[:-1]}, {FORM_TOKEN: TOKEN}, {FORM_TOKEN: "ü"}],
            "site": [
                {"Origin": "http://evil.example"},
                {"Origin": "null"},
                {"Origin": f"http://{here}.evil.example"},
                {"Origin": "http://127.0.0.1:1"},
                {"Origin": "http://[::1"},
                {"Sec-Fetch-Site": "cross-site"},
                {"Sec-Fetch-Site": "same-site"},
                {"Sec-Fetch-Site": "none", "Origin": "null"},
            ],
        }
        with capture_logs() as logs:
            answers = [await door.form(data={"letter:1-1": "on", **fields}) for fields in foreign["token"]]
            answers += [await door.form(headers) for headers in foreign["site"]]
            assert [answer.status_code for answer in answers] == [403] * len(answers)
            wrong = [
                await door.form(content=b"\xff=1"),
                await door.form(data={**BODY, **{f"f{number}": "" for number in range(1_000)}}),
                await door.form(data={**BODY, "text": "x" * (1 << 21)}),
                await door.form(data=None, json=BODY),
            ]
            assert [answer.status_code for answer in wrong] == [400, 400, 413, 403]
        assert logs == []


async def test_nothing_is_changed_where_that_is_off(mongo_uri: str, prepared_database: str) -> None:
    """Every form is refused without console.write, and without a token of the console."""
    async with opened(mongo_uri, prepared_database, token=SecretStr(TOKEN)) as door:
        for form in FORMS:
            answer = await door.ask(f"/console/{form}", "POST", headers=BEARER, data=BODY)
            assert (form, answer.status_code, "console.write is off" in answer.text) == (form, 403, True)
    async with opened(mongo_uri, prepared_database, write=True) as door:
        for form in FORMS:
            answer = await door.ask(f"/console/{form}", "POST", data=BODY)
            assert (form, answer.status_code, "out of date" in answer.text) == (form, 403, True)


async def test_a_change_is_logged_with_who(mongo_uri: str, prepared_database: str) -> None:
    """By the name that was given to the browser, of what can be printed, else by the address; no token."""
    async with opened(mongo_uri, prepared_database, token=SecretStr(TOKEN), write=True) as door:
        with capture_logs() as logs:
            for headers in (basic("ada\n\x1b[31m" + "x" * 100, TOKEN), BEARER):
                assert (await door.form(headers)).status_code == 303
    assert [(line["event"], line["who"]) for line in logs if line["event"] == "console_changed"] == [
        ("console_changed", "ada[31m" + "x" * 55),
        ("console_changed", "127.0.0.1"),
    ]
    assert TOKEN not in repr(logs)


async def test_without_the_console(
    mongo_uri: str, prepared_database: str, mongo_janitor: MongoClient[dict[str, Any]]
) -> None:
    """404 as for any address; the service is as well as before, and tells no other what it does."""
    async with opened(mongo_uri, prepared_database, enabled=False) as door:
        for path in ("/console", "/console/", *(f"/console/{page}" for page in PAGES)):
            answer = await door.ask(path)
            assert (answer.status_code, answer.json()) == (404, {"status": "not found"})
        assert (await door.ask("/readyz")).status_code == 200
    assert mongo_janitor[prepared_database]["replicas"].count_documents({}) == 0


async def test_each_replica_shows_all(
    mongo_uri: str, prepared_database: str, mongo_janitor: MongoClient[dict[str, Any]]
) -> None:
    """Within some seconds, as long as it runs."""
    collection = mongo_janitor[prepared_database]["replicas"]
    async with opened(mongo_uri, prepared_database) as one:
        async with opened(mongo_uri, prepared_database) as other:

            async def both() -> bool:
                return collection.count_documents({}) == 2

            await until(both)
            names = [each["replica_id"] for each in collection.find()]
            for door in (one, other):
                page = (await door.ask("/console/live")).text
                assert [page.count(name) for name in names] == [1, 1]
        assert collection.count_documents({}) == 1
    assert collection.count_documents({}) == 0
