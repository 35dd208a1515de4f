"""The first messages of a run, which are the same bytes in every build of it (CONTRACT §4.6). Pure."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final, Self

from nexus.services.context.blocks import Passage, compact
from nexus.services.context.layouts import describe_prefix
from nexus.services.context.request import BuildRequest
from nexus.services.context.transcript import said_in_run
from nexus.services.context.validity import admit

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
        return compact([self.messages, self.manifest, self.tools, self.degraded, self.notes])

    @classmethod
    def from_bytes(cls, kept: bytes) -> Self:
        """The prefix of which `kept` is the `to_bytes`."""
        return cls(*json.loads(kept))

    def continued(self, request: BuildRequest) -> dict[str, Any]:
        """The content of the answer (CONTRACT §1.4): this prefix, and after it the run's own later messages."""
        later = admit(said_in_run(request.later, request.agent), "run.history", after=self.messages)
        manifest = {**self.manifest, "notes": [*self.notes, *later.repairs]}
        if later.messages:
            run = Passage.of("RUN", later).describe(len(self.messages))
            manifest["blocks"] = [*self.manifest["blocks"], run]
        if "tools" in self.degraded and request.layout == "dialogue":
            manifest["prefix"] = describe_prefix(self.messages, _WITHOUT_TOOLS)
        return {
            "status": "success",
            "layout": request.layout,
            "messages": [*self.messages, *later.messages],
            "tools": self.tools,
            "context": manifest,
            "degraded": list(self.degraded),
        }


def prefix_key(request: BuildRequest) -> str:
    """The key under which a run's prefix is kept: the same for every build of the run, and for no other."""
    identity = [request.owner_key, request.run_id, request.layout, request.current_input]
    return hashlib.sha256(compact(identity)).hexdigest()
