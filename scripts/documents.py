"""Writes `docs/schemas/*.json` and `docs/asyncapi.yaml` from the types in the code; `--check` shows what differs.

`make documents` runs it. A new payload needs an entry in `SCHEMAS`, a new topic one in `CHANNELS` or `LEFT_ALONE`.
"""

import argparse
import difflib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import yaml
from pydantic import TypeAdapter, create_model
from pydantic.json_schema import GenerateJsonSchema

from nexus.core.models import ANSWER_TOPICS, Identifier, Message, Moment, Role, Run, Topics
from nexus.core.payloads import (
    Answer,
    AnswerMetadata,
    ConfigChanged,
    ConstraintsChange,
    ErrorContent,
    FactsChange,
    LlmResult,
    Manifest,
    ResultMetadata,
    SearchQuery,
    SearchResult,
    SessionMetadata,
    StoredRow,
    ToolProgress,
    ToolRequest,
    ToolResult,
    ToolResultMetadata,
    Words,
)
from nexus.services.context.request import AnswerableMetadata, RequestMetadata, RunMetadata
from nexus.services.session_state.merge import StateChange
from nexus.services.tools.definitions import NamedTool, Registration, ToolDefinition, ToolName

DOCS: Final = Path(__file__).parents[1] / "docs"
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
# AsyncAPI names older dialects alone, and allows others under names of their own.
FORMAT: Final = "application/schema+json;version=2020-12"


def _message(name: str, description: str, content: Any, **fields: Any) -> Any:
    """The envelope with this content; `fields`, each a type and a default, take the place of the envelope's own."""
    return create_model(name, __base__=Message, __doc__=description, content=(content, ...), **fields)


def _or_none(metadata: Any) -> Any:
    return metadata | None, None


_IN_RUN: Final = create_model(
    "MessageOfRun",
    __base__=Message,
    __doc__="A message of a run. Run, owner and time that it does not name are the request's; an id is made.",
    id=_or_none(Identifier),
    run_id=_or_none(Identifier),
    owner_key=_or_none(Identifier),
    timestamp=_or_none(Moment),
)
_RUN: Final = create_model(
    "RequestedRun",
    __base__=Run,
    __doc__="The run that a context is asked for. Its first HUMAN message is the input.",
    history=(list[_IN_RUN], ...),
    metadata=(RunMetadata | None, None),
)

# The type of each file under docs/schemas.
SCHEMAS: Final[Mapping[str, Any]] = {
    "envelope": Message,
    "build-request": _message("BuildRequest", "Asks for a context.", _RUN, metadata=_or_none(RequestMetadata)),
    "answer": _message(
        "BuildResponse",
        "The answer to a request, with its run and owner, and an id of its own.",
        Answer,
        id=(Identifier, ...),
        role=(Literal[Role.SYSTEM], ...),
        timestamp=(Moment, ...),
        metadata=(AnswerMetadata, ...),
    ),
    "manifest": Manifest,
    "run-input": _message(
        "Said",
        "What a person says while a run is under way.",
        Words,
        role=(Literal[Role.HUMAN], ...),
        metadata=_or_none(ResultMetadata),
    ),
    "llm-result": _message(
        "ModelAnswered", "What a model answered.", LlmResult | str, metadata=_or_none(ResultMetadata)
    ),
    "tool-request": _message(
        "ToolCalled", "A tool call to be carried out.", ToolRequest, metadata=_or_none(ResultMetadata)
    ),
    "tool-result": _message("ToolReturned", "What a tool returned.", ToolResult, metadata=_or_none(ToolResultMetadata)),
    "tool-progress": _message(
        "ToolReported", "How far a call has come.", ToolProgress, metadata=_or_none(ResultMetadata)
    ),
    "tool-definition": ToolDefinition,
    "tool-register": _message("ToolRegistered", "Tools that others run.", Registration),
    "tool-unregister": _message("ToolUnregistered", "A tool that is gone.", NamedTool | ToolName),
    "session-state": _message(
        "StateChanged", "Changes a session's state.", StateChange, metadata=_or_none(SessionMetadata)
    ),
    "memory-facts": _message(
        "FactsSaid", "Says what holds of a person.", FactsChange, metadata=_or_none(SessionMetadata)
    ),
    "session-constraints": _message(
        "ConstraintsChanged",
        "Sets constraints, or takes them back.",
        ConstraintsChange,
        metadata=_or_none(SessionMetadata),
    ),
    "config-changed": ConfigChanged,
    "memory-search": _message(
        "MemorySearched", "Asks long-term memory.", SearchQuery, metadata=_or_none(AnswerableMetadata)
    ),
    "memory-search-result": _message(
        "MemoryFound",
        "The answer to a search, with its run and owner, and an id of its own.",
        SearchResult | ErrorContent,
        id=(Identifier, ...),
        role=(Literal[Role.SYSTEM], ...),
        timestamp=(Moment, ...),
        metadata=(AnswerMetadata, ...),
    ),
    "stored-row": StoredRow,
}


