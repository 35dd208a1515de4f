"""How far a tool call has come before its result is there: what is said on `tools.progress` (contract §15). Pure.

The row of a call's progress has all of it in one field of its metadata (`PROGRESS`), in the form in which it was sent:
`state`, and where they were said `progress` (0 to 1), `message` and `tool_name`. Its content is empty, so that nothing
takes it for a result, and no search finds it.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

from nexus.core.models import CALL_IDS, Message, metadata_of
from nexus.core.payloads import CallState
from nexus.core.wire import compact
from nexus.services.history.parts import first_of
from nexus.services.history.tool_calls import as_id
from nexus.services.text.checks import unknown
from nexus.services.text.content import as_text
from nexus.services.text.escape import one_line

# The `source` of such a row, and its field.
TOOL_PROGRESS: Final = "tool_progress"
PROGRESS: Final = "progress"
# The call goes on: it is never compacted. `completed` is in neither set: the call is over, and its result is to come.
PENDING: Final = frozenset({"working", "input_required"})
# No result is to come.
GIVEN_UP: Final = frozenset({"failed", "cancelled"})
_STATES: Final = get_args(CallState)
_AMERICAN: Final = "canceled"
_MOST_CHARS: Final = 1_000
_PERCENT: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*")
_NO_RESULT_YET: Final = "no result has come yet"


def read_progress(message: Message) -> tuple[str, dict[str, Any]]:
    """The id of the call that a message is about, and what it says of it, as it is recorded.

    Names of fields and the spelling of a state are read as leniently as those of results, the metadata outweighing the
    content; `progress` is a number from 0 to 1, or percent. ValueError, which says what is wrong and what is allowed.
    """
    content = message.content
    if not isinstance(content, Mapping):
        raise ValueError(f"content: a JSON object with call_id and state is needed; states: {', '.join(_STATES)}")
    # A message of a tool may have these beside its content, see `gathered`.
    inner = content.get("content")
    said = {**(inner if isinstance(inner, Mapping) else {}), **content, **message.metadata}
    call_id = as_id(first_of(said, *CALL_IDS))
    if not call_id:
        raise ValueError("content.call_id: the id of the call is needed")
    state = _read_state(first_of(said, "state", "status"))
    fraction = _read_fraction(said.get("progress"))
    text, name = one_line(as_text(said.get("message"))), first_of(said, "tool_name", "toolName", "name")
    text = text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS - 3]}..."
    given = {"progress": fraction, "message": text, "tool_name": name if isinstance(name, str) else ""}
    return call_id, {"state": state, **{key: value for key, value in given.items() if value not in (None, "")}}


def is_progress(row: Mapping[str, Any]) -> bool:
    """Whether a row has the progress of a call."""
    return bool(metadata_of(row).get("source") == TOOL_PROGRESS)


def progress_id(run_id: str, call_id: str) -> str:
    """The `id` of the one row that has the progress of a call."""
    return f"progress_{hashlib.sha256(compact([run_id, call_id])).hexdigest()[:32]}"


def how_far(progress: Any) -> tuple[int, float, str]:
    """Of two stored fields that were said at the same moment the one counts for which this is greater."""
    known = progress if isinstance(progress, Mapping) else {}
    fraction, text = known.get("progress"), known.get("message")
    return (
        _STATES.index(state_of(progress) or "working"),
        fraction if isinstance(fraction, int | float) else -1,
        text if isinstance(text, str) else "",
    )


def state_of(progress: Any) -> CallState | Literal[""]:
    """The state in a stored field; `""` where there is none that is known."""
    state = progress.get("state") if isinstance(progress, Mapping) else None
    return next((known for known in _STATES if known == state), "")


def shown_progress(progress: Mapping[str, Any]) -> str:
    """What stands in the place of the result: `(working: 40 % - indexing)`."""
    state, fraction, text = state_of(progress), progress.get("progress"), progress.get("message")
    is_counted = state in PENDING and isinstance(fraction, int | float)
    said = [f"{fraction:.0%}".replace("%", " %")] if is_counted else []
    said += [text] if isinstance(text, str) and text else []
    shown = f"{state}: {' - '.join(said)}" if said else state
    return f"({shown}; {_NO_RESULT_YET})" if state == "completed" else f"({shown})"


def _read_state(given: Any) -> str:
    name = given.strip().lower().replace("-", "_") if isinstance(given, str) else ""
    name = "cancelled" if name == _AMERICAN else name
    if given is None:
        raise ValueError(f"content.state: is missing; allowed: {', '.join(_STATES)}")
    if name not in _STATES:
        raise unknown("content.state", given, _STATES)
    return name


def _read_fraction(given: Any) -> float | None:
    if given is None or given == "":
        return None
    written = _PERCENT.fullmatch(given) if isinstance(given, str) else None
    number = float(written[1]) if written else given
    if not isinstance(number, int | float) or isinstance(number, bool) or not 0 <= number <= 100:  # noqa: PLR2004  # percent
        raise ValueError("content.progress: a number from 0 to 1, or from 1 to 100 percent, is needed")
    is_percent = number > 1 or bool(written and written[2])
    return number / 100 if is_percent else float(number)
