"""The request types that the providers' own SDKs ship, applied to the output of a format.

Importing the SDKs takes more than a second, so this is only imported where types are looked at.
"""

import json
from typing import Any

from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from google.genai.types import Content, Tool
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import BaseModel, ValidationError

from nexus.services.context.formats import Converted
from tests.nexus.support.typed_dicts import checker


def openai_type_faults(converted: Converted) -> list[str]:
    """What is wrong with a request made of it, by the types of `openai`."""
    request = {"model": "m", "messages": converted.messages, "tools": converted.tools}
    return checker(CompletionCreateParamsNonStreaming)(request, "request")


def anthropic_type_faults(converted: Converted) -> list[str]:
    """What is wrong with a request made of it, by the types of `anthropic`."""
    system = {} if converted.system is None else {"system": converted.system}
    request = {"model": "m", "max_tokens": 1, "messages": converted.messages, "tools": converted.tools, **system}
    return checker(MessageCreateParamsNonStreaming)(request, "request")


def gemini_type_faults(converted: Converted) -> list[str]:
    """What is wrong with it, by the types of `google-genai`, which forbid unknown fields."""
    system = [] if converted.system is None else [converted.system]
    return [
        fault
        for model, values in ((Content, converted.messages), (Content, system), (Tool, converted.tools))
        for value in values
        for fault in _model_faults(model, value)
    ]


def _model_faults(model: type[BaseModel], value: Any) -> list[str]:
    try:
        # As JSON, as it is sent: a signature is base64 there and bytes in Python.
        model.model_validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        return [f"{model.__name__}.{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
    return []
