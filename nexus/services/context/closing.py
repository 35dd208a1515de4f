"""What every list ends with: the proof that it fits into the window, and what is said of its length (§7). Pure.

Rules of this module:

- What a run has said itself is shown as it was. Where that does not fit although no memory is left to go, results of
  its tools are replaced by a line that says so; a request that does not fit then is refused.
- `[CONTEXT_META]` is about this one list, and its last message: no cache of a provider's breaks over it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nexus.core.compact_json import compact
from nexus.core.errors import ErrorCode, RequestError
from nexus.services.context.meta import MOST_TOKENS, Meta, meta_block
from nexus.services.context.prefix import RUN
from nexus.services.context.shortening import shortened
from nexus.services.context.tokens import Measure


def close(
    content: Mapping[str, Any], measure: Measure, limit: int, meta: Meta | None, run_room: int | None = None
) -> dict[str, Any]:
    """The content of an answer that takes no more than `limit` tokens, with `[CONTEXT_META]` at its end.

    Args:
        content: with all its messages; see `RunPrefix.continued`.
        measure: counts tokens.
        limit: of all that is sent: the messages, and the definitions of the tools.
        meta: what is to be said; None for a layout that says nothing.
        run_room: of what the run has said, if it is known to be too long however little there is beside it.

    Raises:
        RequestError: PAYLOAD_TOO_LARGE, where the instructions, the input and the run are too long by themselves.
    """
    tools = measure.tools(content["tools"])
    room = limit - tools - (measure.told(MOST_TOKENS) if meta else 0)
    if run_room is not None:
        content = _with_shorter_run(content, measure, run_room)
    used = measure.messages(content["messages"])
    if used > room:
        content = _with_shorter_run(content, measure, room - (used - _of_run(content)))
        used = measure.messages(content["messages"])
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


def _with_shorter_run(content: Mapping[str, Any], measure: Measure, room: int) -> dict[str, Any]:
    """The content with what the run has said in so many tokens, as far as that can be brought about."""
    messages, manifest = content["messages"], content["context"]
    run = next((block for block in manifest["blocks"] if block["tag"] == RUN), None)
    if run is None:
        return dict(content)
    shown, gone = shortened(messages[run["index"] :], measure, room)
    if not gone:
        return dict(content)
    changed = {
        "bytes": len(compact(shown)),
        "tokens": sum(map(measure.message, shown)),
        "truncated": run["truncated"] + gone,
    }
    blocks = [{**block, **changed} if block is run else block for block in manifest["blocks"]]
    messages = [*messages[: run["index"]], *shown]
    return {**content, "messages": messages, "context": {**manifest, "blocks": blocks}}


def _of_run(content: Mapping[str, Any]) -> int:
    """How many tokens the run itself takes."""
    return sum(block["tokens"] for block in content["context"]["blocks"] if block["tag"] == RUN)
