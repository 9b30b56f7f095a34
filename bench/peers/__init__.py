"""What others do on the same machine: each peer in its usual configuration, named in the table."""
