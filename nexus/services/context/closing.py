"""What every list ends with: the proof that it fits into the window, and what is said of its length (§7). Pure.

Rules of this module:

- What a run has said itself is shown as it was. Where that does not fit although no memory is left to go, the oldest
  results of its tools are replaced by a line that says so; a request that does not fit then is refused.
- `[CONTEXT_META]` is about this one list, and its last message: no cache of a provider's breaks over it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from nexus.core.errors import ErrorCode, RequestError
from nexus.services.context.blocks import compact
from nexus.services.context.meta import MOST_TOKENS, Meta, meta_block
from nexus.services.context.prefix import RUN
from nexus.services.context.tokens import Measure

_LEFT_OUT: Final = "(left out: a result of {count} characters, for which there was no room in the context)"


def close(content: Mapping[str, Any], measure: Measure, limit: int, meta: Meta | None) -> dict[str, Any]:
    """The content of an answer that takes no more than `limit` tokens, with `[CONTEXT_META]` at its end.

    Args:
        content: with all its messages; see `RunPrefix.continued`.
        measure: counts tokens.
        limit: of all that is sent: the messages, and the definitions of the tools.
        meta: what is to be said; None for a layout that says nothing.

    Raises:
        RequestError: PAYLOAD_TOO_LARGE, where the instructions, the input and the run are too long by themselves.
    """
    tools = measure.tools(content["tools"])
    room = limit - tools - (measure.told(MOST_TOKENS) if meta else 0)
    used = measure.messages(content["messages"])
    if used > room:
        content, used = _shortened(content, measure, used, room)
    if used > room:
        reason = (
            f"run: instructions, tools, the current input and what the run has said take {used + limit - room} tokens, "
            f"at most {limit} are allowed"
        )
        raise RequestError(ErrorCode.PAYLOAD_TOO_LARGE, reason)
    messages, manifest = content["messages"], content["context"]
    if meta:
        block = meta_block(replace(meta, messages=len(messages) + 1), used + tools, measure)
        manifest = {**manifest, "blocks": [*manifest["blocks"], *block.describe(len(messages), measure)]}
        messages = [*messages, *block.messages]
    # Counted once more rather than added up: a list has an overhead of its own.
    total = measure.messages(messages) + tools
    tokens = {"used": total, "limit": limit, "tools": tools, "exact": measure.exact}
    return {**content, "messages": messages, "context": {**manifest, "tokens": tokens}}


def _shortened(content: Mapping[str, Any], measure: Measure, used: int, room: int) -> tuple[dict[str, Any], int]:
    """The content with the oldest results of the run replaced, as many as have to be, and what it takes then."""
    messages, manifest = list(content["messages"]), content["context"]
    run = next((block for block in manifest["blocks"] if block["tag"] == RUN), None)
    gone = 0
    for index in range(run["index"], len(messages)) if run else ():
        if used <= room:
            break
        message = messages[index]
        if message["role"] != "tool":
            continue
        shorter = {**message, "content": _LEFT_OUT.format(count=len(message["content"]))}
        gain = measure.message(message) - measure.message(shorter)
        if gain > 0:
            messages[index], used, gone = shorter, used - gain, gone + 1
    if run is None or not gone:
        return dict(content), used
    shown = messages[run["index"] :]
    changed = {"bytes": len(compact(shown)), "tokens": sum(map(measure.message, shown)), "truncated": gone}
    blocks = [{**block, **changed} if block is run else block for block in manifest["blocks"]]
    return {**content, "messages": messages, "context": {**manifest, "blocks": blocks}}, used
