"""What programs use: the `Tocsin` object, with its blocking calls in `app.sync`, and the handles of jobs."""

from tocsin.app.handle import Handle
from tocsin.app.tocsin import Tocsin

__all__ = ["Handle", "Tocsin"]
