"""For tests of programs that use Tocsin: a clock that you move, and a worker that runs until no job is due.

    async def test_reminder(tocsin_app, tocsin_clock):
        await tocsin_app.enqueue(remind, "ada", delay="1d")
        tocsin_clock.advance("1d")
        assert await run_until_idle(tocsin_app) == 1

The fixtures come with the package, as a pytest plugin, and talk to a real embedded server.
"""

from tocsin.testing.clock import ManualClock
from tocsin.testing.until_idle import run_until_idle

__all__ = ["ManualClock", "run_until_idle"]
