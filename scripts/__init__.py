"""Small programs behind the targets of the Makefile; each does one thing."""
