"""What a job is doing, and why it is not running: facts in, sentences out."""

from tocsin.why.answer import Answer, Reason
from tocsin.why.asking import Why

__all__ = ["Answer", "Reason", "Why"]
