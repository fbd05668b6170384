"""Answers of a server that may no longer be the primary.

READONLY comes from a primary that became a replica, NOREPLICAS from one that a split has cut off from its replicas: the
others may have another primary by then. redis-py drops the connection on the first only, and not if Redis 6.2 says it
of a command in a script. The parsers of our connections take all of these for ReadOnlyError.
"""

from __future__ import annotations

import re

from redis.asyncio.connection import DefaultParser as AsyncDefaultParser
from redis.connection import DefaultParser
from redis.exceptions import ReadOnlyError

# Redis 6.2: "ERR Error running script (call to f_…): @user_script: 1: -NOREPLICAS Not enough good replicas to write."
_DEMOTED = re.compile(r"(?:ERR Error running script .*: -)?(READONLY|NOREPLICAS) (.*)", re.DOTALL)


class _Demotion:
    @classmethod
    def parse_error(cls, response: str) -> Exception:
        demoted = _DEMOTED.match(response)
        if demoted is None:
            return super().parse_error(response)  # type: ignore[misc, no-any-return]
        return ReadOnlyError(demoted[2], status_code=demoted[1])


class Parser(_Demotion, AsyncDefaultParser):  # type: ignore[misc, valid-type]
    pass


class BlockingParser(_Demotion, DefaultParser):  # type: ignore[misc, valid-type]
    pass
