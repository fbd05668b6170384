"""Public holidays, from the optional package `holidays`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from functools import lru_cache
from typing import Any

from tocsin.model.errors import InvalidTrigger, did_you_mean


def check(country: Any, subdiv: Any) -> None:
    """Raises InvalidTrigger if the package does not know the country or its part."""
    for value, what in ((country, "a country is a code like 'FR'"), (subdiv or "", "a subdiv is a code like 'BY'")):
        if not isinstance(value, str):
            raise InvalidTrigger(f"{what}, not {value!r:.100}")
    _check(country, subdiv)


@lru_cache(maxsize=1024)
def _check(country: str, subdiv: str | None) -> None:
    known: Mapping[str, Sequence[str]] = _package().list_supported_countries(include_aliases=True)
    if country not in known:
        raise InvalidTrigger(
            f"no holidays are known of {country[:100]!r}; {did_you_mean(country[:100].upper(), known)}"
        )
    if subdiv is not None and subdiv not in known[country]:
        parts = known[country]
        there = did_you_mean(subdiv[:100].upper(), parts) if parts else "it has none: leave subdiv out"
        raise InvalidTrigger(f"no holidays are known of {subdiv[:100]!r} in {country}; {there}")


@lru_cache(maxsize=4096)
def in_year(country: str, subdiv: str | None, year: int) -> frozenset[date]:
    return frozenset(_package().country_holidays(country, subdiv=subdiv, years=year))


def _package() -> Any:
    try:
        import holidays
    except ImportError:
        raise InvalidTrigger("Holidays needs the package holidays: install tocsin[holidays]") from None
    return holidays
