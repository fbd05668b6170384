"""The type of an operator's grants: secrets with their hosts, programs with their variables."""

from __future__ import annotations

Grants = dict[str, tuple[str, ...]]

# Grants a name for every host or every variable.
ANY = "*"
