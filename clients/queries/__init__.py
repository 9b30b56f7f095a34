"""Finding messages: by key, id and time, in a running broker's store or a stopped one."""
