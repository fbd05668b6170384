"""How much memory something keeps."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Awaitable, Callable


async def kept_by(work: Callable[[], Awaitable[None]]) -> int:
    """Bytes that are allocated meanwhile and still held after, without the help of the garbage collector."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        await work()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        gc.enable()
