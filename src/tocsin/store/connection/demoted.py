"""Parsers that recognise the answers of a server that may no longer be the primary.

A primary that became a replica answers READONLY. One that a network split has cut off from its replicas answers
NOREPLICAS, and the others may have another primary by then. redis-py drops the connection only after READONLY, and not
if Redis 6.2 answers it for a command in a script. Our parsers raise ReadOnlyError for all of these.
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
