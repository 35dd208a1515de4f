"""What comes with a request besides its input: the run's own messages, and results of earlier calls. Pure."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from nexus.services.context.request import BuildRequest
from nexus.services.history.condense import large_handles, with_shown
from nexus.services.history.messages import HistoryMessage
from nexus.services.history.transcript import Admitted, admit, transcript_of_run


class RunMessages(NamedTuple):
    """What comes with a request besides its input.

    Attributes:
        own: the run's later messages.
        earlier: results that answer calls of earlier runs, such as one that was approved. Only the layout `agent` shows
            those calls, and the results with them.
        not_shown: results, and calls, in the message of the input that have no place in the layout.
        progress: what was reported of calls of the run that have no result.
    """

    own: Sequence[HistoryMessage] = ()
    earlier: Sequence[HistoryMessage] = ()
    not_shown: Sequence[HistoryMessage] = ()
    progress: Sequence[HistoryMessage] = ()

    @property
    def awaits_results(self) -> bool:
        """Whether a call that the run has made is not answered by name."""
        named = {call.id for item in self.own for call in item.calls if call.id}
        return not named <= {item.call_id for item in self.own}

    def large_results(self, run_id: str, above: int) -> list[str]:
        """The handles of the results that have more than `above` bytes."""
        return large_handles(run_id, [*self.own, *self.earlier], above)

    def condensed(self, run_id: str, shown: Mapping[str, str]) -> Self:
        """With the texts that are `shown`, by handle, in the place of those of large results."""
        own, earlier = (with_shown(items, run_id, shown) for items in (self.own, self.earlier))
        return self._replace(own=own, earlier=earlier)

    def admitted(self, after: Sequence[Mapping[str, object]] = ()) -> Admitted:
        """The run's own messages, as the validity gate leaves them behind those of the layout."""
        return admit([*self.own, *self.progress], "run.history", after=after)


def run_messages_in(request: BuildRequest) -> RunMessages:
    """What comes with the request besides its input."""
    later = transcript_of_run(request.later, request.agent)
    beside = [item for item in transcript_of_run([request.human], request.agent) if item.role != "user"]
    if request.layout != "agent":
        return RunMessages(later, (), beside)
    made = {call.id for item in later for call in item.calls}
    own, earlier = list[HistoryMessage](), [item for item in beside if item.role == "tool"]
    for item in later:
        is_earlier = item.role == "tool" and item.call_id and item.call_id not in made
        (earlier if is_earlier else own).append(item)
    return RunMessages(own, earlier, [item for item in beside if item.role != "tool"])
