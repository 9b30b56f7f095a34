"""`python -m gantrymq`: the command line."""

from gantrymq.cli import main

main()
