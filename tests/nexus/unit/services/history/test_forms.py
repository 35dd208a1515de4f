"""Every form of a message that is understood, and what it is inside (contract §11)."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nexus.core.models import LeftOut, Message, Role, Why, parse_moment
from nexus.services.history.forms import Input, left_out_of, native, read_input, success_of
from nexus.services.history.parts import Media
from nexus.services.history.rows import llm_row
from nexus.services.history.tool_calls import read_tool_calls
from nexus.services.text.content import as_text
from tests.nexus.support import sdk_messages as sdk

DATA: Final = "aGk="
CALL: Final = sdk.Call("call_1", "look", {"q": "x"})


def text_part(text: str) -> dict[str, str]:
    """A part that is a text."""
    return {"type": "text", "text": text}


def told(message: Any) -> list[tuple[str, str]]:
    """Role and text of each row that a message is."""
    return [(row["role"], as_text(row.get("content"))) for row in native(message)]


def text_of(content: Any, role: str = "user") -> str:
    """The text of the one row that a message with this content is."""
    ((_, text),) = told({"role": role, "content": content})
    return text


def calls_of(message: Any) -> list[tuple[str, str, Any]]:
    """Id, name and arguments of the calls of a message."""
    stored = [call for row in native(message) for call in row["metadata"].get("tool_calls", ())]
    return [(call.id, call.name, call.arguments) for call in read_tool_calls(stored)]


def results_of(messages: Sequence[Any]) -> list[tuple[str, str, bool | None]]:
    """The call that each result names, its text, and whether the call succeeded."""
    rows = [row for message in messages for row in native(message) if row["role"] == "TOOL"]
    return [(row["metadata"].get("call_id", ""), as_text(row["content"]), success_of(row["metadata"])) for row in rows]


def left_out(message: Any) -> list[tuple[str, Why]]:
    """What is left out of a message."""
    return [(each.what, each.why) for row in native(message) for each in left_out_of(row, "m")]


class TestRoles:
    """The names of the speakers."""

    @pytest.mark.parametrize(
        ("name", "role"),
        [
            *((name, "HUMAN") for name in ("human", "user", "HUMAN", "User", "HumanMessage")),
            *((name, "AI") for name in ("ai", "assistant", "model", "Assistant", "AIMessage", "AIMessageChunk")),
            *((name, "TOOL") for name in ("tool", "function", "toolMessage", "FUNCTION", "FunctionMessage")),
            *((name, "SYSTEM") for name in ("system", "developer", "Developer", "SystemMessage")),
            ("command", "COMMAND"),
        ],
    )
    @pytest.mark.parametrize("field", ["role", "type"])
    def test_every_name(self, field: str, name: str, role: str) -> None:
        """In any case; LangChain has them as the type."""
        assert told({field: name, "content": "hi"}) == [(role, "hi")] or field == "type"
        assert told({"role": name, "content": "hi"}) == [(role, "hi")]

    @pytest.mark.parametrize("form", sdk.USERS)
    def test_a_person(self, form: sdk.Form) -> None:
        """In each SDK's form: texts, and a word for the image."""
        (message,) = form(sdk.Said(["What is", "it?"], image=True))
        assert told(message) == [("HUMAN", f"What is\nit?\n{sdk.IMAGE}")]

    @pytest.mark.parametrize("form", sdk.ASSISTANTS)
    def test_a_model(self, form: sdk.Form) -> None:
        """In each SDK's form: its text and its calls; thoughts by name."""
        messages = form(sdk.Said(["I look."], thought="hm", calls=[CALL]))
        assert [pair for message in messages for pair in told(message) if pair[1]] == [("AI", "I look.")]
        assert [call for message in messages for call in calls_of(message)] == [("call_1", "look", {"q": "x"})]
        names = [entry for message in messages for entry in left_out(message)]
        assert names in ([], [("thinking", Why.THINKING)])
        assert "hm" not in [text for message in messages for _, text in told(message)]

    @pytest.mark.parametrize("row", [None, 5, "x", [], {}, {"role": "critic", "content": "x"}, {"role": ["user"]}])
    def test_no_message(self, row: Any) -> None:
        """Stays what it is, for whoever counts it."""
        assert native(row) == [row]


