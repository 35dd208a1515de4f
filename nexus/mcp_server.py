"""What an MCP host is given of Nexus (contract §16): tools that ask the bus as any orchestrator does, and resources.

- The service checks, limits and refuses. What it says becomes the result of the tool, with `isError` where it refuses.
- A call of a memory tool is recorded as a model's answer, and its result by the service: in the run of the context that
  it follows, where the host names that, else in a run of its own.
- The owner is that of the connection, and nothing in a call can name another. So of a `run_id` that is none of the
  owner's nothing is recorded.
"""

import json
import logging
import math
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import mcp_types as mcp
import structlog
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.uri_template import UriTemplate
from pydantic import TypeAdapter, ValidationError

from nexus import __version__
from nexus.client import AnswerError, ContextClient, new_run
from nexus.core.errors import NexusError
from nexus.core.models import Run, new_run_id
from nexus.core.ports import Store
from nexus.core.wire import explain
from nexus.services.context.request import RunMetadata
from nexus.services.history.rows import read_session_id
from nexus.services.memory.documents import TEMPLATE
from nexus.services.memory.kept import overview_of
from nexus.services.tools.memory_tools import (
    PIN_CONSTRAINT,
    READ_MEMORY_DETAIL,
    READING_TOOLS,
    REMEMBER,
    SEARCH_MEMORY,
    UPDATE_WORKING_MEMORY,
    WRITE_MEMORY_DETAIL,
    MemoryLimits,
    definitions,
)
from nexus.services.transfer.folder import read_turn

_log = structlog.get_logger(__name__)
# What it logs may quote what was sent; faults of the handlers are logged here.
logging.getLogger("mcp").setLevel(logging.CRITICAL)

_T = TypeVar("_T")
Request: TypeAlias = ServerRequestContext[Any, Any]

BUILD_CONTEXT: Final = "build_context"
# Of the memory tools those that are of use outside a run of Nexus's own.
_OFFERED: Final = (
    SEARCH_MEMORY,
    READ_MEMORY_DETAIL,
    WRITE_MEMORY_DETAIL,
    UPDATE_WORKING_MEMORY,
    REMEMBER,
    PIN_CONSTRAINT,
)
# Of `run.metadata` what a model can tell of itself.
_OF_A_RUN: Final = (
    "layout",
    "format",
    "session_id",
    "agent",
    "task_context",
    "workspace_context",
    "summary_detail_level",
    "context_window",
    "recall",
    "constraints",
    "client_timestamp_utc",
    "client_timezone_offset",
)
_OVERVIEW: Final = UriTemplate.parse("nexus://sessions/{session_id}/overview")
_TURNS: Final = UriTemplate.parse("nexus://sessions/{session_id}/turns")
_JSON: Final = "application/json"
_MOST_SESSIONS: Final = 50
_MOST_TURNS: Final = 20
_SHOWN_CHARS: Final = 40
_FAILED: Final = "INTERNAL: it failed inside nexus mcp, whose log says where"
_OF_A_TURN: Final = {"turn_number", "run_id", "timestamp", "status", "summaries", "insights"}


def create_server(
    client: ContextClient,
    store: Store,
    owner_of: Callable[[Request], str],
    *,
    session: str = "default",
    timeout_s: float = 15.0,
    limits: MemoryLimits | None = None,
) -> Server[Any]:
    """The server, for any transport. `owner_of` says whose memory a request is about.

    `session` is the one of calls and contexts that name none; `timeout_s` how long the service is waited for.
    """
    desk = _Desk(client, store, owner_of, session, timeout_s, {tool.name: tool for tool in _tools(session, limits)})
    return Server(
        "nexus",
        version=__version__,
        title="Nexus",
        instructions=(
            "Long-term memory of one person, and contexts made of it. build_context records what the person says and "
            "gives the messages for a model; give its run_id to the other tools that are called for the same answer."
        ),
        on_list_tools=desk.list_tools,
        on_call_tool=desk.call_tool,
        on_list_resources=desk.list_resources,
        on_list_resource_templates=desk.list_templates,
        on_read_resource=desk.read_resource,
    )


