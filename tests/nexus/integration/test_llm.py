"""The adapter for language models at a real HTTP server: requests, answers, secrets."""

import gzip
import json
import ssl
import sys
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
import trustme
from anyio.abc import SocketAttribute
from anyio.streams.tls import TLSListener
from structlog.testing import capture_logs

from nexus.adapters.llm import open_llm
from nexus.config import LlmSettings
from nexus.connections import open_model
from nexus.core.concurrency import ungrouped
from nexus.core.errors import ConfigError, ModelUnavailableError, PromptTooLongError
from tests.nexus.support.model_asked import KEY, LIMITS, SCHEMA, WELL, ask, asked, refusal
from tests.nexus.support.model_behaviours import body, flooding, good, status
from tests.nexus.support.model_exchange import Exchange
from tests.nexus.support.model_server import HOST, ModelServer, model_server

pytestmark = pytest.mark.once

PROGRAM: Final = """
import sys, anyio
from nexus.config import LlmSettings
from nexus.connections import open_model

async def main():
    async with open_model(LlmSettings(base_url=sys.argv[1], model="m")) as model:
        print((await model.complete("JSON", "?", schema={}, schema_name="x")).text)

anyio.run(main)
"""


async def said_elsewhere(base_url: str, environment: dict[str, str]) -> str:
    """A model's reply to a process with these variables and no others."""
    done = await anyio.run_process([sys.executable, "-c", PROGRAM, base_url], env=environment)
    return done.stdout.decode().strip()


class TestWhatIsSent:
    """A request has the fields that it must have, and none of the process that sends it."""

    async def test_the_request(self) -> None:
        """Model, messages and the schema that the answer is to follow, on the one path."""
        async with asked() as (model, server):
            assert await ask(model) == WELL
        (call,) = server.asked
        assert (call.method, call.path) == ("POST", "/v1/chat/completions")
        schema = {"name": "answer", "schema": SCHEMA, "strict": True}
        assert call.body == {
            "model": "m",
            "messages": [{"role": "system", "content": "Answer with JSON."}, {"role": "user", "content": "?"}],
            "response_format": {"type": "json_schema", "json_schema": schema},
        }

    async def test_the_header_fields(self) -> None:
        """Those that HTTP needs and the key; nothing of the machine, the SDK or the time limits."""
        async with asked() as (model, server):
            await ask(model)
        headers = dict(server.asked[0].headers)
        assert headers.pop("content-length")
        assert headers == {
            "host": f"{HOST}:{server.port}",
            "accept": "application/json",
            "accept-encoding": "identity",
            "authorization": f"Bearer {KEY}",
            "connection": "keep-alive",
            "content-type": "application/json",
            "user-agent": "nexus",
        }

    async def test_without_a_key(self) -> None:
        """No login is sent; or that of the address, which keeps its options."""
        async with asked(key="") as (model, server):
            await ask(model)
            address = f"http://ada:p%40ss@{HOST}:{server.port}/v1?api-version=1"
            async with open_llm(address, "", "m", LIMITS) as other:
                await ask(other)
        first, second = server.asked
        assert "authorization" not in first.headers
        assert second.headers["authorization"] == "Basic YWRhOnBAc3M="
        assert second.path == "/v1/chat/completions?api-version=1"

    async def test_nothing_comes_from_the_environment(self) -> None:
        """No variable of the SDK counts, also where a setting is empty."""
        names = ("API_KEY", "ADMIN_KEY", "ORG_ID", "PROJECT_ID", "WEBHOOK_SECRET")
        environment = {f"OPENAI_{name}": f"canary-{name}" for name in names}
        environment |= {"OPENAI_BASE_URL": "http://127.0.0.1:1", "OPENAI_CUSTOM_HEADERS": "X-Canary: canary"}
        async with model_server() as server:
            assert await said_elsewhere(server.base_url, environment) == WELL
        assert "canary" not in json.dumps([dict(call.headers) for call in server.asked])
        assert "authorization" not in server.asked[0].headers

    async def test_a_connection_is_used_again(self) -> None:
        """By calls that come one after the other."""
        async with asked() as (model, server):
            for _ in range(5):
                await ask(model)
        assert server.connections == 1

    async def test_certificates(self, tmp_path: Path) -> None:
        """An untrusted one is named as the reason, and nothing is sent; SSL_CERT_FILE names trusted authorities."""
        authority, context = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert(HOST).configure_cert(context)
        authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        server = ModelServer(good())
        plain = await anyio.create_tcp_listener(local_host=HOST)
        listener = TLSListener(plain, context, standard_compatible=False)
        address = f"https://{HOST}:{plain.extra(SocketAttribute.local_port)}/v1"  # noqa: S610  # not Django's
        with ungrouped():
            async with listener, anyio.create_task_group() as tasks:
                tasks.start_soon(listener.serve, server.serve)  # type: ignore[arg-type]  # a TLS stream will do
                async with open_llm(address, KEY, "m", LIMITS) as model:
                    assert await refusal(model) == "the certificate of the endpoint is not trusted"
                assert not server.asked
                assert await said_elsewhere(address, {"SSL_CERT_FILE": str(tmp_path / "ca.pem")}) == WELL
                tasks.cancel_scope.cancel()


