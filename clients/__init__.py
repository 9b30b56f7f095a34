"""What applications use: sessions, producers, consumers and the Spark data source.

It uses `shm` alone: neither `brokerd` nor `workers`. Importing it must stay cheap, so heavy
packages are loaded by the part that needs them.
"""
