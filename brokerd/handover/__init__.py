"""Leaving for a real RocketMQ, and coming from one: what of a stopped store is still to be done.

`pending` reads it off the log, `leaving` writes what a RocketMQ needs besides, `coming` takes over.
"""
