"""The settings as each service takes them."""

from typing import Final

from nexus.config import BusSettings, Settings, signing_of
from nexus.services.context.budget import WindowSettings
from nexus.services.context.builder import BuilderSettings
from nexus.services.memory.compactor import CompactionSettings
from nexus.services.memory.refining import RefiningSettings
from nexus.services.requests.envelope import RequestSettings
from nexus.services.tools.memory_tools import MemoryLimits
from nexus.services.turns.worker import TurnSettings

# Turns are summarised by the same model, and are many more.
_REFINED_AT_ONCE: Final = 2


def builder_settings(settings: Settings) -> BuilderSettings:
    """What contexts are built with."""
    defaults = settings.user_defaults
    return BuilderSettings(
        default_layout=settings.layouts.default,
        history_size=defaults.config.history_context_size or settings.memory.history_context_size,
        truncate_chars=settings.memory.truncate_chars,
        default_profile=defaults.prompts.friends_profile.content,
        on_history_failure=settings.context.on_history_failure,
        keep_prefix_ms=settings.bus.answer_ttl_s * 1_000,
        history_messages=settings.layouts.agent.history_messages,
        placement=settings.layouts.agent.placement,
        pinned_from_end=settings.layouts.agent.pinned_from_end,
        summary_detail_level=settings.memory.summary_detail_level,
        turns_shown=settings.memory.turns_shown,
        summaries_by_model=settings.llm.enabled,
        count_tokens=settings.memory.count_tokens,
        window=window_settings(settings),
    )


def window_settings(settings: Settings) -> WindowSettings:
    """How long contexts may be, and when sessions are compacted."""
    layouts, memory = settings.layouts, settings.memory
    return WindowSettings(
        context_window=memory.context_window,
        max_tokens={
            "dialogue": layouts.dialogue.max_tokens,
            "agent": layouts.agent.max_tokens,
            "thinking": layouts.thinking.max_tokens,
        },
        turn_share=layouts.agent.shares.turn_memory,
        pinned_share=layouts.agent.shares.pinned,
        compact_at=memory.compact_at,
        compact_to=memory.compact_to,
        summary_max_tokens=memory.summary_max_tokens,
    )


def counts_at_once(settings: Settings) -> bool:
    """Whether contexts will surely be counted, so that the vocabulary is read before there is anything to serve."""
    return settings.memory.count_tokens == "always" or settings.layouts.default == "agent"


def turn_settings(settings: Settings) -> TurnSettings:
    """How turns are closed and summarised."""
    return TurnSettings(
        idle_s=settings.memory.turn_idle_s,
        summaries_at_once=settings.llm.max_concurrency,
        again_s=settings.llm.again_s,
        settled_s=settings.llm.settle_s,
    )


def memory_limits(settings: Settings) -> MemoryLimits:
    """How large what a model keeps may be."""
    return MemoryLimits(settings.memory.overview_max_bytes, settings.memory.detail_max_bytes)


def compaction_settings(settings: Settings) -> CompactionSettings:
    """How sessions are compacted."""
    return CompactionSettings(
        idle_s=settings.memory.turn_idle_s,
        summary_max_tokens=settings.memory.summary_max_tokens,
        refine=settings.llm.enabled,
        detail_max_bytes=settings.memory.detail_max_bytes,
    )


def refining_settings(settings: Settings) -> RefiningSettings:
    """How a model rewrites summaries of what is compacted."""
    return RefiningSettings(
        at_once=min(_REFINED_AT_ONCE, settings.llm.max_concurrency),
        again_s=settings.llm.again_s,
        max_input_tokens=settings.llm.max_input_tokens,
        summary_max_tokens=settings.memory.summary_max_tokens,
    )


def request_settings(settings: BusSettings) -> RequestSettings:
    """What is promised of requests, and who may ask."""
    return RequestSettings(
        deadline_ms=settings.request_deadline_ms,
        lease_ms=settings.lease_ms,
        answer_ttl_ms=settings.answer_ttl_s * 1_000,
        max_payload_bytes=settings.max_payload_bytes,
        max_in_flight=settings.max_in_flight,
        signing=signing_of(settings.signing),
    )