class TestContent:
    """What a content says."""

    @pytest.mark.parametrize(
        ("content", "text"),
        [
            ("hi", "hi"),
            ({"text": "hi"}, "hi"),
            ({"role": "user", "content": "hi"}, "hi"),
            ({"parts": [{"text": "a"}, {"text": "b"}]}, "a\nb"),
            (["a", {"type": "text", "text": "b"}], "a\nb"),
            *(([{"type": kind, "text": "hi"}], "hi") for kind in ("text", "input_text", "output_text")),
            ([{"type": [{}], "text": "hi"}, {"type": {}, "text": "ho"}], "hi\nho"),
            ([{"type": "refusal", "refusal": "No."}], "No."),
            ([{"type": "image_url", "image_url": {"url": "https://x.org/a.png"}}], "[image]"),
            ([{"type": "image_url", "image_url": "https://x.org/a.png"}], "[image]"),
            ([{"type": "input_image", "image_url": f"data:image/png;base64,{DATA}"}], "[image: image/png, 1 KB]"),
            ([{"type": "image", "source": {"type": "url", "url": "https://x.org/a.png"}}], "[image]"),
            (
                [{"type": "image", "source": {"type": "base64", "media_type": "image/webp", "data": "A" * 40_000}}],
                "[image: image/webp, 30 KB]",
            ),
            (
                [{"type": "image", "source_type": "base64", "mime_type": "image/png", "data": DATA}],
                "[image: image/png, 1 KB]",
            ),
            ([{"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}}], "[audio: audio/wav, 1 KB]"),
            ([{"type": "file", "file": {"file_id": "f1"}}], "[file]"),
            (
                [{"type": "file", "file": {"file_data": f"data:application/pdf;base64,{DATA}"}}],
                "[file: application/pdf, 1 KB]",
            ),
            (
                [{"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": DATA}}],
                "[file: application/pdf, 1 KB]",
            ),
            ([{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "words"}}], "words"),
            ({"parts": [{"inlineData": {"mimeType": "audio/mp3", "data": DATA}}]}, "[audio: audio/mp3, 1 KB]"),
            ({"parts": [{"inline_data": {"mime_type": "image/png", "data": DATA}}]}, "[image: image/png, 1 KB]"),
            ({"parts": [{"fileData": {"mimeType": "video/mp4", "fileUri": "gs://x"}}]}, "[video: video/mp4]"),
            ({"parts": [{"executableCode": {"language": "PYTHON", "code": "1+1"}}]}, "1+1"),
            ({"parts": [{"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}}]}, "2"),
            (
                [{"type": "input_file", "filename": "bill.pdf", "file_data": f"data:application/pdf;base64,{DATA}"}],
                "[file: bill.pdf, application/pdf, 1 KB]",
            ),
            (
                [{"type": "document", "title": "Lease", "source": {"type": "text", "data": "words"}}],
                "[file: Lease]\nwords",
            ),
            (
                [{"type": "resource_link", "name": "r.csv", "uri": "file:///r.csv", "mimeType": "text/csv"}],
                "[file: r.csv, file:///r.csv, text/csv]",
            ),
            (
                [{"type": "search_result", "title": "T", "source": "https://t.example", "content": [text_part("hit")]}],
                "[file: T, https://t.example]\nhit",
            ),
            ([{"type": "image", "image": f"data:image/png;base64,{DATA}"}], "[image: image/png, 1 KB]"),
            ([{"type": "file", "mediaType": "image/png", "data": DATA}], "[image: image/png, 1 KB]"),
            ({"blocks": [{"block_type": "text", "text": "hi"}]}, "hi"),
            ([{"type": "text", "content": "hi"}], "hi"),
            ([{"type": "text", "text": {"value": "hi", "annotations": []}}], "hi"),
            ([{"type": "text", "text": None}], ""),
            ([{"type": "text", "text": None}, text_part("hi")], "hi"),
            ([{"part_kind": "text", "content": "hi"}, {"part_kind": "user-prompt", "content": "ho"}], "hi\nho"),
            ({"output": {"message": {"role": "x", "content": [{"text": "hi"}]}}, "stopReason": "end_turn"}, "hi"),
            ({"candidates": None, "prompt_feedback": {"block_reason": "SAFETY"}}, ""),
            ({"promptFeedback": {"blockReason": "SAFETY"}}, ""),
            (5, "5"),
            ({"a": [1]}, '{"a":[1]}'),
            ([1, 2], "[1,2]"),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("role", ["user", "assistant"])
    def test_a_content(self, role: str, content: Any, text: str) -> None:
        """Is one text; what is no message at all is its JSON."""
        assert text_of(content, role) == text

    @pytest.mark.parametrize(
        "part",
        [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"text": "hm", "thought": True},
        ],
    )
    def test_thinking(self, part: Any) -> None:
        """Is never words, and named."""
        message = {"role": "assistant", "content": [part, {"type": "text", "text": "So."}]}
        assert told(message) == [("AI", "So.")]
        assert left_out(message) == [("thinking", Why.THINKING)]

    @pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
    def test_thinking_beside_the_content(self, name: str) -> None:
        """As compatible servers send it."""
        message = {"role": "assistant", "content": {"content": "So.", name: "hm"}}
        assert told(message) == [("AI", "So.")]
        assert left_out(message) == [("thinking", Why.THINKING)]

    @pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
    def test_thinking_alone(self, name: str) -> None:
        """Where what is null is left out, and a limit has ended the answer before its first word."""
        message = {"role": "assistant", "content": {"role": "assistant", name: "hm"}}
        assert (told(message), left_out(message)) == ([("AI", "")], [("thinking", Why.THINKING)])
        data = {"thought": "hm", "action": "x"}
        assert text_of(data, "assistant") == as_text(data)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("<think>\nhm</think>\n\nSo.", "So."),
            ("\n<thinking>hm</thinking><think>hm</think>So.", "So."),
            ("<think>hm", ""),
            ("Write <think>hm</think>.", "Write <think>hm</think>."),
        ],
    )
    @pytest.mark.parametrize("place", ["text", "part"])
    def test_thinking_in_tags(self, place: str, text: str, said: str) -> None:
        """Is thinking in front of an answer, and nowhere else."""
        content = text if place == "text" else [text_part(text)]
        assert text_of(content, "assistant") == said
        assert {*left_out({"role": "assistant", "content": content})} == (
            set() if said == text else {("thinking", Why.THINKING)}
        )
        assert text_of(content, "user") == text

    def test_a_spoken_answer(self) -> None:
        """Is its words, or a word for it."""
        audio = {"id": "a", "data": DATA, "expires_at": 1, "transcript": "Hello."}
        assert told({"role": "assistant", "content": None, "audio": audio}) == [("AI", "Hello.")]
        assert told({"role": "assistant", "content": None, "audio": {**audio, "transcript": ""}}) == [
            ("AI", "[audio: 1 KB]")
        ]

    @pytest.mark.parametrize(
        "form", [sdk.openai_completion, sdk.responses_whole, sdk.anthropic_whole, sdk.gemini_whole]
    )
    def test_a_whole_response(self, form: sdk.Form) -> None:
        """Is the answer in it."""
        (message,) = form(sdk.Said(["Yes."], calls=[CALL]))
        assert told(message) == [("AI", "Yes.")]
        assert calls_of(message) == [("call_1", "look", {"q": "x"})]

    def test_further_choices(self) -> None:
        """Are named: a caller uses the first."""
        choices = [{"message": {"role": "assistant", "content": text}} for text in "abc"]
        message = {"role": "assistant", "content": {"choices": choices}}
        assert (told(message), left_out(message)) == ([("AI", "a")], [("2 further choices", Why.TOO_MANY)])

    def test_the_tokens_that_it_took(self) -> None:
        """Under one set of names."""
        (message,) = sdk.anthropic_whole(sdk.Said(["Yes."]))
        assert native(message)[0]["metadata"]["usage"] == {"prompt_tokens": 3, "completion_tokens": 2}

    @pytest.mark.parametrize("kind", ["search_results", "web_search_call", "something_new", "tool-approval-request"])
    def test_a_part_that_is_not_understood(self, kind: str) -> None:
        """Is named by its type, without content."""
        message = {"role": "user", "content": [{"type": kind, "secret": "x"}, {"type": "text", "text": "hi"}]}
        assert (told(message), left_out(message)) == ([("HUMAN", "hi")], [(kind, Why.UNREADABLE)])

    @pytest.mark.parametrize(
        "content",
        [
            {"text": "a", "answer": "and b"},
            {"content": "a", "answer": "and b", "model": "m", "stop_reason": "end_turn", "request_id": "r"},
            [{"type": "text", "text": ""}, {"text": "a", "answer": "and b", "thoughtSignature": "s"}],
            {"choices": [{"message": {"role": "assistant", "content": "a", "answer": "and b"}}]},
        ],
    )
    def test_a_text_under_a_name_that_nobody_knows(self, content: Any) -> None:
        """Is named beside the text that is shown."""
        message = {"role": "assistant", "content": content}
        assert (told(message), left_out(message)) == ([("AI", "a")], [("answer", Why.UNREADABLE)])

    @pytest.mark.parametrize("name", ["model", "provider", "system_fingerprint", "version", "agent", "display_name"])
    def test_what_a_message_says_of_itself(self, name: str) -> None:
        """Is no loss: names, states and versions."""
        value = "Jane Doe" if name in {"agent", "display_name"} else "fp_44709d6fcb"
        message = {"role": "assistant", "content": {"content": "a", name: value}}
        assert (told(message), left_out(message)) == ([("AI", "a")], [])

    @pytest.mark.parametrize("name", ["attachments", "experimental_attachments", "images"])
    def test_what_is_attached(self, name: str) -> None:
        """Is named, beside the content and in it."""
        files = [{"url": "https://a.example/b.pdf"}]
        for message in ({"content": "a", name: files}, {"content": {"text": "a", name: files}}):
            asked = {"role": "user", **message}
            assert (told(asked), left_out(asked)) == ([("HUMAN", "a")], [(name, Why.UNREADABLE)])

    @pytest.mark.parametrize("value", ["https://a.example/b.png", "A" * 4_000, ["two words"]])
    @pytest.mark.parametrize("name", ["image", "image_url", "file", "files"])
    def test_what_is_attached_to_a_text(self, name: str, value: Any) -> None:
        """Is named once, whatever it looks like; so is a long text that is no word."""
        keys = (name, "picture") if len(value) > 100 else (name,)
        for message in ({"content": "a", name: value}, *({"content": {"text": "a", key: value}} for key in keys)):
            asked = {"role": "user", **message}
            (key,) = {*(message["content"] if isinstance(message["content"], dict) else message)} - {"content", "text"}
            assert (told(asked), left_out(asked)) == ([("HUMAN", "a")], [(key, Why.UNREADABLE)])

    def test_a_part_that_says_nothing(self) -> None:
        """One that has only a type is no loss."""
        message = {"role": "assistant", "parts": [{"type": "step-start"}, {"type": "text", "text": "a"}]}
        assert (told(message), left_out(message)) == ([("AI", "a")], [])

    @pytest.mark.parametrize("content", ["ab", "a", ["a", "b"]])
    def test_content_and_parts(self, content: Any) -> None:
        """The texts of the parts joined are no other content."""
        parts = [{"type": "text", "text": "a"}, {"type": "step-start"}, {"type": "text", "text": "b"}]
        message = {"role": "assistant", "content": content, "parts": parts}
        assert told(message) == [("AI", "a\nb" if content == "ab" else "\n".join([*content, "a", "b"]))]

    def test_the_media_of_an_input(self) -> None:
        """Come with its text, as a provider can be given them."""
        said = read_input(sdk.openai_user(sdk.Said(["look"], image=True))[0]["content"])
        assert said == Input(f"look\n{sdk.IMAGE}", (Media("image", "image/png", len(sdk.PNG), sdk.DATA_URL),))


class TestCalls:
    """Calls and their results."""

    @pytest.mark.parametrize(
        ("said", "shown"),
        [
            ({"output": "half of it", "error": "timed out"}, '{"output":"half of it","error":"timed out"}'),
            ({"result": "ok", "data": {"rows": [1]}}, '{"result":"ok","data":{"rows":[1]}}'),
            ({"result": "", "error": "timed out"}, "timed out"),
            ({"result": "a", "text": "a", "error": False}, "a"),
            ({"result": "no", "error": {"message": "no", "retryable": False}}, "no"),
            ({"result": 0, "error": None, "data": []}, "0"),
            ({"result": "", "content": None}, ""),
        ],
    )
    def test_a_result_that_says_several_things(self, said: Any, shown: str) -> None:
        """All of it is shown; what says nothing, or the same again, is no other thing."""
        message = {"role": "TOOL", "content": {"call_id": "c", **said}, "metadata": {}}
        success = False if said.get("error") else None
        assert results_of([message]) == [("c", shown, success)]

    @pytest.mark.parametrize("size", [100, 5_000])
    @pytest.mark.parametrize("other", ["x", 1.5, None, ["x"]])
    def test_a_call_that_is_no_object(self, other: Any, size: int) -> None:
        """Is named, and the others stay, in a message of any size."""
        call = {"id": "c", "name": "f", "args": {"a": 1}}
        metadata = {"tool_calls": [other, call]}
        asked = Message(id="m", run_id="r", owner_key="o", role=Role.AI, content="a", metadata=metadata)
        row = llm_row(asked, size)
        assert row is not None
        assert (row["content"], calls_of(row)) == ("a", [("c", "f", {"a": 1})])
        assert left_out(row) == [("call", Why.UNREADABLE)]

    @pytest.mark.parametrize(
        "call",
        [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
            {"id": "c", "name": "f", "arguments": {"a": 1}},
            {"id": "c", "name": "f", "args": {"a": 1}, "type": "tool_call"},
            {"id": "c", "name": "f", "input": {"a": 1}},
            {"id": "c", "name": "f", "parameters": {"a": 1}},
            {"toolCallId": "c", "toolName": "f", "args": {"a": 1}},
            {"id": "c", "tool_name": "f", "args": {"a": 1}},
            {"id": "c", "type": "function", "function": "f", "arguments": '{"a": 1}'},
            {"id": "c", "type": "custom", "custom": {"name": "f", "input": '{"a": 1}'}},
            {"call_id": "c", "id": "fc_1", "name": "f", "arguments": '{"a": 1}'},
        ],
    )
    @pytest.mark.parametrize("place", ["beside", "toolCalls", "metadata", "content"])
    def test_a_call(self, place: str, call: dict[str, Any]) -> None:
        """Nested, flat or custom, beside the content, in the metadata, or in the content that comes as a message."""
        message: dict[str, Any] = {"role": "assistant", "content": "x"}
        match place:
            case "beside":
                message["tool_calls"] = [call]
            case "toolCalls":
                message = {"role": "assistant", "content": "x", place: [call]}
                assert calls_of({"role": "AI", "content": message}) == [("c", "f", {"a": 1})]
            case "metadata":
                message["metadata"] = {"tool_calls": [call]}
            case _:
                message["content"] = {"content": "x", "tool_calls": [call]}
        assert told(message) == [("AI", "x")]
        assert calls_of(message) == [("c", "f", {"a": 1})]

    @pytest.mark.parametrize(
        ("content", "result"),
        [
            ({"result": "r", "call_id": "c"}, ("c", "r", None)),
            ({"id": "c", "result": "r"}, ("c", "r", None)),
            ({"tool_call_id": "c", "output": "r"}, ("c", "r", None)),
            ({"call_id": "c", "data": {"a": 1}}, ("c", '{"a":1}', None)),
            ({"call_id": "c", "result": None, "error": "no"}, ("c", "no", False)),
            ({"call_id": "c", "result": "r", "execution_success": False}, ("c", "r", False)),
            ({"call_id": "c", "result": "r", "status": 200}, ("c", "r", True)),
            ({"text": "r"}, ("", "r", None)),
            ({"role": "tool", "toolCallId": "c", "content": "r"}, ("c", "r", None)),
            ({"role": "tool", "tool_call_id": "c"}, ("c", "", None)),
            ({"call_id": "c", "tool_name": "f", "status": "success"}, ("c", "", True)),
            ({"status": "success", "name": "f"}, ("", '{"status":"success","name":"f"}', None)),
            ({"parts": [{"part_kind": "tool-return", "tool_call_id": "c", "content": "r"}]}, ("c", "r", None)),
            ({"content": [{"type": "text", "text": "r"}], "isError": True}, ("", "r", False)),
            (
                {"content": [{"type": "text", "text": "r"}], "structuredContent": {"a": 1}},
                ("", 'r\n{"a":1}', None),
            ),
            ({"result": 42, "unit": "C"}, ("", '{"result":42,"unit":"C"}', None)),
            ({"id": "c", "content": "r"}, ("", '{"id":"c","content":"r"}', None)),
        ],
    )
    def test_envelopes_of_results(self, content: Any, result: tuple[str, str, bool | None]) -> None:
        """Name the call and say how it ended; what may be the result itself stays as it is."""
        assert results_of([{"role": "TOOL", "content": content}]) == [result]

    @pytest.mark.parametrize("text", ["", "I look."])
    def test_a_text_beside_the_deprecated_call(self, text: str) -> None:
        """Is not lost, wherever both stand."""
        said = {"role": "assistant", "content": text, "function_call": {"name": "f", "arguments": "{}"}}
        for message in (
            said,
            {"role": "AI", "content": said},
            {"role": "AI", "content": {"choices": [{"message": said}]}},
        ):
            assert (told(message), calls_of(message)) == ([("AI", text)], [("", "f", {})])

    def test_the_deprecated_call(self) -> None:
        """Has no id."""
        (message,) = sdk.openai_function_call(sdk.Said(calls=[CALL]))
        assert calls_of(message) == [("", "look", {"q": "x"})]

    @pytest.mark.parametrize("form", sdk.CUSTOM_CALLS)
    def test_a_custom_call(self, form: sdk.Form) -> None:
        """Has a text for its input, which is kept."""
        (message,) = form(sdk.Said(calls=[CALL]))
        assert calls_of(message) == [("call_1", "look", {"arguments": 'input {"q": "x"}'})]

    @pytest.mark.parametrize(
        ("part", "call", "result"),
        [
            ({"text": "Hm.", "functionCall": {"name": "look", "args": {"a": 1}}}, ("", "look", {"a": 1}), None),
            ({"thought": True, "text": None, "function_call": {"name": "look"}}, ("", "look", {}), None),
            ({"toolCall": {"id": "c", "toolType": "URL", "args": {"a": 1}}}, ("c", "URL", {"a": 1}), None),
            ({"toolUse": {"toolUseId": "c", "name": "look", "input": {"a": 1}}}, ("c", "look", {"a": 1}), None),
            (
                {"type": "local_shell_call", "id": "i", "call_id": "c", "action": {"command": ["ls"]}},
                ("c", "local_shell", {"command": ["ls"]}),
                None,
            ),
            (
                {"type": "tool-look", "toolCallId": "c", "state": "output-available", "input": {"a": 1}, "output": "x"},
                ("c", "look", {"a": 1}),
                ("c", "x", None),
            ),
            (
                {
                    "type": "dynamic-tool",
                    "toolName": "look",
                    "toolCallId": "c",
                    "state": "output-error",
                    "errorText": "x",
                },
                ("c", "look", {}),
                ("c", "x", False),
            ),
            *(
                (
                    {"type": "tool-look", "toolCallId": "c", "state": state, "input": {}, **output},
                    ("c", "look", {}),
                    ("c", "", success),
                )
                for state, output, success in (
                    ("output-available", {"output": ""}, None),
                    ("output-available", {"output": None}, None),
                    ("output-available", {}, None),
                    ("output-error", {"errorText": ""}, False),
                )
            ),
            (
                {"type": "tool-look", "toolCallId": "c", "state": "input-available", "input": {}},
                ("c", "look", {}),
                None,
            ),
            (
                {"type": "mcp_call", "id": "c", "name": "look", "arguments": "{}", "output": ""},
                ("c", "look", {}),
                ("c", "", None),
            ),
            *(
                (
                    {
                        "type": "mcp_call",
                        "id": "c",
                        "name": "look",
                        "arguments": "{}",
                        "output": None,
                        "status": status,
                    },
                    ("c", "look", {}),
                    result,
                )
                for status, result in (
                    (None, None),
                    ("in_progress", None),
                    ("completed", ("c", "", None)),
                    ("failed", ("c", "", False)),
                )
            ),
            *(
                (
                    {"type": "tool-look", "toolCallId": "c", "state": state, "approval": {"approved": False} | reason},
                    ("c", "look", {}),
                    ("c", text, False),
                )
                for state, reason, text in (
                    ("output-denied", {"reason": "No."}, '{"type":"execution-denied","reason":"No."}'),
                    ("approval-responded", {}, '{"type":"execution-denied"}'),
                )
            ),
            (
                {"type": "tool-look", "toolCallId": "c", "state": "approval-responded", "approval": {"approved": True}},
                ("c", "look", {}),
                None,
            ),
            (
                {"block_type": "tool_call", "tool_call_id": "c", "tool_name": "look", "tool_kwargs": {"a": 1}},
                ("c", "look", {"a": 1}),
                None,
            ),
            (
                {"part_kind": "tool-call", "tool_call_id": "c", "tool_name": "look", "args": '{"a": 1}'},
                ("c", "look", {"a": 1}),
                None,
            ),
            (
                {"type": "tool-invocation", "toolInvocation": {"toolCallId": "c", "toolName": "look", "state": "call"}},
                ("c", "look", {}),
                None,
            ),
        ],
        ids=str,
    )
    def test_a_call_in_a_part(
        self, part: dict[str, Any], call: tuple[str, str, Any], result: tuple[str, str, bool | None] | None
    ) -> None:
        """Is a call, and its result where that is there too; its text is said."""
        message = {"role": "assistant", "content": [part]}
        assert calls_of(message) == [call]
        assert results_of([message]) == ([result] if result else [])
        assert told(message)[0] == ("AI", part.get("text") or "")

    def test_messages_of_llamaindex(self) -> None:
        """Have blocks in place of a content, and the id of the call beside them."""
        block = {"block_type": "text", "text": "hi"}
        call = {"block_type": "tool_call", "tool_call_id": "c", "tool_name": "look", "tool_kwargs": '{"a": 1}'}
        answer = {"role": "assistant", "additional_kwargs": {}, "blocks": [block, call]}
        assert (told(answer), calls_of(answer)) == ([("AI", "hi")], [("c", "look", {"a": 1})])
        result = {"role": "tool", "additional_kwargs": {"tool_call_id": "c"}, "blocks": [block]}
        for message in (result, {"role": "TOOL", "content": result}):
            assert results_of([message]) == [("c", "hi", None)]

    def test_a_call_that_is_named_twice(self) -> None:
        """Is one: LangChain has those of Anthropic in the content, too."""
        (message,) = sdk.langchain_ai_blocks(sdk.Said(["x"], calls=[CALL]))
        assert calls_of(message) == [("call_1", "look", {"q": "x"})]

    def test_a_call_of_langchain_that_could_not_be_read(self) -> None:
        """Is kept with its arguments as they are."""
        wrong = {"name": "f", "args": "{oops", "id": "c", "error": "no JSON", "type": "invalid_tool_call"}
        message = {"type": "ai", "data": {"content": "", "tool_calls": [], "invalid_tool_calls": [wrong]}}
        assert calls_of(message) == [("c", "f", {"arguments": "{oops"})]

    @pytest.mark.parametrize("calls", ["look", 5, [5], ["look"], {"a": 1}])
    def test_what_is_no_list_of_calls(self, calls: Any) -> None:
        """An object is a call; anything else is named."""
        message = {"role": "assistant", "content": "x", "tool_calls": calls}
        assert told(message) == [("AI", "x")]
        assert bool(calls_of(message)) is isinstance(calls, dict)
        assert left_out(message) == ([] if isinstance(calls, dict) else [("call", Why.UNREADABLE)])

    @pytest.mark.parametrize("form", sdk.RESULTS)
    @pytest.mark.parametrize("image", [True, False])
    def test_results(self, form: sdk.Form, image: bool) -> None:
        """In each SDK's form, each with its call; an image in it is a word, where the form has one."""
        results = [sdk.Result(sdk.Call(f"c{n}", "f", {}), f"text {n}", image=image) for n in range(2)]
        found = results_of(form(sdk.Said(results=results)))
        assert [(call_id, text.removesuffix(f"\n{sdk.IMAGE}")) for call_id, text, _ in found] == [
            ("c0", "text 0"),
            ("c1", "text 1"),
        ]
        assert all(success is not False for *_, success in found)

    @pytest.mark.parametrize("form", [sdk.anthropic_user, sdk.gemini_user, sdk.langchain_tool])
    def test_a_result_that_failed(self, form: sdk.Form) -> None:
        """Says so in the forms that can."""
        assert results_of(form(sdk.Said(results=[sdk.Result(CALL, "no", failed=True)]))) == [("call_1", "no", False)]

    @pytest.mark.parametrize(
        ("fields", "success"),
        [
            ({"status": "success"}, True),
            ({"status": "ok"}, True),
            ({"status": "error"}, False),
            ({"is_error": True}, False),
            ({"execution_success": True}, True),
            ({"status": "success", "execution_success": False}, False),
            ({}, None),
        ],
    )
    @pytest.mark.parametrize("name", ["call_id", "tool_call_id", "tool_use_id"])
    def test_an_envelope(self, name: str, fields: dict[str, Any], success: bool | None) -> None:
        """Names its call, its tool and its end in any of these ways, in the content, in the metadata or beside them."""
        about = {name: "c", "tool_name": "f", **fields}
        for message in (
            {"role": "tool", "content": {"result": "42", **about}},
            {"role": "tool", "content": "42", "metadata": about},
            {"role": "tool", "content": "42", **about},
        ):
            assert results_of([message]) == [("c", "42", success)]
            assert native(message)[0]["metadata"]["tool_name"] == "f"

    @pytest.mark.parametrize("args", ["args", "input"])
    def test_calls_of_vercels_sdk(self, args: str) -> None:
        """Are parts with names of their own, and arguments as its version has them."""
        part = {"type": "tool-call", "toolCallId": "c", "toolName": "f", args: {"a": 1}}
        for content in ([{"type": "text", "text": "I look."}, part], [part], part):
            message = {"role": "assistant", "content": content}
            assert calls_of(message) == [("c", "f", {"a": 1})]
            assert left_out(message) == []

    @pytest.mark.parametrize(
        ("fields", "text", "success"),
        [
            ({"result": "42"}, "42", None),
            ({"result": {"a": 1}, "isError": False}, '{"a":1}', None),
            ({"result": "no", "isError": True}, "no", False),
            ({"result": {"type": "text", "value": "42"}}, '{"type":"text","value":"42"}', None),
            ({"output": {"type": "text", "value": "42"}}, "42", None),
            ({"output": {"type": "json", "value": {"a": 1}}}, '{"a":1}', None),
            ({"output": {"type": "content", "value": [{"type": "text", "text": "42"}]}}, "42", None),
            ({"output": {"type": "error-text", "value": "no"}}, "no", False),
            ({"output": {"type": "error-json", "value": {"a": 1}}}, '{"a":1}', False),
            ({"output": {"type": "new", "value": "42"}}, '{"type":"new","value":"42"}', None),
        ],
        ids=str,
    )
    def test_results_of_vercels_sdk(self, fields: dict[str, Any], text: str, success: bool | None) -> None:
        """By itself, as a part, and beside another part; until its version 4 under `result`, then under `output`."""
        result = {"toolCallId": "c", "toolName": "f", **fields}
        part = {"type": "tool-result", **result}
        for content in (result, part, [part]):
            message = {"role": "tool", "content": content}
            assert results_of([message]) == [("c", text, success)]
            assert native(message)[0]["metadata"]["tool_name"] == "f"
        assert results_of([{"role": "tool", "content": [part, {**part, "toolCallId": "d"}]}]) == [
            ("c", text, success),
            ("d", text, success),
        ]

    @pytest.mark.parametrize("error", ["no", {}])
    def test_an_error_of_vercels_sdk(self, error: Any) -> None:
        """Answers the call beside it; an error of JavaScript is an empty object."""
        call = {"type": "tool-call", "toolCallId": "c", "toolName": "f", "input": {}}
        message = {"role": "assistant", "content": [call, {**call, "type": "tool-error", "error": error}]}
        assert results_of([message]) == [("c", as_text(error), False)]
        assert left_out(message) == []

    @pytest.mark.parametrize(
        ("content", "text"),
        [
            ([{"type": "text", "content": "hi", "at": 1}], '[{"type":"text","content":"hi","at":1}]'),
            ([{"type": "file", "name": "a.txt"}], '[{"type":"file","name":"a.txt"}]'),
            ({"type": "file", "name": "a", "content": "hi"}, '{"type":"file","name":"a","content":"hi"}'),
            ([{"type": "image", "url": "u", "votes": 3}], '[{"type":"image","url":"u","votes":3}]'),
            ([{"text": "hit", "url": "u"}], '[{"text":"hit","url":"u"}]'),
            ({"text": "hit", "url": "u"}, '{"text":"hit","url":"u"}'),
            ([{"type": "event", "text": "hit", "at": 1}], '[{"type":"event","text":"hit","at":1}]'),
            ([text_part("hi"), {"type": "event", "at": 1}], 'hi\n{"type":"event","at":1}'),
            ([{"type": "web_search_result", "title": "T", "url": "u:", "encrypted_content": "x"}], "[file: T, u:]"),
            ({"content": [], "isError": True}, ""),
            ({"content": [], "structuredContent": {"a": 1}}, '{"a":1}'),
            ({"type": "constructor", "kwargs": {"type": "tool", "tool_call_id": "c", "content": "hi"}}, "hi"),
        ],
        ids=str,
    )
    def test_data_of_a_result(self, content: Any, text: str) -> None:
        """Is content parts only where they say nothing else."""
        ((role, said),) = told({"role": "tool", "content": content})
        assert (role, said) == ("TOOL", text)

    def test_a_message_of_a_tool_as_a_result(self) -> None:
        """As a tool of LangChain returns it: its content is the result, and it may have failed."""
        inner = {"type": "tool", "tool_call_id": "c", "content": "Rain.", "artifact": None, "status": "error"}
        about = {"call_id": "", "tool_name": "weather", "status": "success", "execution_success": True}
        assert results_of([{"role": "tool", "content": {"result": inner, **about}}]) == [("c", "Rain.", False)]
        data = {"type": "tool", "name": "hammer", "text": "heavy"}
        assert told({"role": "tool", "content": {"result": data, **about}}) == [("TOOL", as_text(data))]

    def test_results_with_more(self) -> None:
        """A picture of a response, an error of the provider's server, and words of the person beside results."""
        picture = {"inlineData": {"mimeType": "image/png", "data": DATA}}
        parts = [
            {"functionResponse": {"id": "a", "response": {"output": "see"}, "parts": [picture]}},
            {"toolResult": {"toolUseId": "b", "content": [{"text": "done"}]}},
            {"type": "web_search_tool_result", "tool_use_id": "c", "content": {"type": "x_error", "code": 1}},
            {"type": "approval", "id": "d"},
            text_part("Hurry."),
        ]
        message = {"role": "tool", "content": parts}
        assert results_of([message]) == [
            ("a", "see\n[image: image/png, 1 KB]", None),
            ("b", "done", None),
            ("c", '{"type":"x_error","code":1}', False),
        ]
        assert told(message)[3:] == [("HUMAN", "Hurry.")]
        assert left_out(message) == [("approval", Why.UNREADABLE)]

    def test_what_is_no_envelope(self) -> None:
        """Is a result as it is: nothing beside an inner `result` is lost."""
        result = {"result": 42, "unit": "C"}
        assert results_of([{"role": "tool", "content": result}]) == [("", '{"result":42,"unit":"C"}', None)]
        recorded = {"role": "TOOL", "content": {"result": 42}, "metadata": {"source": "tool_result", "call_id": "c"}}
        assert results_of([recorded]) == [("c", '{"result":42}', None)]

    def test_tools_that_the_provider_ran(self) -> None:
        """Are a call and its result, in the order in which they were said."""
        (message,) = sdk.anthropic_server_tools(sdk.Said(["I look."], results=[sdk.Result(CALL, "a page")]))
        rows = native(message)
        assert [row["role"] for row in rows] == ["AI", "TOOL"]
        assert calls_of(message) == [("call_1", "web_search", {"q": "x"})]
        ((call_id, text, _),) = results_of([message])
        assert call_id == "call_1"
        assert "a page" in text
        item = {"type": "mcp_call", "id": "m", "name": "f", "arguments": "{}", "server_label": "s", "output": "found"}
        message = {"role": "assistant", "content": [item]}
        assert (calls_of(message), results_of([message])) == ([("m", "f", {})], [("m", "found", None)])
        message["content"] = [{**item, "output": None, "error": "away"}]
        assert results_of([message]) == [("m", "away", False)]

    def test_a_message_of_several(self) -> None:
        """Is several rows with ids of their own, under the `_id` of the one that is stored."""
        blocks = [{"type": "tool_result", "tool_use_id": "c", "content": "42"}, {"type": "text", "text": "And?"}]
        stored = {"_id": "1", "id": "m", "run_id": "r", "role": "user", "content": blocks, "timestamp": "2025-01-01"}
        rows = native(stored)
        assert [(row["role"], row["id"], row["_id"], row["part"]) for row in rows] == [
            ("TOOL", "m", "1", 0),
            ("HUMAN", "m#2", "1", 1),
        ]
        assert all(row["timestamp"] == "2025-01-01" for row in rows)


class TestTimes:
    """When it was said."""

    @pytest.mark.parametrize(
        "given_as",
        [
            datetime(2025, 12, 10, 15, 30, tzinfo=UTC),
            datetime(2025, 12, 10, 15, 30),  # noqa: DTZ001  # as MongoDB gives it
            "2025-12-10T15:30:00Z",
            "2025-12-10T23:30:00+08:00",
            1765380600,
            1765380600.0,
            1765380600000,
            "1765380600",
        ],
    )
    def test_a_time(self, given_as: Any) -> None:
        """Aware, naive, ISO, seconds and milliseconds since 1970."""
        (row,) = native({"role": "user", "content": "x", "timestamp": given_as})
        assert parse_moment(row["timestamp"]) == datetime(2025, 12, 10, 15, 30, tzinfo=UTC)


_LEAVES: Final = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.binary(max_size=2)
    | st.sampled_from(
        ["\ud800", "data:image/png;base64,", "user", "tool", "text", "function", datetime(2025, 1, 1, tzinfo=UTC)]
    )
)
_NAMES: Final = st.sampled_from(
    [
        *("role", "type", "content", "parts", "text", "data", "message", "choices", "candidates", "output", "metadata"),
        *("toolCallId", "toolName", "value"),
        *("tool_calls", "function_call", "functionCall", "functionResponse", "inlineData", "source", "image_url"),
        *("result", "call_id", "status", "refusal", "audio", "additional_kwargs", "invalid_tool_calls", "thought"),
        *("name", "args", "input", "arguments", "response", "error", "executableCode", "id", "is_error", "usage", "x"),
    ]
)
_TYPES: Final = st.sampled_from(
    [
        *(
            "text",
            "image",
            "image_url",
            "file",
            "document",
            "thinking",
            "tool_use",
            "tool_result",
            "function",
            "custom",
            "tool-call",
            "tool-result",
            "error-text",
        ),
        *("message", "function_call", "function_call_output", "mcp_call", "reasoning", "ai", "human", "tool", "new"),
    ]
)
_JSON: Final = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(_NAMES, inner, max_size=4)
        | st.builds(
            lambda kind, more: {**more, "type": kind}, _TYPES | inner, st.dictionaries(_NAMES, inner, max_size=3)
        )
    ),
    max_leaves=12,
)
_ROLES: Final = st.sampled_from(["user", "assistant", "tool", "HUMAN", "AI", "TOOL", "model", "system", "critic", None])


class TestHostile:
    """Whatever it is, nothing raises."""

    @given(_ROLES, _JSON, st.dictionaries(_NAMES, _JSON, max_size=3), _JSON)
    @example("user", {"type": ["text"], "text": "hi"}, {}, {})
    def test_any_message(self, role: Any, content: Any, beside: dict[str, Any], metadata: Any) -> None:
        """It becomes rows in the form inside, which stay as they are when they are read again."""
        rows = native({**beside, "role": role, "content": content, "metadata": metadata})
        assert rows
        for row in rows:
            read_tool_calls(row["metadata"].get("tool_calls") if isinstance(row["metadata"], dict) else None)
            assert all(isinstance(each, LeftOut) for each in left_out_of(row, "m"))
            if row["role"] in {"HUMAN", "AI"}:
                assert row["content"] is None or isinstance(row["content"], str)
                assert native(row) == [row]

    @given(_JSON)
    @example({"tool_calls": "\ud800"})
    @example([{"type": {}, "text": "hi"}])
    def test_any_input(self, content: Any) -> None:
        """It has a text, or is none."""
        said = read_input(content)
        assert said is None or isinstance(said.text, str)

    @pytest.mark.parametrize("role", ["user", "assistant", "tool"])
    @pytest.mark.parametrize(
        "wrap", [lambda value: [value], lambda value: {"content": value}, lambda value: {"x": value}]
    )
    def test_deep(self, role: str, wrap: Any) -> None:
        """What is nested deep is still there, if as its JSON."""
        content: Any = "bottom"
        for _ in range(60):
            content = wrap(content)
        assert "bottom" in "".join(text for _, text in told({"role": role, "content": content}))

    def test_huge(self) -> None:
        """A hundred thousand parts are as many texts."""
        parts = [{"type": "text", "text": str(number)} for number in range(100_000)]
        assert text_of(parts) == "\n".join(map(str, range(100_000)))

    def test_a_call_under_a_humans_name(self) -> None:
        """A call is the assistant's, whoever makes it."""
        call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
        rows = native({"role": "user", "content": ["look", call, "well?"]})
        assert [(row["role"], row["content"]) for row in rows] == [("HUMAN", "look"), ("AI", ""), ("HUMAN", "well?")]


@pytest.mark.parametrize(
    "form",
    [*sdk.USERS, *sdk.ASSISTANTS, *sdk.CUSTOM_CALLS, *sdk.RESULTS, *sdk.NAMELESS_CALLS, *sdk.NAMELESS_RESULTS],
)
def test_what_is_inside_stays_as_it_is(form: sdk.Form) -> None:
    """Reading it again changes nothing, part by part; also when a store has kept it."""
    said = sdk.Said(["x"], image=True, thought="hm", calls=[CALL], results=[sdk.Result(CALL, "y", image=True)])
    for message in form(said):
        for row in native(message):
            assert native(row) == [row]
            assert native(json.loads(json.dumps(row))) == [row]
