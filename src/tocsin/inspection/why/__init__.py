"""What a job is doing, and why it is not running: facts in, sentences out."""

from tocsin.inspection.why.answer import Answer, Reason
from tocsin.inspection.why.explain import Why

__all__ = ["Answer", "Reason", "Why"]