@dataclass(frozen=True, slots=True)
class _Desk:
    """Answers the requests of all connections of a server. `tools` by their names; the rest as for `create_server`."""

    client: ContextClient
    store: Store
    owner_of: Callable[[Request], str]
    session: str
    timeout_s: float
    tools: Mapping[str, mcp.Tool]

    async def list_tools(self, _request: Request, _params: Any) -> mcp.ListToolsResult:
        return mcp.ListToolsResult(tools=[*self.tools.values()])

    async def call_tool(self, request: Request, params: mcp.CallToolRequestParams) -> mcp.CallToolResult:
        name = params.name
        if name not in self.tools:
            raise MCPError(mcp.INVALID_PARAMS, f"name: is no tool; allowed: {', '.join(self.tools)}")
        try:
            given = _given(params.arguments or {})
            owner = self.owner_of(request)
            return await (self._build(owner, given) if name == BUILD_CONTEXT else self._call(owner, name, given))
        except AnswerError as error:
            return _result(str(error), error.content.get("error"), failed=True)
        except ValidationError as error:
            return _result(explain(error).replace("id:", "run_id:", 1), failed=True)
        except (NexusError, TimeoutError, ValueError) as error:
            return _result(str(error), failed=True)
        except Exception:  # noqa: BLE001  # whatever goes wrong, the host gets a result without a stack trace
            _log.exception("mcp_failed", name=name)
            return _result(_FAILED, failed=True)

    async def _build(self, owner: str, given: dict[str, Any]) -> mcp.CallToolResult:
        allowed = self.tools[BUILD_CONTEXT].input_schema["properties"]
        if (unknown := next((key for key in given if key not in allowed), None)) is not None:
            raise ValueError(f"{unknown[:_SHOWN_CHARS]!r} is unknown; allowed: {', '.join(allowed)}")
        if "input" not in given:
            raise ValueError("input: is missing; what the person says is needed")
        run = new_run(owner, given.pop("input"), **{"session_id": self.session, **given})
        content = {"run_id": run.id, **await self.client.build(run, timeout=self.timeout_s)}
        # The manifest is for programs; a model reads the messages.
        told = {key: content[key] for key in ("run_id", "system", "messages", "degraded") if content.get(key)}
        return _result(json.dumps(told, ensure_ascii=False), content)

    async def _call(self, owner: str, name: str, given: dict[str, Any]) -> mcp.CallToolResult:
        run_id, session = given.pop("run_id", None), given.pop("session_id", None)
        if run_id is None:
            if name == PIN_CONSTRAINT and given.get("scope") == "run":
                raise ValueError("run_id: is needed for constraints of scope run")
            session = self.session if session is None else session
        # A run belongs to the session of its context.
        metadata = {} if session is None else {"session_id": read_session_id({"session_id": session}, "session_id")}
        run = Run(id=new_run_id() if run_id is None else run_id, owner_key=owner, metadata=metadata)
        if run_id is not None and await self.store.find_origin(owner, run.id) is None:
            raise ValueError(
                f"run_id: there is no run {run.id[:_SHOWN_CHARS]!r}; give that of a context, or leave it out"
            )
        call_id = f"call_{uuid.uuid4().hex}"
        function = {"name": name, "arguments": json.dumps(given, ensure_ascii=False)}
        call = {"id": call_id, "type": "function", "function": function}
        await self.client.record_answer(run, {"tool_calls": [call]}, timeout=self.timeout_s)
        result = await self.client.call_tool(run, name, given, call_id=call_id, timeout=self.timeout_s)
        return _result(str(result.content["result"]), failed=result.content["status"] != "success")

    async def list_templates(self, _request: Request, _params: Any) -> mcp.ListResourceTemplatesResult:
        templates = [
            mcp.ResourceTemplate(name=name, uri_template=str(template), description=description, mime_type=_JSON)
            for name, template, description in _RESOURCES
        ]
        return mcp.ListResourceTemplatesResult(resource_templates=templates)

    async def list_resources(self, request: Request, _params: Any) -> mcp.ListResourcesResult:
        found = await _stored(self.store.sessions(self.owner_of(request), limit=_MOST_SESSIONS))
        resources = [
            mcp.Resource(
                name=f"{name} of {each.session_id}",
                uri=template.expand({"session_id": each.session_id}),
                description=description,
                mime_type=_JSON,
            )
            for each in found
            if each.session_id
            for name, template, description in _RESOURCES
        ]
        return mcp.ListResourcesResult(resources=resources)

    async def read_resource(self, request: Request, params: mcp.ReadResourceRequestParams) -> mcp.ReadResourceResult:
        uri, owner = str(params.uri), self.owner_of(request)
        for template, read in ((_OVERVIEW, self._overview), (_TURNS, self._turns)):
            if found := template.match(uri):
                try:
                    session = read_session_id(found, "session_id")
                except ValueError as error:
                    raise MCPError(mcp.INVALID_PARAMS, str(error)) from None
                text = json.dumps(await _stored(read(owner, session)), ensure_ascii=False)
                return mcp.ReadResourceResult(contents=[mcp.TextResourceContents(uri=uri, text=text, mime_type=_JSON)])
        raise MCPError(mcp.INVALID_PARAMS, f"uri: is no resource; allowed: {_OVERVIEW}, {_TURNS}")

    async def _overview(self, owner: str, session: str) -> dict[str, Any]:
        overview = await overview_of(self.store.memory, owner, session)
        return overview.model_dump(mode="json") if overview else {"revision": 0, "content": TEMPLATE}

    async def _turns(self, owner: str, session: str) -> dict[str, Any]:
        turns: list[dict[str, Any]] = []
        unreadable: list[int] = []
        for document in await self.store.turns.turns(owner, session, limit=_MOST_TURNS, whole=True):
            try:
                turns.append(read_turn(document).model_dump(mode="json", include=_OF_A_TURN))
            except ValueError:
                unreadable.append(document["turn_number"])
        return {"total": await self.store.turns.count_turns(owner, session), "turns": turns, "unreadable": unreadable}


