"""The pinned block of the agent layout, and where it stands in the history (contract §5). Pure.

- The block is new for every request, and has only the parts with content.
- Headings and the marks before items come from here alone: further lines of an item are indented, a TODO is one line,
  and everything is escaped, items that follow each other as one.
- A position is the index of the message that follows it; `len(messages)` is the end. None splits a tool call from its
  results: inside of a tool call block it moves before the block.
- Messages are in the OpenAI form; malformed ones are ignored.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final, Literal, TypeVar

from nexus.core.models import LONG_AGO
from nexus.services.context.blocks import Block
from nexus.services.history.rows import Agent
from nexus.services.history.tool_calls import as_id
from nexus.services.session_state.state import PARTS, FolderNote, Info, SessionState, Todo, TodoStatus
from nexus.services.text.escape import HEADINGS, CountingEscape, canonical, escape_together, one_line

MOST_INFOS: Final = 100
MOST_NOTES_A_FOLDER: Final = 5

# The same words as those that `escape` marks in other text.
_ROLE, _TODO, _INFO, _NOTES = (f"## {title}" for title in HEADINGS)
_BOXES: Final = {TodoStatus.PENDING: "[ ]", TodoStatus.IN_PROGRESS: "[~]", TodoStatus.COMPLETED: "[x]"}
_Item = TypeVar("_Item", Info, FolderNote)


def what_to_pin(agent: Agent, given: SessionState, stored: SessionState) -> tuple[str, SessionState]:
    """The agent's role, `""` for none, and the state to show: each part as the request gives it, else as stored."""

    def role_in(state: SessionState) -> str:
        return (state.role if agent.kind == "main" else state.sub_agent_roles.get(agent.id)) or ""

    roles = (agent.role, role_in(given), role_in(stored))
    state = SessionState(
        todos=stored.todos if given.todos is None else given.todos,
        useful_info=stored.useful_info if given.useful_info is None else given.useful_info,
        folder_notes=stored.folder_notes if given.folder_notes is None else given.folder_notes,
    )
    return next((role for role in roles if canonical(role).strip()), ""), state


def is_role_given(agent: Agent, given: SessionState) -> bool:
    """Whether the request brings the role."""
    return bool(what_to_pin(agent, given, SessionState())[0])


def is_all_given(agent: Agent, given: SessionState) -> bool:
    """Whether the request brings every part, so that no stored state is needed."""
    role, state = what_to_pin(agent, given, SessionState())
    return bool(role) and None not in {state.todos, state.useful_info, state.folder_notes}


def pinned_blocks(role: str, state: SessionState, *, most: int | None = None, todos: int | None = None) -> list[Block]:
    """The parts of the pinned block that are not empty, in their order.

    `most` is the largest number of useful informations and folder notes together: the notes first, of each the newest;
    None for as many as are ever shown. `todos` is the largest number of TODOs; None for all.
    """
    infos, notes = state.useful_info or (), state.folder_notes or ()
    kept = len(infos) + len(notes) if most is None else most
    return [
        *_role_block(role),
        *_todo_block(state.todos or (), todos),
        *_info_block(infos, min(max(kept - len(notes), 0), MOST_INFOS)),
        *_notes_block(notes, kept),
    ]


def shown_parts(state: SessionState) -> Iterator[str]:
    """The parts as they are pinned for the main agent, and what is kept besides: the roles of sub-agents."""
    for block in pinned_blocks(state.role or "", state):
        yield block.text
        if block.dropped:
            yield f"({block.dropped} more, older, are kept and not pinned; the JSON has them)"
    if state.sub_agent_roles:
        roles = (f"- {one_line(agent)}: {canonical(role).strip()}" for agent, role in state.sub_agent_roles.items())
        yield "Roles of sub-agents:\n\n" + "\n".join(role.replace("\n", "\n  ") for role in roles)
    if empty := [name for name in PARTS if getattr(state, name) == ()]:
        yield f"Given and empty: {', '.join(empty)}"


def _role_block(role: str) -> list[Block]:
    escape = CountingEscape()
    text = escape(role.strip())
    return [_block("AGENT_ROLE", _ROLE, text, escape)] if text.strip() else []


def _todo_block(todos: Sequence[Todo], most: int | None) -> list[Block]:
    """The TODO list; of more than `most` those go that are done, then the last."""
    escape = CountingEscape()
    every = len(todos)
    if most is not None and most < every:
        by_worth = sorted(range(every), key=lambda index: (todos[index].status is TodoStatus.COMPLETED, index))
        todos = [todos[index] for index in sorted(by_worth[:most])]
    lines = [f"- {_BOXES[todo.status]} {escape(one_line(todo.text))} (ID: {todo.id})" for todo in todos]
    dropped = every - len(todos)
    lines += [f"- ({dropped} more, for which there is no room)"] if dropped else []
    return [_block("TODO_LIST", _TODO, "\n".join(lines), escape, dropped)] if lines else []


def _info_block(infos: Sequence[Info], most: int) -> list[Block]:
    escape = CountingEscape()
    shown = _newest(infos, most)
    if not shown:
        return []
    text = "\n".join(map(_bullet, escape_together([info.text.strip() for info in shown], escape)))
    return [_block("USEFUL_INFORMATION", _INFO, text, escape, len(infos) - len(shown))]


