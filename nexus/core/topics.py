"""The names of the topics (CONTRACT §1.1)."""

from typing import Final


class Topics:
    """Every topic that Nexus publishes, reads or knows of.

    The names belong to the orchestrators that exist and stay as they are. `bus.channel_prefix` goes before each of them
    inside the bus adapters only, so that code compares these constants.
    """

    RUNS_NEW: Final = "runs.new"
    CONTEXT_BUILD_REQUEST: Final = "context.build.request"
    CONTEXT_BUILD_RESPONSE: Final = "context.build.response"
    LLM_REQUESTS: Final = "llm.requests"
    LLM_RESULTS: Final = "llm.results"
    TOOLS_REQUESTS: Final = "tools.requests"
    TOOLS_RESULTS: Final = "tools.results"
    UI_EVENTS: Final = "ui.events"
    SYSTEM_COMMAND: Final = "system.command"
    COMMAND_RESULT: Final = "command.result"

    TOOLS_REGISTER: Final = "tools.register"
    TOOLS_UNREGISTER: Final = "tools.unregister"
    SESSION_STATE: Final = "session.state"
    CONFIG_CHANGED: Final = "config.changed"
