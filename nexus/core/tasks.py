"""A small addition to structured concurrency."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ungrouped() -> Iterator[None]:
    """An exception that left task groups alone in its group, as itself.

    A task group wraps whatever leaves it. Around a context manager that has one inside, this lets its user catch what
    the user's own code raised.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        if isinstance(error, BaseExceptionGroup):
            raise
        raise error from error.__cause__
