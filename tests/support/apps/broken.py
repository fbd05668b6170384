"""A program that cannot be imported."""

from tocsin import Tocsin

app = Tocsin()
app.no_such_call()  # type: ignore[attr-defined]
