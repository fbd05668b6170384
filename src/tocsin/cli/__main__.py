"""`python -m tocsin.cli`: how the command line starts itself again as a worker process."""

from tocsin.cli import main

main()
