"""The scheduler: delay levels, timers, their cancelling, and how far both have got."""
