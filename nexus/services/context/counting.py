"""Tokens are counted where that is needed (CONTRACT §7, §8, docs/decisions/0023-counted-where-needed.md). Pure.

Rules of this module:

- What fits by its bytes fits by its tokens. A context that does is not counted, and does not tell how long it is.
- Messages are the same whether they are counted or not, and whether they are is decided by content and settings alone.
- In the agent layout the model is told how long its context is, so all of those are counted.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from nexus.core.ports import TokenCounter
from nexus.services.context.assembled import Assembled
from nexus.services.context.build_memory import taken_besides
from nexus.services.context.build_parts import Build, BuilderSettings
from nexus.services.context.closing import close
from nexus.services.context.formats import FORMATS
from nexus.services.context.layouts import DialogueInput, ThinkingInput
from nexus.services.context.prefix import RunPrefix
from nexus.services.context.request import BuildRequest
from nexus.services.context.tokens import Bound

_Given = TypeVar("_Given", DialogueInput, ThinkingInput)


def bounds_of(counter: TokenCounter | None) -> dict[str, Bound]:
    """By format, what tells whether a context surely fits; nothing where nobody counts."""
    return {form: Bound(counter, form) for form in FORMATS} if counter else {}


def bound_of(bounds: Mapping[str, Bound], request: BuildRequest, settings: BuilderSettings) -> Bound | None:
    """That for the request; None where it is counted in any case."""
    if settings.count_tokens == "always" or request.layout == "agent":
        return None
    return bounds.get(request.form)


def fitted(
    fit: Callable[[_Given, int], Assembled], given: _Given, tools: Sequence[Mapping[str, Any]], build: Build
) -> Assembled:
    """A layout's messages, counted if it is not certain that they fit.

    Args:
        fit: makes them, in so many tokens where they are counted.
        given: what they are made of, without a measure.
        tools: that go with them.
        build: for which.
    """
    if bound := build.bound:
        whole = fit(given, build.limit)
        if bound.messages(whole.messages) + taken_besides(tools, build, bound) <= build.limit:
            return whole
    return fit(given._replace(measure=build.measure), build.limit - taken_besides(tools, build, build.measure))


def whole(prefix: RunPrefix, build: Build) -> dict[str, Any] | None:
    """The content of the answer, if it is certain without counting that it is within the limit; else None."""
    bound = build.bound
    if bound is None and build.measure is not None:
        return None
    content = prefix.continued(build.request)
    fits = not bound or bound.messages(content["messages"]) + bound.tools(content["tools"]) <= build.limit
    return content if fits else None


def closed(prefix: RunPrefix, build: Build) -> dict[str, Any]:
    """The content of the answer, which is within the limit.

    Raises:
        RequestError: as for `close`.
    """
    if certain := whole(prefix, build):
        return certain
    measure = build.measure
    content = prefix.continued(build.request, measure)
    return close(content, measure, build.limit, prefix.meta, prefix.run_room) if measure else content
