"""The adapter for an endpoint of embeddings at a HTTP server: what is asked, codes, hostile replies, secrets."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import pytest
from structlog.testing import capture_logs

from nexus.adapters.embedders.endpoint import EmbeddingModel, EndpointEmbedder, open_endpoint
from nexus.adapters.embedders.texts import SAMPLES
from nexus.config import RecallSettings
from nexus.connections import open_embedder
from nexus.core.errors import ConfigError, ModelUnavailableError
from tests.nexus.support.embedding_behaviours import DIMENSIONS, embedding, of_data, vector_of
from tests.nexus.support.model_behaviours import Behaviour, body, flooding, silent, status, trickling
from tests.nexus.support.model_exchange import Exchange
from tests.nexus.support.model_server import ModelServer, model_server
from tests.nexus.support.redis_server import free_port
from tests.nexus.support.waiting import PATIENCE_S

pytestmark = pytest.mark.once

KEY: Final = "sk-hunter2-canary"
TEXT: Final = "my knee hurts after the run"
PLAIN: Final = EmbeddingModel("m")


@asynccontextmanager
async def asked(
    behaviour: Behaviour | None = None,
    model: EmbeddingModel = PLAIN,
    *,
    timeout_s: float = PATIENCE_S,
    question_s: float = PATIENCE_S,
) -> AsyncIterator[tuple[EndpointEmbedder, ModelServer]]:
    """An embedder, and the server that it asks."""
    async with (
        model_server(behaviour or embedding()) as server,
        open_endpoint(server.base_url, KEY, model, timeout_s=timeout_s, question_s=question_s) as embedder,
    ):
        yield embedder, server


def distance(one: bytes, other: bytes) -> int:
    """As the formula compares codes."""
    return (int.from_bytes(one) ^ int.from_bytes(other)).bit_count()


def with_first(change: Callable[[dict[str, Any]], Any]) -> Behaviour:
    """A good answer but for the first item of its data."""
    return of_data(lambda data: [{**data[0], **change(data[0])}, *data[1:]])


class TestCodes:
    """What becomes of a text."""

    async def test_near_texts_have_near_codes(self) -> None:
        """Although all vectors are in one corner, where signs alone would be the same for all."""
        async with asked() as (embedder, _):
            near, far, same = await embedder.codes_of_texts(["my knee hurts a lot", "we had pizza in Rome", TEXT])
            code = await embedder.code_of_question(TEXT)
        assert len(code) == DIMENSIONS // 8
        assert code == same
        assert distance(code, near) < distance(code, far) - 20

    async def test_the_bits(self) -> None:
        """The first number of a vector is the highest bit, and is set where the number is above the centre's."""
        numbers = {TEXT: [2.0, 0, 0, 0, 0, 0, 0, 0, 3.0]}
        async with asked(embedding(lambda text: numbers.get(text, [1.0] * 9))) as (embedder, _):
            assert await embedder.codes_of_texts([TEXT]) == [bytes([1, 0b00000001])]

    async def test_both_forms_of_numbers(self) -> None:
        """A server that knows no base64 sends decimals, and the codes are the same."""
        codes = []
        for form in (None, list):
            async with asked(embedding(form=form)) as (embedder, _):
                codes.append(await embedder.codes_of_texts([TEXT, "x"]))
        assert codes[0] == codes[1]

    async def test_two_replicas_agree(self) -> None:
        """Each asks for the centre by itself, also where many calls begin together."""
        async with (
            asked() as (one, server),
            open_endpoint(server.base_url, "", PLAIN, timeout_s=PATIENCE_S, question_s=PATIENCE_S) as other,
        ):
            found: list[bytes] = []

            async def ask() -> None:
                found.append(await other.code_of_question(TEXT))

            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(ask)
            assert {*found} == {*await one.codes_of_texts([TEXT])}
            assert one.generation == other.generation

    @pytest.mark.parametrize(
        "text", ["", "膝盖疼", "🦵🏽 ouch", "half a \ud83d pair", "\x00", "word " * 20_000, "好" * 20_000]
    )
    async def test_odd_texts(self, text: str) -> None:
        """Each has a code; of a long one the beginning is sent, in few bytes."""
        async with asked() as (embedder, server):
            (code,) = await embedder.codes_of_texts([text])
        assert len(code) == DIMENSIONS // 8
        (sent,) = server.asked[-1].body["input"]
        assert len(sent) <= 1_000
        assert len(sent.encode()) <= 1_500
        assert sent.startswith(text[:4].encode(errors="replace").decode())


