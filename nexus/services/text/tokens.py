"""How many tokens messages and tools take as they are sent (contract §7, docs/decisions/0018). Pure.

In the form of OpenAI, texts are counted with the vocabulary itself. The tokens around them:

- A message takes 3 tokens and those of its role, a name one more, and the reply is opened with 3: OpenAI's cookbook,
  "How to count tokens with tiktoken".
- A call takes 12 tokens besides name and arguments, a result 8: the open models' "harmony response format". The ids
  of calls are not shown to a model.
- The form in which a model sees definitions of tools is not published. Their compact JSON is counted, which is longer
  than the known parts.

Anthropic and Google publish no vocabulary. Theirs are estimated from the count for OpenAI, and rather too high: where
an estimate is too low by a third, a session that is compacted at 75 % no longer fits into its window.

- `anthropic`: twice as many. By ctok 1.3 the models since Opus 4.7 take 1.4 times as many for English and JSON, 1.5
  for Chinese, 1.6 for Python, 1.9 for Korean, 2.3 to 2.7 for German, Hindi and Arabic. With tools comes a text of the
  provider's own, of up to 530 tokens ("Tool use pricing and tokens").
- `gemini`: one and a half times as many. By Google's rule of thumb English takes as many as with o200k; but each
  digit is a token, which is half as many again for logs.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nexus.core.ports import TokenCounter

_MESSAGE: Final = 3
_REPLY: Final = 3
_NAME: Final = 1
_CALL: Final = 12
_RESULT: Final = 8
# For each form, half tokens for one that is counted.
_HALVES: Final[Mapping[str, int]] = {"openai": 2, "anthropic": 4, "gemini": 3}
# Added by the provider where there are tools.
_WITH_TOOLS: Final[Mapping[str, int]] = {"anthropic": 530}


class Measure:
    """Tokens of messages and tools in one of the `formats.FORMATS`; messages are given in OpenAI's form in any case.

    Remembers every text it has counted: a list is counted several times while it is made. For one context only.
    """

    def __init__(self, counter: TokenCounter, form: str = "openai") -> None:
        self.counter = counter
        self.form = form
        self._halves = _HALVES[form]
        self._known: dict[str, int] = {}

    @property
    def exact(self) -> bool:
        """Whether the counts are those of the form's own vocabulary; otherwise everything is an estimate."""
        return self.scaled(1) == 1

    def text(self, text: str) -> int:
        """Tokens of a text by itself."""
        return self.scaled(self._count(text))

    def message(self, message: Mapping[str, Any]) -> int:
        """Tokens of one message."""
        role = str(message.get("role", ""))
        tokens = _MESSAGE + self._count(role) + self._count(_as_text(message.get("content")))
        if role == "tool":
            tokens += _RESULT
        if name := message.get("name"):
            tokens += _NAME + self._count(_as_text(name))
        for call in message.get("tool_calls") or ():
            function = call["function"]
            tokens += _CALL + self._count(_as_text(function["name"])) + self._count(_as_text(function["arguments"]))
        return self.scaled(tokens)

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """Tokens of a list of messages, with the opening of the reply."""
        return sum(map(self.message, messages)) + self.scaled(_REPLY)

    def tools(self, tools: Sequence[Mapping[str, Any]]) -> int:
        """Tokens of the definitions that go with a list, in OpenAI's form; 0 without any."""
        if not tools:
            return 0
        return self.scaled(sum(self._count(_as_text(tool)) for tool in tools)) + _WITH_TOOLS.get(self.form, 0)

    def scaled(self, counted: int) -> int:
        """Tokens of this form for tokens that the vocabulary counts, rounded up."""
        return -(-counted * self._halves // 2)

    def unscaled(self, tokens: int) -> int:
        """The most tokens of the vocabulary that take no more than `tokens` of this form."""
        return tokens * 2 // self._halves

    def _count(self, text: str) -> int:
        if text not in self._known:
            self._known[text] = self.counter.count(text)
        return self._known[text]


@dataclass(frozen=True, slots=True)
class ByteBound:
    """A `TokenCounter` that never finds fewer tokens than `counter`, and needs no vocabulary for it.

    A text within a limit by this count is within it by any other.
    """

    counter: TokenCounter

    @property
    def name(self) -> str:
        """As of `counter`."""
        return self.counter.name

    @property
    def most_per_byte(self) -> int:
        """As of `counter`."""
        return self.counter.most_per_byte

    def count(self, text: str) -> int:
        """The most tokens that a text of so many bytes can have."""
        return len(text.encode("utf-8", "surrogatepass")) * self.most_per_byte


def too_many_tokens(counter: TokenCounter, text: str, most: int) -> int:
    """The tokens of a text that has more than `most`; else 0. For a short one no vocabulary is read."""
    if ByteBound(counter).count(text) <= most:
        return 0
    tokens = counter.count(text)
    return tokens if tokens > most else 0


def _as_text(value: Any) -> str:
    """A text as it is, `""` for None, and anything else as compact JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