NO_ANSWERS: Final[dict[str, tuple[bytes, str]]] = {
    "a page": (b"<html>Welcome</html>", "text/html"),
    "a page that claims to be JSON": (b"<html>Welcome</html>", "application/json"),
    "half an answer": (b'{"choices": [{"message": {"content": "wel', "application/json"),
    "nothing": (b"", "application/json"),
    "no UTF-8": (b'{"choices": "\xff\xfe"}', "application/json"),
    "null": (b"null", "application/json"),
    "a list": (b"[]", "application/json"),
    "a number": (b"5", "application/json"),
    "another object": (b'{"greeting": "hello"}', "application/json"),
    "no choices": (b'{"choices": []}', "application/json"),
    "choices that are none": (b'{"choices": {"message": 1}}', "application/json"),
    "a choice without a message": (b'{"choices": [{"text": "well"}]}', "application/json"),
    "a choice that is null": (b'{"choices": [null]}', "application/json"),
    "an endless nest": (b"[" * 100_000, "application/json"),
    "an endless nest in an answer": (b'{"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "application/json"),
    "a stream": (b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n', "text/event-stream"),
}


class TestAnswers:
    """Bodies with the status of a success."""

    async def test_what_is_no_answer(self) -> None:
        """It is said that it is none, once; the next call is made."""
        async with asked(*(body(content, kind) for content, kind in NO_ANSWERS.values())) as (model, server):
            for called, name in enumerate(NO_ANSWERS, 1):
                assert await refusal(model) == "the answer is no chat completion", name
                assert len(server.asked) == called
            assert await ask(model) == WELL

    async def test_a_content_of_another_kind(self) -> None:
        """Nothing is empty, and parts are put together."""
        thought = {"type": "thinking", "thinking": []}
        contents: dict[str, list[Any]] = {
            "": [None, 5, [{"type": "text"}, "x", None, {"type": "text", "text": 5}]],
            "well": [[thought, {"type": "text", "text": "we"}, {"type": "text", "text": "ll"}]],
        }
        for text, given in contents.items():
            for content in given:
                answer = {"choices": [{"message": {"content": content}, "finish_reason": "length"}]}
                async with asked(body(json.dumps(answer).encode())) as (model, _):
                    assert await ask(model) == text

    async def test_errors_with_the_status_of_a_success(self) -> None:
        """As LM Studio and gateways send them: a prompt that does not fit, and another error."""
        too_long = body(b'{"error": "tokens to keep from the prompt is greater than the context length"}')
        overloaded = body(b'{"error": {"message": "overloaded", "code": 529}, "choices": null}')
        async with asked(too_long, overloaded) as (model, _):
            with pytest.raises(PromptTooLongError):
                await ask(model)
            assert await refusal(model) == "an error in the place of an answer"

    @pytest.mark.parametrize("code", [200, 500])
    async def test_an_answer_without_end(self, code: int) -> None:
        """It is read up to the limit, and no further, with any status."""

        async def behave(exchange: Exchange) -> None:
            await exchange.begin(None, code)
            while True:
                await exchange.send(b" " * 65_536)

        async with asked(behave, flooding()) as (model, _):
            for _ in range(2):
                assert await refusal(model) == "the answer is longer than 1,048,576 bytes"
            assert await ask(model) == WELL

    async def test_a_compressed_answer(self) -> None:
        """It was not asked for, and could be of any length."""
        bomb = body(gzip.compress(bytes(10_000_000)), content_encoding="gzip")
        async with asked(bomb) as (model, _):
            assert await refusal(model) == "a compressed answer, which was not asked for"

    async def test_a_redirection(self) -> None:
        """It is not followed: the key goes where the settings say."""
        async with asked(status(307, location="/elsewhere/chat/completions")) as (model, server):
            assert await refusal(model) == "307 Temporary Redirect"
            assert len(server.asked) == 1


class TestSecrets:
    """The key, and user and password of the address, are sent to the endpoint alone."""

    async def test_errors_and_logs(self) -> None:
        """They do not have it, however the endpoint repeats it."""
        behaviours = (
            status(401, {"message": f"Incorrect API key provided: {KEY}", "code": KEY, "type": KEY}),
            status(400, f"no {KEY}"),
            body(KEY.encode(), "text/plain"),
            body(json.dumps({"error": KEY}).encode()),
        )
        said: list[str] = []
        with capture_logs() as lines:
            async with asked() as (model, server):
                address = f"http://user:{KEY}@{HOST}:{server.port}/v1"
                async with open_llm(address, KEY, "m", LIMITS) as other:
                    for server.behaviour in behaviours:
                        said += [repr(model), repr(other), await refusal(model), await refusal(other)]
        assert lines
        assert KEY not in json.dumps([*said, *lines])

    @pytest.mark.parametrize(("base_url", "key"), [(f"http://{KEY}:x/v1", ""), ("http://h/v1", f"{KEY}\r\nX: y")])
    async def test_settings_that_cannot_be_used(self, base_url: str, key: str) -> None:
        """They are refused when the model is opened, without being repeated."""
        with pytest.raises(ConfigError) as refused:
            async with open_llm(base_url, key, "m", LIMITS):
                pass
        assert KEY not in str(refused.value)


class TestOpening:
    """From settings."""

    @pytest.mark.parametrize("given", [{}, {"base_url": "http://h/v1"}, {"model": "m"}])
    async def test_none_is_configured(self, given: dict[str, str]) -> None:
        """There is none."""
        async with open_model(LlmSettings.model_validate(given)) as model:
            assert model is None

    async def test_nothing_is_loaded_in_vain(self) -> None:
        """The SDK is loaded only where a model is configured."""
        program = "import sys, nexus.cli; sys.exit(bool({'openai', 'httpx2'} & {*sys.modules}))"
        assert (await anyio.run_process([sys.executable, "-c", program], check=False)).returncode == 0

    async def test_the_settings_hold(self) -> None:
        """Name, retries and time limit."""
        async with model_server(status(500)) as server:
            given = {"base_url": server.base_url, "model": "a model", "retries": 0, "breaker_failures": 1}
            async with open_model(LlmSettings.model_validate(given)) as model:
                assert model is not None
                assert model.name == "a model"
                with pytest.raises(ModelUnavailableError):
                    await model.complete("JSON", "?", schema=SCHEMA, schema_name="answer")
                assert model.resting_s > 0
            assert [call.body["model"] for call in server.asked] == ["a model"]
