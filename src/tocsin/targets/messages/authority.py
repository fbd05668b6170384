"""Reads the certificate authority that a broker's address names with ?ca=: a file on the worker's machine.

People who put jobs choose the path. An error about the file would reveal whether it exists, whether the worker can read
it and whether it holds certificates. So a file that cannot be used stands for an authority that has signed nothing: the
broker's certificate is not trusted then, as with any wrong authority. The worker's log has the reason.
"""

from __future__ import annotations

import os
import ssl

from tocsin.model.broker_address import Server
from tocsin.targets.small_files import read_text
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.messages")

# Longer files are cut. All authorities of a system together take a quarter of this.
LARGEST = 1024 * 1024
# A certificate whose private key was thrown away.
TRUSTED_BY_NOBODY = """\
-----BEGIN CERTIFICATE-----
MIIBjzCCATWgAwIBAgIUO/InHE5fa6gRzmin1lakaTIiIb4wCgYIKoZIzj0EAwIw
HDEaMBgGA1UEAwwRVHJ1c3RlZCBieSBub2JvZHkwIBcNMjYxMTE5MDU1NzAxWhgP
MjEyNjEwMjYwNTU3MDFaMBwxGjAYBgNVBAMMEVRydXN0ZWQgYnkgbm9ib2R5MFkw
EwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEDY8NxXY7pGXGr5bMnEdMEQuzIi3XuU5X
8u9qiohO9ifj+d3bzEEu2Yskz/nGRdj3fIeqXeJQ3cvwav4jT82DHqNTMFEwHQYD
VR0OBBYEFCM9sGxb6TUpMfuqoAuNXszthXC3MB8GA1UdIwQYMBaAFCM9sGxb6TUp
MfuqoAuNXszthXC3MA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIh
ANwSkFbVz46vf+ga3MhABW6yaptwxqnswW+ndizuu68uAiAAgJ9T0JelGoqlTuao
gKisDGELZ+90Tb5OIH4yKoZFWw==
-----END CERTIFICATE-----
"""


def read_authority(server: Server) -> str | None:
    """Certificates in PEM; None if the system's authorities are to be trusted."""
    if server.ca is None:
        return None
    try:
        found = read_text(os.path.realpath(server.ca), LARGEST)
        # Refuses an empty file too, which would otherwise mean to trust the system's authorities.
        ssl.create_default_context().load_verify_locations(cadata=found)
    except (OSError, ValueError) as error:
        # The operator may see the reason.
        log.debug("the authority of a broker cannot be used", broker=str(server), ca=server.ca, error=str(error))
        return TRUSTED_BY_NOBODY
    return found


def tls_of(server: Server, authority: str | None) -> ssl.SSLContext | None:
    return ssl.create_default_context(cadata=authority) if server.tls else None
