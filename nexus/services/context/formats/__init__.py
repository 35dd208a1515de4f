"""The message list in the form of each provider (contract §1.3, `format`). Pure.

Every context is made once, in OpenAI's form, and is valid then; a format gives the same content in another form. The
order of the list is kept in every format, and the beginning of the result depends on the beginning of the list alone,
so that prompt caches hold in every format.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from nexus.services.context.formats.anthropic import to_anthropic
from nexus.services.context.formats.base import Converted
from nexus.services.context.formats.gemini import to_gemini
from nexus.services.context.formats.openai import to_openai

__all__ = ["FORMATS", "Converted"]

# Each takes a valid list and its tools in OpenAI's form. The next build repeats its first `stable` messages byte for
# byte. `goes_on`: it ends in the middle of a run, so that the run's next call is likely to repeat all of it.
FORMATS: Final[Mapping[str, Callable[..., Converted]]] = MappingProxyType(
    {"openai": to_openai, "anthropic": to_anthropic, "gemini": to_gemini}
)
