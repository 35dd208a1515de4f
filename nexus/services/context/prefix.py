"""The first messages of a run, which are the same bytes in every build of it (CONTRACT §4.6). Pure."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final, Self

from nexus.services.context.continuation import provider_messages
from nexus.services.context.escape import CountingEscape
from nexus.services.context.layouts import describe_prefix
from nexus.services.context.request import BuildRequest

# What the next build shares when the tools may not be all there: the identity.
_WITHOUT_TOOLS: Final = 1


@dataclass(frozen=True, slots=True)
class RunPrefix:
    """What the first build of a run makes, and every later build begins with.

    Attributes:
        messages: the layout's own messages.
        manifest: how they came to be, without notes and timings.
        tools: the definitions that go with them.
        degraded: parts that are missing; a prefix with any is not kept.
        notes: what was passed over or repaired.
    """

    messages: list[dict[str, Any]]
    manifest: dict[str, Any]
    tools: list[dict[str, Any]]
    degraded: list[str]
    notes: list[str]

    def to_bytes(self) -> bytes:
        """The prefix as it is kept."""
        return _compact([self.messages, self.manifest, self.tools, self.degraded, self.notes])

    @classmethod
    def from_bytes(cls, kept: bytes) -> Self:
        """The prefix of which `kept` is the `to_bytes`."""
        return cls(*json.loads(kept))

    def continued(self, request: BuildRequest) -> dict[str, Any]:
        """The content of the answer (CONTRACT §1.4): this prefix, and after it the run's own later messages."""
        escape = CountingEscape()
        later, repairs = provider_messages(request.later, escape)
        manifest = {**self.manifest, "notes": [*self.notes, *repairs]}
        if later:
            manifest["blocks"] = [*self.manifest["blocks"], self._describe(later, request, escape.marked)]
        if "tools" in self.degraded:
            manifest["prefix"] = describe_prefix(self.messages, _WITHOUT_TOOLS)
        return {
            "status": "success",
            "layout": request.layout,
            "messages": [*self.messages, *later],
            "tools": self.tools,
            "context": manifest,
            "degraded": list(self.degraded),
        }

    def _describe(self, later: list[dict[str, Any]], request: BuildRequest, escaped: int) -> dict[str, Any]:
        return {
            "tag": "RUN",
            "role": later[0]["role"],
            "index": len(self.messages),
            "bytes": len(_compact(later)),
            "sources": [message.id for message in request.later],
            "truncated": 0,
            "dropped": 0,
            "escaped": escaped,
        }


def prefix_key(request: BuildRequest) -> str:
    """The key under which a run's prefix is kept: the same for every build of the run, and for no other."""
    identity = [request.owner_key, request.run_id, request.layout, request.current_input]
    return hashlib.sha256(_compact(identity)).hexdigest()


def _compact(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
