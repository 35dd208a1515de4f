"""`TokenCounter` on quicktok, whose package holds the vocabularies (docs/decisions/0018-tokens-are-counted.md).

Nothing is fetched, and no file outside the package is read.
"""

import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import quicktok  # type: ignore[import-untyped]  # it comes without types

from nexus.core.errors import ConfigError

VOCABULARIES: Final = ("o200k_base", "cl100k_base", "o200k_harmony", "llama3", "qwen3")
# It composes characters before it cuts a text into tokens, which makes up to three bytes of one.
_NORMALISING: Final = "qwen3"
_NORMALISED: Final = 3
_DATA: Final = Path(quicktok.__file__).parent / "data"
_UNREADABLE: Final = "memory.tokenizer: {} cannot be read, install quicktok-v1 anew ({})"
_NO_TEXT: Final = re.compile("[\ud800-\udfff]")


class _Vocabulary(Protocol):
    def count(self, text: str, /) -> int: ...


_loading: Final = threading.Lock()
# Each takes some 70 MB and never changes, so a process has it once.
_loaded: Final[dict[str, _Vocabulary]] = {}


@dataclass(frozen=True, slots=True)
class BundledTokenizer:
    """Counts by one of `VOCABULARIES`, read when the first text is counted. Any number of threads may do so at once.

    Half a surrogate pair, which no model is ever sent, counts as the U+FFFD that is sent in its place. Markers such as
    `<|endoftext|>` count as plain text.
    """

    name: str

    @property
    def most_per_byte(self) -> int:
        """How many tokens a byte of a text is at most."""
        return _NORMALISED if self.name == _NORMALISING else 1

    def count(self, text: str) -> int:
        """How many tokens the text is; ConfigError where the vocabulary cannot be read.

        Reading it takes half a second, in which no other thread runs.
        """
        vocabulary = _vocabulary(self.name)
        try:
            return vocabulary.count(text)
        except TypeError:
            return vocabulary.count(_NO_TEXT.sub("\ufffd", text))


def open_tokenizer(name: str) -> BundledTokenizer:
    """The tokenizer of that name, with a vocabulary that is there but not read yet; ConfigError where there is none."""
    if name not in VOCABULARIES:
        raise ConfigError(f"memory.tokenizer: one of {', '.join(VOCABULARIES)} is needed")
    if not (_DATA / f"{name.partition('_')[0]}.vocab").is_file():
        raise ConfigError(_UNREADABLE.format(name, "it is not there"))
    return BundledTokenizer(name)


def _vocabulary(name: str) -> _Vocabulary:
    if found := _loaded.get(name):
        return found
    with _loading:
        if name not in _loaded:
            try:
                # Not its `get_encoding`, which goes on looking in the home folder.
                _loaded[name] = quicktok.Tokenizer(name, "")
            except RuntimeError as error:
                raise ConfigError(_UNREADABLE.format(name, error)) from None
        return _loaded[name]
