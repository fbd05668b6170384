"""Reads the certificate authority that a broker's address names with ?ca=: a file on the worker's machine.

People who put jobs choose the path. So the error is the same for every fault of the file; otherwise it would reveal
which files exist, and which of them the worker can read.
"""

from __future__ import annotations

import os
import ssl

from tocsin.model.broker_address import Server
from tocsin.model.delivery import DeliveryFailed
from tocsin.targets.small_files import read_text
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.messages")

# Longer files are cut. All authorities of a system together take a quarter of this.
LARGEST = 1024 * 1024


def read_authority(server: Server) -> str | None:
    """Certificates in PEM; None if the system's authorities are to be trusted. Raises DeliveryFailed."""
    if server.ca is None:
        return None
    try:
        found = read_text(os.path.realpath(server.ca), LARGEST)
        # Refuses an empty file too, which would otherwise mean to trust the system's authorities.
        ssl.create_default_context().load_verify_locations(cadata=found)
    except (OSError, ValueError) as error:
        # The operator may see the reason.
        log.debug("the authority of a broker cannot be used", broker=str(server), ca=server.ca, error=str(error))
    else:
        return found
    raise DeliveryFailed(
        f"{server}: {server.ca} cannot be used as ca: it must be a file of certificates (PEM) on the worker's machine, "
        "which the worker can read"
    )


def tls_of(server: Server, authority: str | None) -> ssl.SSLContext | None:
    return ssl.create_default_context(cadata=authority) if server.tls else None
