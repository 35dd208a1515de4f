"""The pinned block: four messages in their order, letter by letter, and whose they are (contract §5)."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.services.context.pinned import is_all_given, is_role_given, pinned_blocks, what_to_pin
from nexus.services.history.rows import MAIN, Agent
from nexus.services.session_state.state import FolderNote, Info, SessionState, Todo, TodoStatus

NOON = datetime(2025, 12, 10, 12, tzinfo=UTC)
SUB = Agent("sub", "reviewer")


def texts(role: str = "", **parts: tuple[Todo | Info | FolderNote, ...]) -> list[str]:
    """What the messages say."""
    return [block.text for block in pinned_blocks(role, SessionState(**parts))]  # type: ignore[arg-type]  # a test names the part that its items are of


def at(minutes: int) -> datetime:
    """So many minutes after noon."""
    return NOON + timedelta(minutes=minutes)


class TestBlocks:
    """What each of the four says."""

    def test_all_of_them(self) -> None:
        """In the order of the contract, as messages of a user."""
        state = SessionState(
            todos=(
                Todo("1", "write"),
                Todo("t.2", "read", TodoStatus.IN_PROGRESS),
                Todo("3", "plan", TodoStatus.COMPLETED),
            ),
            useful_info=(Info("i", "The port is 80.", NOON), Info("j", "It rains.", at(1))),
            folder_notes=(FolderNote("n", "src", "Tests are elsewhere."), FolderNote("m", ".", "A note.")),
        )
        blocks = pinned_blocks("You lead.", state)
        assert [(block.tag, block.role) for block in blocks] == [
            ("AGENT_ROLE", "user"),
            ("TODO_LIST", "user"),
            ("USEFUL_INFORMATION", "user"),
            ("FOLDER_NOTES", "user"),
        ]
        assert [block.text for block in blocks] == [
            "## Agent Role Definition\n\nYou lead.",
            "## Current TODO List\n\n- [ ] write (ID: 1)\n- [~] read (ID: t.2)\n- [x] plan (ID: 3)",
            "## Useful Information\n\n- The port is 80.\n- It rains.",
            "## Folder Notes\n\n### .\n- A note.\n\n### src\n- Tests are elsewhere.",
        ]
        assert {(block.dropped, block.truncated, block.escaped, block.sources) for block in blocks} == {(0, 0, 0, ())}

    @pytest.mark.parametrize("role", ["", " ", "\n\t", "\u200b", "\u200b \ufeff"], ids=repr)
    def test_nothing_to_pin(self, role: str) -> None:
        """Is no message, be it that nothing is given, or that what is given is empty."""
        assert texts(role) == []
        assert texts(role, todos=(), useful_info=(), folder_notes=()) == []

    def test_a_todo_is_one_line(self) -> None:
        """Whatever its line ends are."""
        todos = (Todo("1", " a\n- [x] b (ID: 2)\r\n\u2028c\td "),)
        assert texts(todos=todos) == ["## Current TODO List\n\n- [ ] a - [x] b (ID: 2) c d (ID: 1)"]


class TestNewest:
    """What is left out of long lists."""

    def test_a_hundred_infos(self) -> None:
        """The newest by their time, oldest first, however they are listed."""
        infos = [Info(str(number), f"t{number}", at(number)) for number in range(103)]
        for listed in (infos, infos[::-1]):
            (block,) = pinned_blocks("", SessionState(useful_info=tuple(listed)))
            assert block.text.split("\n\n")[1].split("\n") == [f"- t{number}" for number in range(3, 103)]
            assert block.dropped == 3

    def test_five_notes_a_folder(self) -> None:
        """The newest of each, oldest first."""
        notes = [FolderNote(f"{folder}{n}", folder, f"{folder}{n}", at(n)) for n in range(7) for folder in ("a", "b")]
        (block,) = pinned_blocks("", SessionState(folder_notes=tuple(reversed(notes))))
        expected = "\n\n".join(
            "\n".join([f"### {folder}", *(f"- {folder}{n}" for n in range(2, 7))]) for folder in ("a", "b")
        )
        assert (block.text, block.dropped) == (f"## Folder Notes\n\n{expected}", 4)


class TestFolders:
    """One heading a folder, shallow ones first."""

    def test_shallow_folders_first(self) -> None:
        """Those of one depth by name, that in which the agent works before all."""
        folders = ("src/b/c", "src/b", "docs", "src/a", "src", ".", "a/b/c/d")
        (text,) = texts(folder_notes=tuple(FolderNote(folder, folder, "t") for folder in folders))
        headings = [line for line in text.split("\n") if line.startswith("### ")]
        assert headings == ["### .", "### docs", "### src", "### src/a", "### src/b", "### src/b/c", "### a/b/c/d"]

    @pytest.mark.parametrize(
        ("given_folder", "shown"),
        [
            ("src\\a", "src/a"),
            ("C:\\Users\\x", "C:/Users/x"),
            ("src/a/", "src/a"),
            ("./src//a", "src/a"),
            (".\\src", "src"),
            ("", "."),
            ("./", "."),
            ("/", "/"),
            ("/src//a", "/src/a"),
            ("..", ".."),
            ("a b\nc", "a b c"),
        ],
    )
    def test_a_folder_by_any_spelling(self, given_folder: str, shown: str) -> None:
        """Windows paths, dots and slashes too many: the same folder is one."""
        assert texts(folder_notes=(FolderNote("1", given_folder, "t"),)) == [f"## Folder Notes\n\n### {shown}\n- t"]


@given(st.text(st.sampled_from("-#[] x\n\r\u2028\u200b\\/.(ID: 1)"), max_size=20))
def test_no_text_makes_an_item(text: str) -> None:
    """Of the characters that items and headings are made of."""
    todo, info, notes = texts(
        todos=(Todo("1", text), Todo("2", "last")),
        useful_info=(Info("1", text), Info("2", "last")),
        folder_notes=(FolderNote("1", "f", text), FolderNote("2", f"g{text}", "last")),
    )
    _check_lines(todo, "## Current TODO List", 0, 2)
    _check_lines(info, "## Useful Information", 0, 2)
    _check_lines(notes, "## Folder Notes", 2, 2)


def _check_lines(block: str, heading: str, folders: int, items: int) -> None:
    first, blank, *lines = block.split("\n")
    assert (first, blank) == (heading, "")
    assert len([line for line in lines if line.lstrip("\\").startswith("#")]) == folders
    assert len([line for line in lines if line.startswith("- ")]) == items
    rest = [line for line in lines if not line.lstrip("\\").startswith("#") and not line.startswith("- ")]
    assert all(line == "" or line.startswith("  ") for line in rest)
    assert rest.count("") == max(folders - 1, 0)


class TestWhatToPin:
    """What came along, part by part, before what is stored."""

    STORED = SessionState(
        role="Stored role.",
        sub_agent_roles={"reviewer": "Stored reviewer."},
        todos=(Todo("1", "stored"),),
        useful_info=(Info("1", "stored"),),
        folder_notes=(FolderNote("1", "f", "stored"),),
    )

    def test_part_by_part(self) -> None:
        """A part that came along counts alone, also an empty one; the others are as stored."""
        given_state = SessionState(todos=(), useful_info=(Info("9", "given"),))
        _, state = what_to_pin(MAIN, given_state, self.STORED)
        assert state.todos == ()
        assert state.useful_info == (Info("9", "given"),)
        assert state.folder_notes == self.STORED.folder_notes

    @pytest.mark.parametrize(
        ("agent", "given_state", "role"),
        [
            (Agent("main", "", "Agent."), SessionState(role="State."), "Agent."),
            (Agent("main", "", ""), SessionState(role="State."), "State."),
            (Agent("main", "", " \n"), SessionState(), "Stored role."),
            (Agent("main", "", "\u200b"), SessionState(role=""), "Stored role."),
            (Agent("main", "reviewer"), SessionState(sub_agent_roles={"reviewer": "No."}), "Stored role."),
        ],
    )
    def test_the_main_agents_role(self, agent: Agent, given_state: SessionState, role: str) -> None:
        """The agent's own, else that of the state that came along, else the stored one; a blank one is none."""
        assert what_to_pin(agent, given_state, self.STORED)[0] == role

    @pytest.mark.parametrize(
        ("agent", "given_state", "role"),
        [
            (Agent("sub", "reviewer", "Agent."), SessionState(sub_agent_roles={"reviewer": "State."}), "Agent."),
            (SUB, SessionState(sub_agent_roles={"reviewer": "State.", "other": "No."}), "State."),
            (SUB, SessionState(sub_agent_roles={"other": "No."}, role="No."), "Stored reviewer."),
            (Agent("sub", "other"), SessionState(role="No."), ""),
            (Agent("sub"), SessionState(role="No."), ""),
            (Agent("sub", "Reviewer"), SessionState(), ""),
        ],
    )
    def test_a_sub_agents_role(self, agent: Agent, given_state: SessionState, role: str) -> None:
        """By its id, and never the main agent's."""
        assert what_to_pin(agent, given_state, self.STORED)[0] == role

    def test_whether_the_stored_state_is_needed(self) -> None:
        """It is not when a role and every list came along, empty ones too."""
        lists = SessionState(todos=(), useful_info=(), folder_notes=())
        assert is_all_given(Agent("main", "", "r"), lists)
        assert is_all_given(Agent("sub", "x", "r"), lists)
        assert not is_all_given(MAIN, lists)
        assert not is_all_given(Agent("main", "", "r"), SessionState(todos=(), useful_info=()))
        assert is_role_given(SUB, SessionState(sub_agent_roles={"reviewer": "r"}))
        assert not is_role_given(SUB, SessionState(role="r"))
