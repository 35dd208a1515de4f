"""A language model behind an endpoint that speaks the OpenAI protocol (contract §6)."""

from nexus.adapters.llm.client import ModelLimits, OpenAiModel, open_llm

__all__ = ["ModelLimits", "OpenAiModel", "open_llm"]
