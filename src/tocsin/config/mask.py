"""Masks the passwords in store addresses."""

from __future__ import annotations

import re

# An unescaped password may contain anything, also @ and /, so everything before the last @ is hidden.
_ADDRESS = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*://)(.*@)?([^?#@]*)(\?.*)?", re.DOTALL)
# The forms of a list of hosts. Text of another form may be a password without a host, like nobody:secret.
_HOSTS = re.compile(r"(?:\[[0-9a-fA-F:.]*\]|[^:/,\[\]]*)(?::[0-9]*)?(?:,[^:/,]*(?::[0-9]*)?)*(?:/[^:]*)?")


def masked(url: str) -> str:
    """The address with *** for its login and options."""
    found = _ADDRESS.fullmatch(url)
    if not url:
        return ""
    if found is None or not _HOSTS.fullmatch(found[3]):
        return "***"
    scheme, login, rest, options = found.groups()
    return scheme + ("***@" if login else "") + rest + ("?***" if options else "")
