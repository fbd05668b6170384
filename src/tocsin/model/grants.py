"""What an operator allows by name, and for what each: secrets and their hosts, programs and their variables."""

from __future__ import annotations

Grants = dict[str, tuple[str, ...]]

# Of the second part: whatever it is.
ANY = "*"