_RESOURCES: Final = (
    ("overview", _OVERVIEW, "What the models of a session keep in view of it. Revision 0 is the empty template."),
    ("turns", _TURNS, f"Summaries of the latest {_MOST_TURNS} exchanges of a session, the latest first."),
)


async def _stored(reading: Awaitable[_T]) -> _T:
    """What is read from the store, whose errors become one of the protocol."""
    try:
        return await reading
    except NexusError as error:
        raise MCPError(mcp.INTERNAL_ERROR, str(error)) from None
    except Exception:  # noqa: BLE001  # as for a call
        _log.exception("mcp_failed", name="resource")
        raise MCPError(mcp.INTERNAL_ERROR, _FAILED) from None


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in arguments.items():
        if isinstance(value, float) and not math.isfinite(value):
            # On the bus it would become null, as if it were left out.
            raise ValueError(f"{key[:_SHOWN_CHARS]}: {value} is no number of JSON")
    # Models write null for what they leave out.
    return {key: value for key, value in arguments.items() if value is not None}


def _result(text: str, structured: Any = None, *, failed: bool = False) -> mcp.CallToolResult:
    content = [mcp.TextContent(type="text", text=text)]
    return mcp.CallToolResult(content=content, structured_content=structured, is_error=failed)


def _tools(session: str, limits: MemoryLimits | None) -> Iterator[mcp.Tool]:
    in_session = {"type": "string", "description": f"The session. Without it that of the run, else {session!r}."}
    in_run = {"type": "string", "description": "The run_id of the context that this call follows, if there is one."}
    described = TypeAdapter(RunMetadata).json_schema()
    properties = {
        "input": {"type": "string", "description": "What the person says, word for word."},
        **{name: described["properties"][name] for name in _OF_A_RUN},
    }
    yield mcp.Tool(
        name=BUILD_CONTEXT,
        description=(
            "Have what the person says recorded, and get the messages to give to a model: what was said before in this "
            "session, what is known of the person, and the input at its end. layout: dialogue for a talk, agent for "
            "work with tools, thinking for a round of thought. format: the form of the messages."
        ),
        input_schema={
            "type": "object",
            "properties": properties,
            "required": ["input"],
            "additionalProperties": False,
            "$defs": described["$defs"],
        },
        annotations=mcp.ToolAnnotations(destructive_hint=False, open_world_hint=False),
    )
    functions = {each["function"]["name"]: each["function"] for each in definitions(limits)}
    for name in _OFFERED:
        schema = functions[name]["parameters"]
        properties = {**schema["properties"], "session_id": in_session, "run_id": in_run}
        yield mcp.Tool(
            name=name,
            description=functions[name]["description"],
            input_schema={**schema, "properties": properties},
            annotations=mcp.ToolAnnotations(read_only_hint=name in READING_TOOLS, open_world_hint=False),
        )
