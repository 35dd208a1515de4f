"""Behaviours of a model server: a good model's answers, nonsense, refusals, silence."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import anyio

from tests.nexus.support.model_exchange import Exchange
from tests.nexus.support.summary_writer import write

Behaviour = Callable[[Exchange], Awaitable[None]]

PROSE: Final = "The turn went well: 156 articles were found and the user was content with them."
FAILURE_WORDS: Final = "Summary generation failed"
# In languages that are neither the one nor the other's.
_GERMAN: Final = (
    "Der Nutzer wollte wissen, was über das Mittel bekannt ist, und das Werkzeug wurde mit den genannten Angaben "
    "aufgerufen. Die Suche hat nicht viel ergeben, aber es wurde eine Auswahl getroffen, die für die Frage reicht."
)


def good() -> Behaviour:
    """A summary of the prompt's document; for a question with another schema an answer that says yes."""

    async def behave(exchange: Exchange) -> None:
        await exchange.say(json.dumps(_answer(exchange), ensure_ascii=False))

    return behave


def _answer(exchange: Exchange) -> dict[str, Any]:
    document = exchange.asked.document
    return write(document) if not document.keys().isdisjoint({"turn", "parts", "messages"}) else {"ok": True}


def saying(text: str | None, finish: str = "stop") -> Behaviour:
    """This text as every reply; None for `content: null`."""

    async def behave(exchange: Exchange) -> None:
        await exchange.say(text, finish)

    return behave


def wrapped(before: str, after: str) -> Behaviour:
    """A good answer with text around it."""

    async def behave(exchange: Exchange) -> None:
        await exchange.say(f"{before}{json.dumps(_answer(exchange), ensure_ascii=False)}{after}")

    return behave


def changed(**fields: Any) -> Behaviour:
    """A good answer, but for these fields."""

    async def behave(exchange: Exchange) -> None:
        await exchange.say(json.dumps({**_answer(exchange), **fields}, ensure_ascii=False))

    return behave


def foreign() -> Behaviour:
    """A summary in German, also for users of other languages."""
    structured = {"overview": _GERMAN, "actions": [], "results": [], "decisions": [], "next_steps": []}
    twice = f"{_GERMAN} {_GERMAN}"
    return changed(brief=_GERMAN, detailed=twice, structured=structured, insights=[], summary=twice)


def status(code: int, error: Mapping[str, Any] | str = "", **fields: str) -> Behaviour:
    """An error with that status, this as its `error`, and these header fields (`retry_after` for `Retry-After`)."""

    async def behave(exchange: Exchange) -> None:
        named = {name.replace("_", "-"): value for name, value in fields.items()}
        await exchange.answer(code, {"error": error or {"message": "no", "type": "error", "code": None}}, named)

    return behave


def body(content: bytes, content_type: str = "application/json", code: int = 200, **fields: str) -> Behaviour:
    """Any body."""

    async def behave(exchange: Exchange) -> None:
        named = {name.replace("_", "-"): value for name, value in fields.items()}
        await exchange.answer(code, content, {"Content-Type": content_type, **named})

    return behave


def silent() -> Behaviour:
    """No answer at all."""
    return lambda _: anyio.sleep_forever()


def trickling(pause_s: float = 0.01) -> Behaviour:
    """White space, a byte at a time, for ever."""

    async def behave(exchange: Exchange) -> None:
        await exchange.begin(1 << 30)
        while True:
            await exchange.send(b" ")
            await anyio.sleep(pause_s)

    return behave


def flooding(piece: int = 1 << 16) -> Behaviour:
    """An answer without end, as fast as it is read."""

    async def behave(exchange: Exchange) -> None:
        await exchange.begin(None)
        while True:
            await exchange.send(b" " * piece)

    return behave


def breaking_off() -> Behaviour:
    """The connection ends in the middle of a good answer."""

    async def behave(exchange: Exchange) -> None:
        await exchange.begin(10_000)
        await exchange.send(json.dumps(_answer(exchange)).encode()[:40])
        await exchange.close()

    return behave


def knowing(*forms: str) -> Behaviour:
    """Good answers in these forms (`json_schema`, `json_object`, `text`); others are refused."""

    async def behave(exchange: Exchange) -> None:
        if exchange.asked.form in forms:
            await good()(exchange)
        else:
            said = "This response_format type is unavailable now"
            await exchange.answer(400, {"error": {"message": said, "type": "invalid_request_error", "code": None}})

    return behave


def holding(most_bytes: int) -> Behaviour:
    """Good answers to prompts up to that length; longer ones do not fit."""

    async def behave(exchange: Exchange) -> None:
        if len(exchange.asked.system.encode()) + len(exchange.asked.user.encode()) <= most_bytes:
            await good()(exchange)
        else:
            said = "This model's maximum context length is less than that"
            await exchange.answer(400, {"error": {"message": said, "code": "context_length_exceeded"}})

    return behave


# Replies that are no summary.
NONSENSE: Final[dict[str, Behaviour]] = {
    "prose": saying(PROSE),
    "broken": saying('{"brief": "It was found", "detailed": '),
    "empty": saying(""),
    "null": saying(None),
    "foreign": foreign(),
    "failure_words": changed(brief=FAILURE_WORDS, detailed=FAILURE_WORDS, summary=FAILURE_WORDS),
}
