"""Groups: who consumes which queue, how far it has got, and what becomes of failures."""
