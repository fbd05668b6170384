"""The receiver's side: each request of a run has its effect once, however often it is sent.

This package runs in the receiver's process, so it is light: it loads only the model of Tocsin, and it remembers answers
in a Redis or an SQL database of the receiver's own.
"""

from tocsin.model.errors import InvalidSignature, KeyReused, StillRunning, TurnLost
from tocsin.model.webhook_signature import sign, verify
from tocsin.receive.once import Once
from tocsin.receive.receiver import Receiver

__all__ = ["Once", "Receiver", "sign", "verify", "InvalidSignature", "StillRunning", "KeyReused", "TurnLost"]