class TestWhatIsAsked:
    """Requests."""

    async def test_batches(self) -> None:
        """Few texts a call, in order; the samples are asked for once."""
        texts = [f"text {number}" for number in range(70)]
        async with asked() as (embedder, server):
            codes = await embedder.codes_of_texts(texts)
            assert await embedder.codes_of_texts([]) == []
            assert codes[64] == (await embedder.codes_of_texts(["text 64"]))[0]
        assert [len(call.body["input"]) for call in server.asked] == [32, 32, 32, 6, 1]
        assert server.asked[0].body == {"input": [*SAMPLES], "model": "m", "encoding_format": "base64"}
        assert {(call.path, call.headers["authorization"]) for call in server.asked} == {
            ("/v1/embeddings", f"Bearer {KEY}")
        }

    async def test_prefixes(self) -> None:
        """They stand before each text and question, and are part of the generation."""
        model = EmbeddingModel("m", "query: ", "passage: ")
        async with asked(model=model) as (embedder, server):
            await embedder.codes_of_texts([TEXT])
            await embedder.code_of_question(TEXT)
        said = [call.body["input"][0] for call in server.asked]
        assert said == [f"passage: {SAMPLES[0]}", f"passage: {TEXT}", f"query: {TEXT}"]

    def test_generations(self) -> None:
        """All that codes depend on tells them apart, and whatever a model is called they are names."""
        models = [
            PLAIN,
            EmbeddingModel("m", "a"),
            EmbeddingModel("m", "", "a"),
            EmbeddingModel("intfloat/multilingual-e5-small"),
            EmbeddingModel("intfloat_multilingual-e5-small"),
            EmbeddingModel("模型/" * 60),
            EmbeddingModel("模型/" * 61),
        ]
        generations = [model.generation for model in models]
        assert len({*generations}) == len(models)
        assert all(re.fullmatch(r"[A-Za-z0-9._-]{1,64}", generation) for generation in generations)
        assert EmbeddingModel("m").generation == PLAIN.generation


HOSTILE: Final[dict[str, tuple[Behaviour, str]]] = {
    "fewer": (of_data(lambda data: data[1:]), "vectors for "),
    "more": (of_data(lambda data: [*data, data[0]]), "vectors for "),
    "none": (of_data(lambda _: []), ""),
    "no list": (of_data(lambda data: data[0]), "the answer is no list of vectors"),
    "null": (of_data(lambda _: None), ""),
    "items of text": (of_data(lambda data: ["x"] * len(data)), "the answer is no list of vectors"),
    "no index": (of_data(lambda data: [{"embedding": each["embedding"]} for each in data]), "do not say of which"),
    "one index": (of_data(lambda data: [{**each, "index": 0} for each in data]), "do not say of which texts"),
    "odd index": (with_first(lambda _: {"index": "0"}), "do not say of which texts"),
    "strings": (of_data(lambda data: [{**each, "embedding": ["1.0"] * 8} for each in data]), "else than numbers"),
    "no base64": (of_data(lambda data: [{**each, "embedding": "AAAA!"} for each in data]), "else than numbers"),
    "cut base64": (of_data(lambda data: [{**each, "embedding": "AAAAAAA="} for each in data]), "else than numbers"),
    "objects": (of_data(lambda data: [{**each, "embedding": {"x": 1}} for each in data]), "a vector of 0 numbers"),
    "nested": (of_data(lambda data: [{**each, "embedding": [[1.0]]} for each in data]), "else than numbers"),
    "empty": (of_data(lambda data: [{**each, "embedding": []} for each in data]), "a vector of 0 numbers"),
    "huge": (of_data(lambda data: [{**each, "embedding": [1] * 16_385} for each in data]), "a vector of 16385 numbers"),
    "huge number": (of_data(lambda data: [{**each, "embedding": [10**400]} for each in data]), ""),
    "two lengths": (of_data(lambda data: [{**each, "embedding": [1.0] * (1 + each["index"])} for each in data]), ""),
    "other length": (
        of_data(lambda data: [{**each, "embedding": [1.0]} for each in data]),
        "vectors of 1 numbers, and",
    ),
    "html": (body(b"<html>hello</html>", "text/html"), "the answer is no list of vectors"),
    "half": (body(b'{"data": [{"ind'), "the answer is no list of vectors"),
    "list": (body(b"[1, 2]"), ""),
    "deep": (body(b"[" * 100_000), "the answer is no list of vectors"),
    "endless": (flooding(), "the answer is longer than 8,388,608 bytes"),
    "elsewhere": (status(302, location="http://127.0.0.1:1/v1"), "302"),
    "401": (status(401, f"{KEY} is wrong"), "401 Unauthorized"),
    "404": (status(404), "404 Not Found"),
    "429": (status(429, retry_after="0.01"), "429 Too Many Requests"),
    "503": (status(503), "503 Service Unavailable"),
}