class Channel(NamedTuple):
    """A topic: what Nexus does with its messages, the schema of these, and what one of them says."""

    topic: str
    actions: Sequence[Literal["receive", "send"]]
    schema: str
    summary: str


CHANNELS: Final = (
    Channel(
        Topics.CONTEXT_BUILD_REQUEST, ["receive"], "build-request", "Asks for a context and has its input recorded."
    ),
    Channel(Topics.CONTEXT_BUILD_RESPONSE, ["send"], "answer", "The answer to a request that names no `reply_to`."),
    Channel(f"{Topics.CONTEXT_BUILD_RESPONSE}.{{reply_to}}", ["send"], "answer", "The answer to one that does."),
    Channel(Topics.RUNS_INPUT, ["receive"], "run-input", "What a person says during a run, to be recorded."),
    Channel(Topics.LLM_RESULTS, ["receive"], "llm-result", "What a model answered, to be recorded."),
    Channel(Topics.TOOLS_REQUESTS, ["receive"], "tool-request", "A call; those of memory tools are carried out."),
    Channel(Topics.TOOLS_RESULTS, ["receive", "send"], "tool-result", "What a tool returned, to be recorded."),
    Channel(Topics.TOOLS_PROGRESS, ["receive"], "tool-progress", "How far a call has come that takes long."),
    Channel(
        Topics.TOOLS_REGISTER, ["receive"], "tool-register", "A tool that others run, from now on in all contexts."
    ),
    Channel(Topics.TOOLS_UNREGISTER, ["receive"], "tool-unregister", "Takes such a tool away."),
    Channel(Topics.SESSION_STATE, ["receive"], "session-state", "What is said of a session's state."),
    Channel(Topics.MEMORY_FACTS, ["receive"], "memory-facts", "What is said to hold of a person, or no longer does."),
    Channel(Topics.SESSION_CONSTRAINTS, ["receive"], "session-constraints", "Sets constraints or takes them back."),
    Channel(Topics.MEMORY_SEARCH, ["receive"], "memory-search", "Asks what was said before."),
    Channel(Topics.MEMORY_SEARCH_RESULT, ["send"], "memory-search-result", "The answer to one without `reply_to`."),
    Channel(f"{Topics.MEMORY_SEARCH_RESULT}.{{reply_to}}", ["send"], "memory-search-result", "That to one with it."),
    Channel(Topics.CONFIG_CHANGED, ["receive"], "config-changed", "Has stored settings read again."),
)
# Where a message names what it belongs to.
CORRELATED: Final = {
    "build-request": "id",
    "answer": "metadata/request_id",
    "tool-request": "content/call_id",
    "tool-result": "content/call_id",
    "tool-progress": "content/call_id",
    "memory-search": "id",
    "memory-search-result": "metadata/request_id",
}
# Topics of other services.
LEFT_ALONE: Final = frozenset(
    {Topics.RUNS_NEW, Topics.LLM_REQUESTS, Topics.UI_EVENTS, Topics.SYSTEM_COMMAND, Topics.COMMAND_RESULT}
)


class _Untitled(GenerateJsonSchema):
    """Without titles that only repeat the names of fields."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002  # pydantic's signature
        """Never."""
        return False


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a file."""
    return {"$schema": DIALECT, **TypeAdapter(SCHEMAS[name]).json_schema(schema_generator=_Untitled)}


