"""`python -m tocsin.cli`: the command line starts worker processes this way."""

from tocsin.cli import main

main()
