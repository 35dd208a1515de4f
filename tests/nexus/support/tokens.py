"""Tokens, counted by a real tokenizer that is not the one the service counts with."""

import re
import warnings
from functools import cache
from typing import Any


def tokens(text: str, vocabulary: str = "o200k_base") -> int:
    """How many tokens the text has with a vocabulary of OpenAI's, `o200k_base` or `cl100k_base`."""
    # No token goes on behind a blank line, and the tokenizer refuses very long texts.
    return sum(len(_encoding(vocabulary).encode_ordinary(part)) for part in re.split(r"(?<=\n\n)(?=\S)", text))


@cache
def _encoding(vocabulary: str) -> Any:
    with warnings.catch_warnings():
        # It opens its vocabulary in a way that newer Pythons warn of.
        warnings.simplefilter("ignore", DeprecationWarning)
        import bpe_openai  # type: ignore[import-untyped]  # noqa: PLC0415  # it has no types; the import warns

        return bpe_openai.get_encoding(vocabulary)
