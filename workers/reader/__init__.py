"""The reader: from the log to queues, and to who waits for them."""
