"""How many tokens messages and tools take as they are sent (CONTRACT §7). Pure.

In the form of OpenAI, texts are counted with the vocabulary itself. What stands around them is as documented:

- A message takes 3 tokens and those of its role, a name one more, and the reply is opened with 3: OpenAI's cookbook,
  "How to count tokens with tiktoken".
- A call and a result name who says what to whom, as written down for the open models (the "harmony response format"):
  12 tokens for a call besides name and arguments, 8 for a result. The ids of calls are not shown to a model.
- How definitions of tools are shown is not published. Counted is their compact JSON, which is longer than what is known
  of it: names, types and descriptions without most quotes and braces.

Anthropic and Google publish no vocabulary. Theirs are estimated from the count for OpenAI, and rather too high: where
an estimate is too low by a third, a session that is compacted at 75 % no longer fits into its window.

- `anthropic`: twice as many. A reconstruction of that tokenizer (ctok 1.3) gives, for the models since Opus 4.7, 1.4
  times as many for English and JSON, 1.5 for Chinese, 1.6 for Python, 1.9 for Korean, 2.3 to 2.7 for German, Hindi and
  Arabic; for the models before, a fifth less. With tools comes a text of the provider's own, of up to 530 tokens
  ("Tool use pricing and tokens").
- `gemini`: one and a half times as many. By Google's rule of thumb a token is four characters, which is about what
  English takes with o200k; but its tokenizer makes each digit a token, which is half as many again for logs.
"""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from nexus.core.ports import TokenCounter
from nexus.tools.registry import Definitions

_MESSAGE: Final = 3
_REPLY: Final = 3
_NAME: Final = 1
_CALL: Final = 12
_RESULT: Final = 8
_SPEAKERS: Final = ("system", "user", "assistant")
_SAID: Final = 2
# Constant texts are those of the service and of the tools that are registered now.
_MOST_KEPT: Final = 1_000


# For each form, how many halves of a token one that is counted stands for.
_HALVES: Final[Mapping[str, int]] = MappingProxyType({"openai": 2, "anthropic": 4, "gemini": 3})
# What the provider adds where there are tools.
_WITH_TOOLS: Final[Mapping[str, int]] = MappingProxyType({"anthropic": 530})


class Measure:
    """Counts what is sent to a model. Each message counts for itself: a list takes what its messages take, and 3 more.

    Args:
        counter: counts texts.
        form: a key of `nexus.services.context.formats.FORMATS`. Messages are given in OpenAI's form whichever it is.
        kept: what `counter` has counted of constant texts. Measures that share it count each of them once.

    Raises:
        ValueError: there is no such form.
    """

    __slots__ = ("_halves", "_kept", "_known", "counter", "form")

    def __init__(self, counter: TokenCounter, form: str = "openai", kept: dict[str, int] | None = None) -> None:
        if form not in _HALVES:
            raise ValueError(f"format: one of {', '.join(_HALVES)} is needed")
        self.counter = counter
        self.form = form
        self._halves = _HALVES[form]
        self._kept = {} if kept is None else kept
        # A list is counted several times over while it is made. Looking up a text that is the same costs nothing.
        self._known: dict[str, int] = {}

    @property
    def exact(self) -> bool:
        """Whether texts are counted; else everything is estimated."""
        return self.told(1) == 1

    def text(self, text: str, *, constant: bool = False) -> int:
        """Tokens of a text by itself; of one that other contexts have as well, if it is said to be constant."""
        return self.told(self._constant(text) if constant else self._count(text))

    def message(self, message: Mapping[str, Any]) -> int:
        """Tokens of one message."""
        count = self._count
        role = message.get("role", "")
        tokens = _MESSAGE + count(str(role)) + count(_as_text(message.get("content")))
        if role in _SPEAKERS and len(message) == _SAID and "content" in message:
            # Most have a role and a content, and nothing else.
            return self.told(tokens)
        if role == "tool":
            tokens += _RESULT
        if name := message.get("name"):
            tokens += _NAME + count(_as_text(name))
        for call in message.get("tool_calls") or ():
            function = call["function"]
            tokens += _CALL + count(_as_text(function["name"])) + count(_as_text(function["arguments"]))
        return self.told(tokens)

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """Tokens of a list of messages, with the opening of the reply."""
        return sum(map(self.message, messages)) + self.told(_REPLY)

    def tools(self, tools: Sequence[Mapping[str, Any]]) -> int:
        """Tokens of the definitions that go with a list, in OpenAI's form; 0 without any."""
        if not tools:
            return 0
        if isinstance(tools, Definitions):
            tokens = sum(map(self._constant, tools.once(_texts)))
        else:
            tokens = sum(self._count(_as_text(tool)) for tool in tools)
        return self.told(tokens) + _WITH_TOOLS.get(self.form, 0)

    def counted(self, told: int) -> int:
        """How many tokens, as the vocabulary counts them, are taken for no more than these in this form."""
        return told * 2 // self._halves

    def _count(self, text: str) -> int:
        known = self._known.get(text)
        if known is None:
            known = self._kept.get(text)
            known = self._known[text] = self.counter.count(text) if known is None else known
        return known

    def _constant(self, text: str) -> int:
        known = self._kept.get(text)
        if known is None:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            known = self._kept[text] = self._count(text)
        return known

    def told(self, tokens: int) -> int:
        """What tokens that were counted are taken for in this form, never for fewer."""
        return -(-tokens * self._halves // 2)


class Bound(Measure):
    """No fewer tokens than a `Measure` of this counter and form finds, told by bytes alone: no vocabulary is needed.

    What is within a limit by this is within it however it is counted. It keeps nothing, so that one does for all.
    """

    __slots__ = ()

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """Tokens of a list of messages at most, with the opening of the reply."""
        most, halves, tokens = self.counter.most_per_byte, self._halves, self.told(_REPLY)
        for message in messages:
            role, content = message.get("role"), message.get("content")
            if role in _SPEAKERS and len(message) == _SAID and type(content) is str:
                # As `message` does it, without the calls in between.
                tokens += -(-(_MESSAGE + (len(role) + _size(content)) * most) * halves // 2)
            else:
                tokens += self.message(message)
        return tokens

    def _count(self, text: str) -> int:
        return _size(text) * self.counter.most_per_byte

    def _constant(self, text: str) -> int:
        return self._count(text)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _as_text(value: Any) -> str:
    """What of a value is counted: a text as it is, anything else as compact JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _texts(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    return [_as_text(tool) for tool in tools]