def asyncapi() -> dict[str, Any]:
    """The AsyncAPI document; it describes what Nexus receives and sends."""
    messages = {each.schema: _asyncapi_message(each) for each in CHANNELS}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Nexus",
            "version": version("nexus-context"),
            "description": "The context service of an LLM agent platform. What the messages mean is in contract.md. "
            "`bus.channel_prefix` stands before every address.",
            "license": {"name": "MIT"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "pubsub": _server("A message is the payload of a PUBLISH on the address (`bus.mode: pubsub`)."),
            "streams": _server(
                "A message is the field `message` of an entry in the stream of that name (`bus.mode: streams`)."
            ),
        },
        "channels": {_key(each.topic): _channel(each) for each in CHANNELS},
        "operations": {
            f"{action}_{_key(each.topic)}": _operation(each, action) for each in CHANNELS for action in each.actions
        },
        "components": {"messages": messages},
    }


def _key(topic: str) -> str:
    return re.sub(r"[^a-z]+", "_", topic).strip("_")


def _server(description: str) -> dict[str, Any]:
    return {"host": "127.0.0.1:6379", "protocol": "redis", "description": description}


def _asyncapi_message(channel: Channel) -> dict[str, Any]:
    model, there = SCHEMAS[channel.schema], CORRELATED.get(channel.schema)
    return {
        "name": model.__name__,
        "summary": model.__doc__.partition("\n")[0],
        **({"correlationId": {"location": f"$message.payload#/{there}"}} if there else {}),
        "payload": {"schemaFormat": FORMAT, "schema": {"$ref": f"./schemas/{channel.schema}.json"}},
    }


def _channel(channel: Channel) -> dict[str, Any]:
    names = re.findall(r"{(\w+)}", channel.topic)
    where = {name: {"description": "The name in the request's `metadata`."} for name in names}
    return {
        "address": channel.topic,
        "description": channel.summary,
        "messages": {channel.schema: {"$ref": f"#/components/messages/{channel.schema}"}},
        **({"parameters": where} if where else {}),
    }


def _operation(channel: Channel, action: str) -> dict[str, Any]:
    key = _key(channel.topic)
    operation = {
        "action": action,
        "channel": {"$ref": f"#/channels/{key}"},
        "summary": channel.summary,
        "messages": [{"$ref": f"#/channels/{key}/messages/{channel.schema}"}],
    }
    if channel.topic in ANSWER_TOPICS:
        address = f"{ANSWER_TOPICS[channel.topic]}.{{reply_to}}"
        answers, schema_of_answer = _key(address), next(each.schema for each in CHANNELS if each.topic == address)
        operation["reply"] = {
            "channel": {"$ref": f"#/channels/{answers}"},
            "messages": [{"$ref": f"#/channels/{answers}/messages/{schema_of_answer}"}],
        }
    return operation


def documents() -> dict[Path, str]:
    """The text of every file."""
    schemas = {
        DOCS / "schemas" / f"{name}.json": json.dumps(schema(name), ensure_ascii=False, indent=2) + "\n"
        for name in SCHEMAS
    }
    head = "# Made by scripts/documents.py.\n"
    return schemas | {DOCS / "asyncapi.yaml": head + yaml.safe_dump(asyncapi(), sort_keys=False, width=120)}


def differences() -> list[str]:
    """What differs from the files that are there, line by line."""
    wanted = documents()
    there = {path: path.read_text(encoding="utf-8") for path in (DOCS / "schemas").glob("*.json")}
    there |= {path: path.read_text(encoding="utf-8") for path in wanted if path.exists()}
    return [
        line
        for path in sorted(wanted.keys() | there.keys())
        for line in difflib.unified_diff(
            there.get(path, "").splitlines(),
            wanted.get(path, "").splitlines(),
            f"{path.relative_to(DOCS.parent)} (there)",
            f"{path.relative_to(DOCS.parent)} (from the code)",
            lineterm="",
        )
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files, or with `--check` print what differs. Returns the exit code: 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; print what differs, and exit with 1 then")
    if parser.parse_args(arguments).check:
        found = differences()
        print("\n".join([*found, "Run `make documents` and commit what it writes."]) if found else "Nothing differs.")
        return int(bool(found))
    wanted = documents()
    (DOCS / "schemas").mkdir(exist_ok=True)
    for path in (DOCS / "schemas").glob("*.json"):
        if path not in wanted:
            path.unlink()
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")
    print(f"{len(wanted)} files written under {DOCS.name}/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
