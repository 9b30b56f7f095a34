"""The housekeeper: seals segments, syncs ConsumeQueue files, keeps the key index.

Only writer of `gantry/segments/`, `gantry/queues.json`, `checkpoint`, `index/`, `gantry/index.json`
and of the board's `indexed`. Nobody waits for it. It learns what there is to do from the board and
the disk alone.
"""
