"""A language model behind an OpenAI-compatible endpoint, and a counter of its tokens (contract §6, §7)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's answer, unchecked, and the tokens that it took as the endpoint reports them; 0 where it does not."""

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0


class LanguageModel(Protocol):
    """A model that answers with JSON.

    - At most as many calls run at once as the settings allow; the others wait for their turn.
    - A call that fails for a passing reason is tried again, after pauses of random length, as often as the settings
      say. After several failures in a row every call fails at once for a while (`resting_s`).
    - Errors: `ModelUnavailableError`; `PromptTooLongError` where the endpoint says that the prompt does not fit.
    """

    @property
    def name(self) -> str:
        """The name of the model."""

    @property
    def resting_s(self) -> float:
        """For how many seconds from now every call fails at once; 0 when the next one is made."""

    async def complete(self, system: str, user: str, *, schema: Mapping[str, Any], schema_name: str) -> Completion:
        """The model's answer to the instructions `system` and the material `user`.

        An endpoint without schemas is only asked to follow the JSON schema, whose name is `[a-z_]+`.
        """


class TokenCounter(Protocol):
    """Counts tokens, without a network and without waiting.

    - Counting takes linear time, any text has a count, and the same text always has the same one.
    - No text has more than `most_per_byte` tokens for each of its bytes in UTF-8; half a surrogate pair has three.
    - The vocabulary may be read when the first text is counted.
    """

    @property
    def name(self) -> str:
        """The vocabulary, such as `o200k_base`."""

    @property
    def most_per_byte(self) -> int:
        """How many tokens a byte is at most: 1, or 3 with a vocabulary that normalises texts first, as `qwen3` does."""

    def count(self, text: str) -> int:
        """How many tokens the text is with this vocabulary; exact for valid Unicode."""