class TestFailures:
    """Whatever comes back, there is either a right code or an error that says what is wrong."""

    @pytest.mark.parametrize("name", HOSTILE)
    @pytest.mark.parametrize("knows_centre", [True, False], ids=["later", "at first"])
    async def test_a_hostile_reply(self, name: str, knows_centre: bool) -> None:
        """It is an outage: nothing is recorded of it, neither the key nor a word of the reply shows."""
        behaviour, said = HOSTILE[name]
        async with asked() as (embedder, server):
            if knows_centre:
                await embedder.codes_of_texts(["x"])
            server.behaviour = behaviour
            if name == "other length" and not knows_centre:
                return
            with pytest.raises(ModelUnavailableError) as failure:
                await embedder.codes_of_texts([TEXT, "y"])
            assert said in str(failure.value)
            assert KEY not in str(failure.value)
            assert failure.value.__cause__ is None
            server.behaviour = embedding()
            assert len(await embedder.codes_of_texts([TEXT])) == 1

    @pytest.mark.parametrize("behaviour", [silent(), trickling()], ids=["silent", "trickling"])
    async def test_a_slow_reply(self, behaviour: Behaviour) -> None:
        """There is an end to it, for a question a sooner one."""
        async with asked(behaviour, timeout_s=0.2) as (embedder, _):
            with pytest.raises(ModelUnavailableError, match=r"no answer within 0\.2 s"):
                await embedder.codes_of_texts([TEXT])
        async with asked(timeout_s=600, question_s=0.2) as (embedder, server):
            await embedder.codes_of_texts([TEXT])
            server.behaviour = behaviour
            with pytest.raises(ModelUnavailableError, match=r"no answer within 0\.2 s"):
                await embedder.code_of_question(TEXT)

    async def test_a_slow_centre(self) -> None:
        """It may take longer than a question may: else it would never be known where questions come first."""

        async def slow(exchange: Exchange) -> None:
            if len(exchange.asked.body["input"]) == len(SAMPLES):
                await anyio.sleep(2.1)
            await embedding()(exchange)

        async with asked(slow, question_s=2) as (embedder, _):
            assert len(await embedder.code_of_question(TEXT)) == DIMENSIONS // 8

    @pytest.mark.parametrize("code", [400, 413, 422, 500])
    async def test_a_refused_text(self, code: int) -> None:
        """It is a fault of the text, since plain sentences are taken; neither it nor the reply is quoted."""
        async with asked(embedding(refused=lambda text: text == TEXT, status=code)) as (embedder, _):
            for _ in range(8):
                with pytest.raises(ValueError, match=f"the endpoint gives no vector of it: {code} ") as failure:
                    await embedder.codes_of_texts([TEXT])
            assert "knee" not in str(failure.value)
            assert len(await embedder.codes_of_texts(["x", "y"])) == 2

    @pytest.mark.parametrize("number", [float("nan"), float("inf"), None, 0])
    async def test_a_vector_of_no_numbers(self, number: float | None) -> None:
        """A text of which the model makes nothing is refused, too; it never has a code."""

        def vector(text: str) -> list[Any]:
            return [number] * DIMENSIONS if text == TEXT else vector_of(text)

        # NaN and Infinity are written as Python does it, which is no JSON, and as servers in Python do it.
        async with asked(embedding(vector, form=list)) as (embedder, _):
            assert len(await embedder.codes_of_texts(["x"])) == 1
            with pytest.raises(ValueError, match="numbers that are not finite, or only zeros"):
                await embedder.codes_of_texts([TEXT])

    async def test_everything_is_refused(self) -> None:
        """That is an outage, and no fault of a text: none is given up for it."""
        async with asked() as (embedder, server):
            await embedder.codes_of_texts(["x"])
            server.behaviour = status(400)
            with pytest.raises(ModelUnavailableError, match="a plain sentence is refused: 400 Bad Request"):
                await embedder.codes_of_texts([TEXT])
        async with asked(status(422)) as (embedder, _):
            with pytest.raises(ModelUnavailableError, match="a plain sentence is refused: 422"):
                await embedder.code_of_question(TEXT)

    async def test_a_long_outage(self) -> None:
        """After some failures nothing is asked for a while, and the log has one line."""
        async with asked(status(401)) as (embedder, server):
            with capture_logs() as logs:
                for _ in range(20):
                    with pytest.raises(ModelUnavailableError):
                        await embedder.code_of_question(TEXT)
            assert len(server.asked) == 5
        assert logs == [{"event": "embedder_unavailable", "reason": "401 Unauthorized", "log_level": "warning"}]

    async def test_an_outage_that_ends(self) -> None:
        """The log says so."""
        async with asked(status(401)) as (embedder, server):
            with pytest.raises(ModelUnavailableError):
                await embedder.code_of_question(TEXT)
            server.behaviour = embedding()
            with capture_logs() as logs:
                await embedder.code_of_question(TEXT)
                await embedder.code_of_question(TEXT)
        assert logs == [{"event": "embedder_available", "log_level": "info"}]

    async def test_nobody_listens(self) -> None:
        """A service starts without its embedder."""
        settings = RecallSettings(embedder="endpoint", base_url=f"http://127.0.0.1:{free_port()}/v1", model="m")
        async with open_embedder(settings) as embedder:
            assert embedder is not None
            with pytest.raises(ModelUnavailableError, match=r"no connection \(Connection refused\)"):
                await embedder.codes_of_texts([TEXT])

    async def test_an_unusable_key(self) -> None:
        """The section of the settings is named, and the key is not."""
        settings = RecallSettings(embedder="endpoint", base_url="http://h/v1", model="m", api_key="hunter2-canary\n1")
        with pytest.raises(ConfigError, match=r"^recall\.api_key: has characters") as failure:
            async with open_embedder(settings):
                pass
        assert "hunter2" not in str(failure.value)
