"""What is registered has the form of draft 2020-12, by another reader of that draft."""

from typing import Any

from hypothesis import given, settings
from jsonschema_rs import meta

from nexus.services.context.formats import FORMATS
from nexus.services.tools.definitions import read_definition
from tests.nexus.unit.services.context.canonical_lists import user
from tests.nexus.unit.services.context.test_tool_rules import WHOLE_SCHEMAS, functions

DRAFT = {"$schema": "https://json-schema.org/draft/2020-12/schema"}


@given(WHOLE_SCHEMAS)
@settings(deadline=None)
def test_schemas_are_valid_in_every_format(schema: dict[str, Any]) -> None:
    """Anthropic refuses all others, with all tools that are there besides."""
    try:
        tool = read_definition({"name": "f", "inputSchema": schema}).checked
    except ValueError:
        return
    for to_form in FORMATS.values():
        for function in functions(to_form([user("U")], [tool], stable=0)):
            assert meta.is_valid({**(function["schema"] or {}), **DRAFT})
