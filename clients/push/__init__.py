"""The push consumer: threads that call a listener, and what becomes of its answers."""
