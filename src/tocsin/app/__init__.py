"""What a program may ask: the `Tocsin` object, its handles, and its blocking twin."""

from tocsin.app.handle import Handle
from tocsin.app.tocsin import Tocsin

__all__ = ["Handle", "Tocsin"]
