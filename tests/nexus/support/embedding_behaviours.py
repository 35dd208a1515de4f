"""Behaviours of a model server that is asked for vectors."""

import hashlib
import struct
from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any, Final

from tests.nexus.support.model_behaviours import Behaviour
from tests.nexus.support.model_exchange import Exchange

DIMENSIONS: Final = 256


def vector_of(text: str) -> list[float]:
    """A vector of a text: near that of one with the same words, and, as of many models, in one corner of its space."""
    vector = [5.0] * DIMENSIONS
    for word in text.lower().split():
        bits = hashlib.shake_128(word.encode()).digest(DIMENSIONS // 8)
        vector = [number + (1 if bits[place // 8] >> place % 8 & 1 else -1) / 10 for place, number in enumerate(vector)]
    return vector


def embedding(
    vector: Callable[[str], Any] = vector_of,
    *,
    form: Callable[[Sequence[float]], Any] | None = None,
    refused: Callable[[str], bool] = lambda _: False,
    status: int = 400,
) -> Behaviour:
    """These vectors, as base64 unless `form` says otherwise; texts that are refused have the whole call refused."""

    async def behave(exchange: Exchange) -> None:
        texts = exchange.asked.body["input"]
        if any(map(refused, texts)):
            await exchange.answer(status, {"error": {"message": f"I will not read {texts}", "code": None}})
            return
        made = form or in_base64
        data = [
            {"object": "embedding", "index": place, "embedding": made(vector(text))} for place, text in enumerate(texts)
        ]
        # The order of an answer is not that of its numbers everywhere.
        await exchange.answer(200, {"object": "list", "model": "m", "data": data[::-1]})

    return behave


def in_base64(vector: Sequence[float]) -> str:
    """As the SDK asks for it by itself."""
    return b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def of_data(change: Callable[[list[dict[str, Any]]], Any]) -> Behaviour:
    """A good answer whose `data` is changed."""

    async def behave(exchange: Exchange) -> None:
        data = [
            {"object": "embedding", "index": place, "embedding": vector_of(text)}
            for place, text in enumerate(exchange.asked.body["input"])
        ]
        await exchange.answer(200, {"object": "list", "model": "m", "data": change(data)})

    return behave
