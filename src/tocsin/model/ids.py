"""Ids of jobs, runs and queues: checks them and derives one from another."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import secrets
import zlib

from tocsin.model.durations import Millis
from tocsin.model.errors import InvalidArgument

# Separates job id and due time in the member name of an extra run. Ids cannot contain it.
EXTRA = "\x1f"
_EXTRA_MARK = EXTRA.encode()
LONGEST_ID = 512

_QUEUE = re.compile(r"[A-Za-z0-9_.-]{1,100}")


def check_job_id(job_id: object) -> str:
    """1 to 512 bytes of UTF-8 without NUL and \\x1f; braces, spaces, newlines and emoji are fine."""
    if not isinstance(job_id, str):
        raise InvalidArgument(f"a job id must be text, not {job_id!r}")
    try:
        size = len(job_id.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"job id {job_id!r} is not valid Unicode: {error.reason}") from None
    if not 1 <= size <= LONGEST_ID:
        raise InvalidArgument(f"a job id must have 1 to {LONGEST_ID} bytes, this one has {size}")
    if "\0" in job_id or EXTRA in job_id:
        raise InvalidArgument(f"job id {job_id!r} holds a NUL or \\x1f character; leave it out")
    return job_id


def check_member(member: object) -> str:
    """Check the name of a job, or of an extra run as lists show it."""
    if isinstance(member, str):
        job_id, _, due = member.partition(EXTRA)
        if due.isdigit():
            check_job_id(job_id)
            return member
    return check_job_id(member)


def check_queue_name(name: object) -> str:
    if not isinstance(name, str) or not _QUEUE.fullmatch(name):
        raise InvalidArgument(f"a queue name has 1 to 100 of A-Z a-z 0-9 _ . -, not {name!r}")
    return name


def job_of(member: str) -> str:
    """The id of the job that a member of a stage belongs to; the member may be an extra run of the job."""
    return member.partition(EXTRA)[0]


def extra_member(job_id: str, due: Millis) -> str:
    return f"{job_id}{EXTRA}{due}"


def run_id(member: str, due: Millis) -> str:
    return f"{job_of(member)}@{due}"


def parse_run_id(text: str) -> tuple[str, Millis]:
    job_id, at, due = text.rpartition("@")
    if not at or not due.isdigit():
        raise InvalidArgument(f"a run id is <job id>@<due ms>, not {text!r}")
    return check_job_id(job_id), int(due)


def idempotency_key(namespace: str, queue: str, member: str, due: Millis) -> str:
    """The idempotency key of a run: the same for each attempt and worker, also after recovery and a re-sync."""
    text = "\0".join((namespace, queue, job_of(member), str(due)))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def partition_of(member: str, partitions: int) -> int:
    """The partition of a job. This must never change, because stored jobs are found by it."""
    return partition_of_key(member.encode(), partitions)


def partition_of_key(key: bytes, partitions: int) -> int:
    """Like `partition_of`, for a name from Redis, which may be garbage and not UTF-8."""
    return zlib.crc32(key.partition(_EXTRA_MARK)[0]) % partitions


def digest(text: bytes) -> int:
    """A 32-bit name for a handler or a trigger inside record headers; 0 means none."""
    return zlib.crc32(text) or 1


_process = secrets.token_hex(5)
_numbers = itertools.count()


def new_id() -> str:
    """A unique job id: a random prefix per process, and a counter."""
    return f"{_process}{next(_numbers):x}"


def renew_process_prefix() -> None:
    """Take a new prefix after a fork: parent and child go on with the same counter."""
    global _process
    _process = secrets.token_hex(5)


os.register_at_fork(after_in_child=renew_process_prefix)