def _notes_block(notes: Sequence[FolderNote], most: int) -> list[Block]:
    escape = CountingEscape()
    folders: dict[str, list[FolderNote]] = {}
    for note in notes if most >= len(notes) else _newest(notes, most):
        folders.setdefault(_folder(note), []).append(note)
    shown = [(folder, _newest(folders[folder], MOST_NOTES_A_FOLDER)) for folder in sorted(folders, key=_depth)]
    if not shown:
        return []
    texts = [[f"### {one_line(folder)}", *(note.text.strip() for note in kept)] for folder, kept in shown]
    escaped = iter(escape_together(list(chain.from_iterable(texts)), escape))
    sections = ["\n".join((next(escaped), *map(_bullet, islice(escaped, len(kept))))) for _, kept in shown]
    dropped = len(notes) - sum(len(kept) for _, kept in shown)
    return [_block("FOLDER_NOTES", _NOTES, "\n\n".join(sections), escape, dropped)]


def _block(tag: str, heading: str, text: str, escape: CountingEscape, dropped: int = 0) -> Block:
    return Block(tag, "user", f"{heading}\n\n{text}", dropped=dropped, escaped=escape.marked)


def _newest(items: Sequence[_Item], most: int) -> list[_Item]:
    """The newest `most`, oldest first. An item without a time counts as older; at equal times the later is newer."""
    ordered = sorted(items, key=lambda item: item.created_at or LONG_AGO)
    return ordered[max(len(ordered) - most, 0) :]


def _folder(note: FolderNote) -> str:
    path = note.folder.strip().replace("\\", "/")
    root = "/" if path.startswith("/") else ""
    return root + "/".join(part for part in path.split("/") if part not in {"", "."}) or "."


def _depth(folder: str) -> tuple[int, str]:
    """Shallow folders first, those of one depth by name."""
    return (0 if folder in {".", "/"} else folder.strip("/").count("/") + 1, folder)


def _bullet(text: str) -> str:
    return "- " + text.replace("\n", "\n  ")


Placement = Literal["from_end", "before_assistant", "tail"]
PINNED_FROM_END: Final = 5


@dataclass(frozen=True, slots=True)
class ToolCallBlock:
    """The messages from one that declares tool calls to the last of their results, or itself without results.

    Blocks overlap where a log has results after the next declaration.
    """

    start_index: int
    end_index: int
    tool_call_ids: frozenset[str]


def identify_tool_call_blocks(messages: Sequence[Any]) -> list[ToolCallBlock]:
    """The blocks in `messages`, by their start.

    A result belongs to the latest declaration of its id, whatever lies between; a result without an id to the block
    that it directly follows.
    """
    return [
        ToolCallBlock(start, end, frozenset(_ids(declared_calls(messages[start])))) for start, end in _extents(messages)
    ]


def find_safe_insert_position(messages: Sequence[Any], target_index: int) -> int:
    """The nearest position at or before `target_index` that is inside of no block; the target is clamped."""
    position = max(0, min(target_index, len(messages)))
    # A block that begins later cannot hold a position before its beginning, so one way back finds them all.
    for start, end in reversed(_extents(messages)):
        if start < position <= end:
            position = start
    return position


def insert_messages_at_position(
    messages: Sequence[Any], messages_to_insert: Sequence[Any], insert_index: int
) -> list[Any]:
    """A new list with `messages_to_insert` before the message at `insert_index`, which is clamped."""
    index = max(0, min(insert_index, len(messages)))
    return [*messages[:index], *messages_to_insert, *messages[index:]]


def calculate_reverse_position(messages: Sequence[Any], count: int = PINNED_FROM_END) -> int:
    """The position before the `count`-th message from the end; the end itself where there are fewer, or for 0."""
    return len(messages) - count if 0 <= count <= len(messages) else len(messages)


def position_before_assistant(messages: Sequence[Any], count: int = PINNED_FROM_END) -> int:
    """The position before the `count`-th assistant message from the end.

    Where there are fewer, before the first of them; where there is none, the end.
    """
    found = [index for index, message in enumerate(messages) if _role(message) == "assistant"]
    if not found or count <= 0:
        return len(messages)
    return found[max(len(found) - count, 0)]


def pinned_position(messages: Sequence[Any], placement: Placement, count: int = PINNED_FROM_END) -> int:
    """The position of the pinned block in a history: inside of no tool call block."""
    match placement:
        case "from_end":
            target = calculate_reverse_position(messages, count)
        case "before_assistant":
            target = position_before_assistant(messages, count)
        case "tail":
            target = len(messages)
    return find_safe_insert_position(messages, target)


def declared_calls(message: Any) -> Sequence[Any]:
    """The calls that an assistant message declares; none for any other message."""
    calls = message.get("tool_calls") if _role(message) == "assistant" else None
    return calls if isinstance(calls, list | tuple) else ()


def _extents(messages: Sequence[Any]) -> list[tuple[int, int]]:
    """Start and end of each block, by its start."""
    starts: list[int] = []
    ends: list[int] = []
    declared: dict[str, int] = {}
    ending_before: int | None = None
    for index, message in enumerate(messages):
        role, block = _role(message), None
        if role == "assistant" and (calls := declared_calls(message)):
            block = len(starts)
            starts.append(index)
            ends.append(index)
            for given_id in _ids(calls):
                declared[given_id] = block
        elif role == "tool":
            given_id = as_id(message.get("tool_call_id"))
            block = declared.get(given_id) if given_id else ending_before
            if block is not None:
                ends[block] = index
        ending_before = block
    return list(zip(starts, ends, strict=True))


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, Mapping) else None


def _ids(calls: Sequence[Any]) -> list[str]:
    return [given_id for call in calls if isinstance(call, Mapping) and (given_id := as_id(call.get("id")))]
