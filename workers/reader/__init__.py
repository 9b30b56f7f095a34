"""The reader: from the log to queues, sidecars and IndexFiles, and to who waits for them."""
