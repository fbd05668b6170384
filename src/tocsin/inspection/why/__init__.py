"""Explains what a job is doing, and why it is not running: facts in, sentences out."""

from tocsin.inspection.why.answer import Explanation, Reason
from tocsin.inspection.why.explain import JobExplainer

__all__ = ["Explanation", "Reason", "JobExplainer"]
