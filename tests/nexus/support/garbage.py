"""What is left in memory when nothing refers to it any more: cycles, which stay until Python looks for them."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Left = Callable[[type[object]], int]


@contextmanager
def unsearched() -> Iterator[Left]:
    """Nobody looks for cycles in the context.

    What is given tells how many more objects of a type there are than at its beginning, those in cycles included.
    """
    gc.collect()
    gc.disable()
    # Of what other tests have left.
    before = [type(each) for each in gc.get_objects()]
    try:
        yield lambda kind: _instances(kind) - before.count(kind)
    finally:
        gc.enable()


def _instances(kind: type[object]) -> int:
    return [type(each) for each in gc.get_objects()].count(kind)
